"""Dead letters as the command line sees them: found, chosen, and described."""

from __future__ import annotations

import datetime as dt
import math
import re
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs
import msgspec

from gateway.broker.letters import Facts, letters_topic, split_headers
from gateway.bulk.wire import Redrive, Redriven, TopicSnapshot
from gateway.envelope import Envelope, Headers
from gateway.errors import InvalidRequest, UnknownTopic
from gateway.pipeline.endpoint import EndpointLog, EndpointWriter

AT_A_TIME = 100
"""Letters in one request of a redrive that is not slowed down."""
NO_LETTER = "(no dead letter)"
"""The reason of a message that somebody put there by hand."""


@attrs.frozen
class Letter:
    envelope: Envelope
    headers: Headers
    """The headers that the message came with."""
    facts: Facts
    redriven: bool

    @property
    def id(self) -> str:
        """As FlyMQ names it too."""
        return f"{self.envelope.partition}:{self.envelope.offset}"

    def as_json(self) -> dict[str, object]:
        """For programs; bytes in base64."""
        envelope, facts = self.envelope, self.facts
        return {
            "topic": envelope.topic,
            "id": self.id,
            "timestamp_ms": envelope.timestamp_ms,
            "reason": facts.reason,
            "attempts": facts.attempts,
            "deaths": facts.count,
            "first_error": facts.first_error,
            "last_error": facts.last_error,
            "origin": {
                "topic": facts.topic,
                "partition": facts.partition,
                "offset": facts.offset,
                **msgspec.structs.asdict(envelope.origin),
                "route": envelope.route,
            },
            "expires_ms": facts.expires_ms,
            "redriven": self.redriven,
            "key": b64encode(envelope.key).decode() if envelope.key is not None else None,
            "headers": [[name, b64encode(value).decode()] for name, value in self.headers],
            "value": b64encode(envelope.value).decode(),
        }

    def as_text(self) -> str:
        envelope, facts, origin = self.envelope, self.facts, self.envelope.origin
        deaths = f", died {facts.count} times" if facts.count > 1 else ""
        lines = [
            f"{self.id}  {_when(envelope.timestamp_ms)}  {facts.reason or NO_LETTER}"
            + (f" after {facts.attempts} attempts" if facts.attempts else "")
            + deaths
            + (", redriven" if self.redriven else "")
        ]
        if facts.topic:
            sender = " ".join(
                part for part in (origin.protocol, origin.listener, origin.principal, origin.client) if part
            )
            lines.append(
                f"  from   {facts.topic}/{facts.partition} at {facts.offset}, sent by {sender}, route {envelope.route}"
            )
        if facts.first_error not in ("", facts.reason):
            lines.append(f"  first  {facts.first_error}")
        if facts.last_error not in ("", facts.reason, facts.first_error):
            lines.append(f"  last   {facts.last_error}")
        if envelope.key is not None:
            lines.append(f"  key    {_shown(envelope.key)}")
        lines += [f"  header {name}: {_shown(value)}" for name, value in self.headers]
        lines.append(f"  value  {_shown(envelope.value)}")
        return "\n".join(lines)


def _when(timestamp_ms: int) -> str:
    return dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _shown(data: bytes, most: int = 200) -> str:
    text = data[:most].decode(errors="backslashreplace")
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return text + (f"... ({len(data)} bytes)" if len(data) > most else "")


@attrs.frozen
class Choice:
    """Which letters of a topic."""

    reasons: Collection[str] = ()
    """Only letters with one of these reasons; empty for any."""
    ids: Mapping[int, Collection[int]] | None = None
    """Offsets by partition; None: all."""

    @classmethod
    def of(cls, reasons: Sequence[str], ids: Sequence[str]) -> Choice:
        """Check what was written. Raises InvalidRequest."""
        chosen: dict[int, set[int]] = {}
        for text in ids:
            match = re.fullmatch(r"(\d{1,9}):(\d{1,18})", text)
            if match is None:
                raise InvalidRequest(f"the id of a letter is PARTITION:OFFSET, not {text!r}")
            chosen.setdefault(int(match[1]), set()).add(int(match[2]))
        return cls(frozenset(reasons), chosen if ids else None)


def find(log: EndpointLog, name: str) -> TopicSnapshot:
    """A dead-letter topic, by its own name or that of the topic whose letters it holds. Raises UnknownTopic."""
    for candidate in (name, letters_topic(name)):
        for topic in log.described(candidate):
            if topic.dead_letters:
                return topic
    raise UnknownTopic(f"there are no dead letters of {name}, nor is it a topic that holds any: see gateway dlq list")


def count_letters(log: EndpointLog, topic: TopicSnapshot) -> int:
    """Without a look at each, where their offsets say it."""
    if log.dense_offsets:
        return sum(one.end - one.start for one in topic.partitions)
    return sum(
        run.count for one in topic.partitions for run in log.read_chunks(topic.name, one.number, one.start, one.end)
    )


def letters(log: EndpointLog, topic: TopicSnapshot, choice: Choice) -> Iterator[Letter]:
    for partition in topic.partitions:
        wanted = choice.ids.get(partition.number, ()) if choice.ids is not None else None
        start = max(min(wanted), partition.start) if wanted else partition.start
        end = min(max(wanted) + 1, partition.end) if wanted else partition.end
        if start >= end or wanted == ():
            continue
        redriven = frozenset(log.redriven(topic.name, topic.epoch, partition.number))
        for run in log.read_chunks(topic.name, partition.number, start, end):
            for envelope in run.envelopes():
                if wanted is not None and envelope.offset not in wanted:
                    continue
                own, facts = split_headers(envelope.headers)
                if not choice.reasons or facts.reason in choice.reasons:
                    yield Letter(envelope, own, facts, envelope.offset in redriven)


@attrs.define
class Summary:
    topic: str
    letters: int = 0
    redriven: int = 0
    reasons: Counter[str] = attrs.Factory(Counter)
    origins: Counter[str] = attrs.Factory(Counter)
    oldest_ms: int | None = None


def summary(log: EndpointLog, topic: TopicSnapshot) -> Summary:
    found = Summary(topic.name)
    for letter in letters(log, topic, Choice()):
        found.letters += 1
        found.redriven += letter.redriven
        found.reasons[letter.facts.reason or NO_LETTER] += 1
        found.origins[letter.facts.topic or "?"] += 1
        written = letter.envelope.timestamp_ms
        found.oldest_ms = written if found.oldest_ms is None else min(found.oldest_ms, written)
    return found


class Pace:
    """Waits so that no more than `rate` a second are sent, in even steps."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._started = time.monotonic()
        self._done = 0
        # at least a few requests a second, so that somebody who watches sees it go on
        self.step = AT_A_TIME if rate is None else max(1, min(AT_A_TIME, math.floor(rate / 4)))

    def wait(self, count: int) -> None:
        """Before the next `count`: wait until they are due."""
        if self._rate is not None:
            due = self._started + self._done / self._rate
            threading.Event().wait(max(0.0, due - time.monotonic()))
        self._done += count


def redrive(
    log: EndpointLog,
    out: EndpointWriter,
    topic: TopicSnapshot,
    choice: Choice,
    asked: Redrive,
    rate: float | None,
    limit: int | None,
) -> Iterator[tuple[str, Redriven]]:
    """Publish the letters that are meant again; yields the id of each and what became of it."""
    pace = Pace(rate)
    held: list[tuple[int, int]] = []
    taken = 0

    def send() -> Iterator[tuple[str, Redriven]]:
        partition = held[0][0]
        pace.wait(len(held))
        request = msgspec.structs.replace(asked, partition=partition, offsets=[offset for _partition, offset in held])
        for result in out.redrive(request):
            yield f"{partition}:{result.offset}", result
        held.clear()

    for letter in letters(log, topic, choice):
        if letter.redriven:
            yield letter.id, Redriven(letter.envelope.offset, "before")
            continue
        if limit is not None and taken >= limit:
            break
        if held and (held[0][0] != letter.envelope.partition or len(held) >= pace.step):
            yield from send()
        held.append((letter.envelope.partition, letter.envelope.offset))
        taken += 1
    if held:
        yield from send()
