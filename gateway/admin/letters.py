"""Dead letters over the API: grouped by topic and reason, each with its history, and sent again as they are or changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated

import msgspec

from gateway.admin.access import Role
from gateway.admin.content import Content, HeaderShown, content_of
from gateway.admin.inside import Inside
from gateway.admin.log import Named
from gateway.admin.operation import Asked, Query, operation
from gateway.broker.letters import Facts, split_headers
from gateway.envelope import Envelope, Headers, Origin
from gateway.errors import UnknownTopic

MOST_TOPICS = 50
"""Topics that are looked at for one answer."""
MOST_COUNTED = 5_000
"""Letters of a topic that are grouped; the newest."""
MOST_LETTERS = 100
READ_BYTES = 8 << 20
NO_LETTER = "(no dead letter)"
"""The reason of a message that somebody put there by hand."""


class LettersAsked(Query, frozen=True, kw_only=True):
    search: str = ""
    after: str = ""


class LetterGroup(msgspec.Struct, frozen=True):
    """Letters of one topic that died of the same."""

    reason: str
    letters: int
    redriven: int
    newest_ms: int


class LetterTopic(msgspec.Struct, frozen=True):
    topic: str
    epoch: int
    end: int
    """The sum of its partitions' ends, as a purge says to have seen it."""
    groups: Sequence[LetterGroup]
    origins: Sequence[str]
    more: bool
    """Whether there are older ones that are not counted."""


class LetterTopics(msgspec.Struct, frozen=True):
    topics: Sequence[LetterTopic]
    following: str
    total: int


class LetterListAsked(Query, frozen=True, kw_only=True):
    topic: Named
    reason: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_LETTERS)] = 50


class LetterShown(msgspec.Struct, frozen=True):
    """A message that could not be delivered, and what happened to it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    reason: str
    attempts: int
    deaths: int
    first_error: str
    last_error: str
    from_topic: str
    from_partition: int
    from_offset: int
    origin: Origin
    route: str
    redriven: bool
    key: Content | None
    headers: Sequence[HeaderShown]
    value: Content


class LetterList(msgspec.Struct, frozen=True):
    epoch: int
    end: int
    letters: Sequence[LetterShown]
    """The newest first."""


class DeadLetterList:
    def __init__(self, inside: Inside) -> None:
        self._inside = inside

    @operation("GET", "/v1/letters", Role.READ)
    async def letters(self, asked: Asked[LettersAsked, None]) -> LetterTopics:
        """Topics that hold dead letters, with how many died of what."""
        query = asked.query
        page = await self._inside.bulk.topics(
            search=query.search, dead_letters=True, after=query.after, limit=MOST_TOPICS
        )
        found = []
        for topic in page.topics:
            reasons, again, newest = Counter[str](), Counter[str](), dict[str, int]()
            origins, count = dict[str, None](), 0
            async with aclosing(self._newest(topic.name)) as letters:
                async for envelope, _own, facts, redriven in letters:
                    reason = facts.reason or NO_LETTER
                    reasons[reason] += 1
                    again[reason] += redriven
                    newest[reason] = max(newest.get(reason, 0), envelope.timestamp_ms)
                    origins[facts.topic] = None
                    count += 1
                    if count >= MOST_COUNTED:
                        break
            groups = [LetterGroup(name, number, again[name], newest[name]) for name, number in reasons.most_common()]
            end = sum(one.end for one in topic.partitions)
            found.append(LetterTopic(topic.name, topic.epoch, end, groups, list(origins)[:20], count >= MOST_COUNTED))
        return LetterTopics(found, page.following, page.total)

    @operation("GET", "/v1/letters/list", Role.READ)
    async def letter_list(self, asked: Asked[LetterListAsked, None]) -> LetterList:
        """The newest dead letters of a topic, each with its history."""
        query = asked.query
        await self._inside.bulk.look_again(query.topic)
        state = self._inside.store.topics.get(query.topic)
        if state is None or query.topic not in self._inside.bulk.letters():
            raise UnknownTopic(f"{query.topic} holds no dead letters")
        found: list[LetterShown] = []
        seen = 0
        async with aclosing(self._newest(query.topic)) as letters:
            async for envelope, own, facts, redriven in letters:
                seen += 1
                if not query.reason or query.reason == (facts.reason or NO_LETTER):
                    found.append(_letter(envelope, own, facts, redriven=redriven))
                if len(found) >= query.limit or seen >= MOST_COUNTED:
                    break
        return LetterList(state.epoch, sum(one.end for one in state.partitions), found)

    async def _newest(self, topic: str) -> AsyncGenerator[tuple[Envelope, Headers, Facts, bool]]:
        # letters of a topic, partition by partition, the newest of each first
        store, done = self._inside.store, self._inside.bulk.redrives.done
        state = store.topics[topic]
        for number, partition in enumerate(state.partitions):
            end = partition.end
            while end > partition.start:
                first = max(partition.start, end - MOST_LETTERS)
                redriven = frozenset(await done(topic, state.epoch, number, first, end - first))
                page: list[Envelope] = []
                position = first
                while position < end:
                    result = await store.read(topic, number, position, end - position, READ_BYTES, 0)
                    if result.next_offset <= position:
                        break
                    position = result.next_offset
                    page += [one for run in result.runs for one in run.envelopes() if one.offset < end]
                for envelope in reversed(page):
                    own, facts = split_headers(envelope.headers)
                    yield envelope, own, facts, envelope.offset in redriven
                end = first


def _letter(envelope: Envelope, own: Headers, facts: Facts, *, redriven: bool) -> LetterShown:
    return LetterShown(
        envelope.topic,
        envelope.partition,
        envelope.offset,
        envelope.timestamp_ms,
        facts.reason or NO_LETTER,
        facts.attempts,
        facts.count,
        facts.first_error,
        facts.last_error,
        facts.topic,
        facts.partition,
        facts.offset,
        envelope.origin,
        envelope.route,
        redriven,
        content_of(envelope.key, most=1024) if envelope.key is not None else None,
        [HeaderShown(name, content_of(value, most=1024)) for name, value in own[:100]],
        content_of(envelope.value),
    )
