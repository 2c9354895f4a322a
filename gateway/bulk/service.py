"""The bulk side of the admin API, without HTTP: topics, ranges, appends, dead letters. One object for a running gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import attrs
import trio

from gateway.broker.assembly import House
from gateway.broker.consume import group_offsets
from gateway.broker.letters import SUFFIX
from gateway.broker.service import Caller, ListenerInfo
from gateway.bulk import wire
from gateway.bulk.appends import Appends
from gateway.bulk.ranges import RangeAsked, Ranges
from gateway.bulk.redrive import Redrives
from gateway.envelope import Origin
from gateway.errors import ConditionFailed, Conflict, InvalidRequest, StoreError, StoreReadOnly, UnknownTopic
from gateway.requests import Completion, GroupReset
from gateway.routing.table import RoutingTable
from gateway.store.interface import DropTopic, Store, TopicState, Unit

LISTENER, PROTOCOL = "admin", "bulk"
"""Where what is appended here came in, as the log and the metrics tell it."""
SWEEP_SECONDS = 3600.0
GROUPS_AT_A_TIME = 1_000
"""Rows of committed offsets in one answer."""
_ANYWHERE = 1 << 62


@attrs.frozen
class Listeners:
    """The protocols of each configured listener, to write to their addresses."""

    protocols: Mapping[str, Sequence[str]]

    def info(self, protocol: str, listener: str) -> ListenerInfo:
        """The listener whose clients' addresses are meant. Raises InvalidRequest."""
        if not protocol and not listener:
            return ListenerInfo(LISTENER, PROTOCOL)
        for name, spoken in self.protocols.items():
            if listener in ("", name) and (not protocol or protocol in spoken):
                return ListenerInfo(name, protocol or spoken[0])
        wanted = " ".join(part for part in (protocol, listener) if part)
        raise InvalidRequest(f"no listener {wanted}; there are {', '.join(self.protocols) or 'none'}")


class Bulk:
    def __init__(self, store: Store, house: House, table: RoutingTable, listeners: Listeners) -> None:
        self._store = store
        self._house = house
        self._table = table
        self._listeners = listeners
        self.ranges = Ranges(store)
        self.appends = Appends(store, house.pipeline, house.appending, house.clock)
        self.redrives = Redrives(store, house.pipeline, house.appending, house.clock)

    def caller(self, peer: str, protocol: str = "", listener: str = "") -> Caller:
        """Who publishes: routed like a client of that listener, remembered as what it is."""
        client = self._house.broker.attach(self._listeners.info(protocol, listener), peer, _nobody_asks)
        client.origin = Origin(PROTOCOL, LISTENER, "", peer)
        return client

    async def look_again(self, *topics: str) -> None:
        """Let what is known of these topics be of now: others may write to the same log. What is known will do while nobody
        answers who could say more, and is not waited for where that is so already.
        """
        if self._store.health.writable:
            with contextlib.suppress(StoreReadOnly):
                for one in topics:
                    if one not in self._store.topics:
                        await self._store.refresh(one)
                await self._store.refresh_ends(topics)

    async def topics(
        self,
        name: str = "",
        *,
        search: str = "",
        dead_letters: bool | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> wire.TopicSnapshots:
        """A page of the topics that are asked for, by name."""
        if name:
            await self.look_again(name)
        letters, topics = self.letters(), self._store.topics
        dense = self._store.capabilities.dense_offsets
        if name:
            state = topics.get(name)
            found = [_topic(state, letters)] if state is not None else []
            return wire.TopicSnapshots(found, dense, total=len(found))
        wanted = search.casefold()
        names = [
            one
            for one in topics
            if (not wanted or wanted in one.casefold()) and (dead_letters is None or dead_letters is (one in letters))
        ]
        rest = sorted(one for one in names if one > after)
        page = rest[:limit]
        following = page[-1] if len(page) < len(rest) else ""
        await self.look_again(*page)
        found = [_topic(state, letters) for one in page if (state := topics.get(one)) is not None]
        return wire.TopicSnapshots(found, dense, following, len(names))

    async def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        await self.look_again(topic)
        self.ranges.find(RangeAsked(topic, partition, _ANYWHERE))
        return await self._store.offset_for_time(topic, partition, timestamp_ms)

    async def groups(self, first: bytes, group: str = "", topic: str = "") -> wire.GroupPositions:
        """Where groups are, a page of all their rows at a time, of which these are kept."""
        rows = await self._store.scan(group_offsets.TABLE, first, GROUPS_AT_A_TIME)
        following = (rows[-1][0] + b"\0").hex() if len(rows) == GROUPS_AT_A_TIME else ""
        await self.look_again(*group_offsets.topics_of(rows, group=group, topic=topic) & self._store.topics.keys())
        found = group_offsets.positions(rows, self._store.topics, group=group, topic=topic)
        return wire.GroupPositions(found, following)

    async def reset_group(self, asked: GroupReset) -> wire.GroupMoves:
        await self.look_again(asked.topic)
        return wire.GroupMoves(await self._house.groups.reset(asked))

    async def purge(self, name: str, seen: tuple[int, int] | None = None) -> None:
        """Drop dead letters, with their topic. `seen`: its epoch and the sum of its ends; not if letters have come since."""
        if name not in self._store.topics:
            raise UnknownTopic(f"there is no topic {name}")
        if name not in self.letters():
            raise InvalidRequest(f"{name} does not hold dead letters")
        for objection in self._house.topics.before_delete:
            reason = objection(name)
            if reason is not None:
                raise Conflict(reason)
        try:
            await self._store.submit(Unit(deletes=[DropTopic(name, seen)])).wait()
        except ConditionFailed:
            raise Conflict(f"letters have come to {name} since it was looked at: nothing is dropped") from None
        for callback in self._house.topics.after_delete:
            callback(name)
        await self.redrives.forget()

    async def run(self, stop: trio.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(StoreError):  # read-only: there will be another time
                await self.appends.sweep()
                await self.redrives.forget()
            with trio.move_on_after(SWEEP_SECONDS):
                await stop.wait()

    def letters(self) -> frozenset[str]:
        topics = self._store.topics
        named = {rule.dead_letter(topic) for rule in self._table.forwards for topic in topics}
        return frozenset(name for name in topics if name.endswith(SUFFIX) or name in named)


def _nobody_asks(_completions: Sequence[Completion]) -> None:
    """Publishing here ends with a ticket, not with a completion."""


def _topic(state: TopicState, letters: frozenset[str]) -> wire.TopicSnapshot:
    config = state.config
    return wire.TopicSnapshot(
        state.name,
        state.epoch,
        [
            wire.Partition(number, one.start, one.end, one.last_time_ms, one.bytes)
            for number, one in enumerate(state.partitions)
        ],
        config.durability.value,
        config.retention_seconds,
        config.retention_bytes,
        config.schema,
        state.name in letters,
    )
