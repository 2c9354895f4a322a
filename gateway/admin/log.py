"""The log over the API: topics, ranges, appends, consumer groups, dead letters that are sent again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import msgspec

from gateway.admin.access import Role
from gateway.admin.operation import Asked, Large, Life, Nothing, Query, Small, Streamed, operation
from gateway.bulk import wire
from gateway.bulk.ranges import RangeAsked
from gateway.bulk.service import Bulk
from gateway.errors import InvalidRequest
from gateway.requests import GroupReset

MOST_OFFSETS = 10_000
MOST_TOPICS = 1_000
"""Topics in one answer."""

Named = Annotated[str, msgspec.Meta(min_length=1)]


class TopicsAsked(Query, frozen=True, kw_only=True):
    name: str = ""
    """The topic of this name alone."""
    search: str = ""
    """Only those whose names contain this."""
    dead_letters: bool | None = None
    """Only those that hold dead letters, or only the others."""
    after: str = ""
    """Go on behind this name: `following` of the answer before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOPICS)] = MOST_TOPICS


class PurgeAsked(Query, frozen=True, kw_only=True):
    name: Named
    epoch: Life = 0
    end: Large | None = None
    """The sum of its partitions' ends: only while they are this, and the epoch that."""


class LogAsked(Query, frozen=True, kw_only=True):
    topic: Named
    partition: Small = 0
    start: Large = 0
    end: Large | None = None
    max_bytes: Large = 0
    epoch: Life | None = None


class TimeAsked(Query, frozen=True, kw_only=True):
    topic: Named
    timestamp_ms: Large
    partition: Small = 0


class ProducerAsked(Query, frozen=True, kw_only=True):
    producer: Named


class GroupsAsked(Query, frozen=True, kw_only=True):
    group: str = ""
    topic: str = ""
    start: str = msgspec.field(default="", name="from")
    """What an earlier answer called `following`."""


class RedrivenAsked(Query, frozen=True, kw_only=True):
    topic: Named
    epoch: Life
    partition: Small
    first: Large


class StoredLog:
    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk

    @operation("GET", wire.TOPICS, Role.READ)
    async def topics(self, asked: Asked[TopicsAsked, None]) -> wire.TopicSnapshots:
        """Topics with their settings and the first and next offset of each partition, a page at a time, by name."""
        query = asked.query
        return await self._bulk.topics(
            query.name,
            search=query.search,
            dead_letters=query.dead_letters,
            after=query.after,
            limit=query.limit,
        )

    @operation("DELETE", wire.TOPICS, Role.ADMINISTER)
    async def purge(self, asked: Asked[PurgeAsked, None]) -> wire.TopicSnapshots:
        """Drop a topic of dead letters, and all that are in it."""
        query = asked.query
        await self._bulk.purge(query.name, (query.epoch, query.end) if query.end is not None else None)
        return wire.TopicSnapshots(())

    @operation("GET", wire.LOG, Role.READ, media=(wire.ARROW, wire.CHUNKS))
    async def log(self, asked: Asked[LogAsked, None]) -> Streamed:
        """A range of one partition, in the encoding that the client accepts."""
        query, ranges = asked.query, self._bulk.ranges
        wanted = RangeAsked(query.topic, query.partition, query.start, query.end, query.max_bytes, query.epoch)
        if not ranges.knows(wanted):
            await self._bulk.look_again(query.topic)
        ranges.find(wanted)  # what is wrong with the question is said before the answer begins
        if wire.CHUNKS in asked.accept:
            return Streamed(ranges.chunks(wanted), wire.CHUNKS)
        stream = ranges.arrow(wanted)
        return Streamed(_begun(await anext(stream), stream), wire.ARROW)

    @operation("GET", wire.OFFSET_FOR_TIME, Role.READ)
    async def offset_for_time(self, asked: Asked[TimeAsked, None]) -> wire.OffsetFound:
        """The first offset stored at or after a time."""
        query = asked.query
        return wire.OffsetFound(await self._bulk.offset_for_time(query.topic, query.partition, query.timestamp_ms))

    @operation("POST", wire.APPEND, Role.ADMINISTER)
    async def append(self, asked: Asked[Nothing, wire.AppendRequest]) -> wire.Appended:
        """Publish messages to one address, by the routes; the same (producer, epoch, sequence) once, however often."""
        caller = self._bulk.caller(asked.peer, asked.body.protocol, asked.body.listener)
        return await self._bulk.appends.append(caller, asked.body)

    @operation("GET", wire.PRODUCER, Role.READ)
    async def producer(self, asked: Asked[ProducerAsked, None]) -> wire.Producer:
        """The last append of a producer."""
        return await self._bulk.appends.producer(asked.query.producer)

    @operation("POST", wire.REDRIVE, Role.OPERATE)
    async def redrive(self, asked: Asked[Nothing, wire.Redrive]) -> wire.RedriveResult:
        """Publish dead letters again, each at most once."""
        caller = self._bulk.caller(asked.peer, asked.body.protocol, asked.body.listener)
        return wire.RedriveResult(await self._bulk.redrives.redrive(caller, asked.body))

    @operation("GET", wire.REDRIVEN, Role.READ)
    async def redriven(self, asked: Asked[RedrivenAsked, None]) -> wire.Offsets:
        """The offsets of dead letters that were published again, ascending."""
        query = asked.query
        found = await self._bulk.redrives.done(query.topic, query.epoch, query.partition, query.first, MOST_OFFSETS)
        return wire.Offsets(found)

    @operation("GET", wire.GROUPS, Role.READ)
    async def groups(self, asked: Asked[GroupsAsked, None]) -> wire.GroupPositions:
        """Where consumer groups are, a page at a time."""
        query = asked.query
        try:
            first = bytes.fromhex(query.start)
        except ValueError:
            raise InvalidRequest(f"from: what an earlier answer called `following`, not {query.start!r}") from None
        return await self._bulk.groups(first, query.group, query.topic)

    @operation("POST", wire.RESET_GROUP, Role.OPERATE)
    async def reset_group(self, asked: Asked[Nothing, GroupReset]) -> wire.GroupMoves:
        """Put a consumer group elsewhere on a topic; with `dry_run`, say where it would be."""
        return await self._bulk.reset_group(asked.body)


async def _begun(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield first
        async for part in rest:
            yield part
