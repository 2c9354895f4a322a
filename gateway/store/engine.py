"""The store that everything else talks to: the `Store` interface over the committer, the tail cache and the readers.

Apart from `sqlite`, which opens and closes what this is made of.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, TypeVarTuple

from gateway.envelope import Run, total_count
from gateway.errors import CorruptChunk, GatewayError, OffsetOutOfRange, UnknownPartition, UnknownTopic
from gateway.recorder import Recorder
from gateway.store.catalogue import Log
from gateway.store.committer import Committer
from gateway.store.cut import gather
from gateway.store.interface import Capabilities, Durability, ReadResult, Stored, StoreHealth, Ticket, TopicState, Unit
from gateway.store.loop import CommitLoop
from gateway.store.lost import LostRows
from gateway.store.maintenance import Maintenance, RetentionFloor
from gateway.store.plan import check_unit
from gateway.store.pool import Leftovers, ReadPool, reported
from gateway.store.raw import read_stored
from gateway.store.rows import RowsPlace, get_row, hole, offset_for_time, read_runs, scan_rows
from gateway.store.visible import Visible

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Engine:
    def __init__(
        self,
        visible: Visible,
        committer: Committer,
        maintenance: Maintenance,
        pool: ReadPool,
        leftovers: Leftovers,
        recorder: Recorder,
        loop: CommitLoop | None = None,
    ) -> None:
        self.committer = committer
        self._loop = loop
        self._visible = visible
        self._topics = visible.catalogue.topics
        self.topics: Mapping[str, TopicState] = self._topics
        """Every topic as of the last commit that is visible."""
        self.hold: Callable[[], None] = loop.hold if loop is not None else lambda: None
        self.release: Callable[[int], None] = loop.release if loop is not None else lambda _by: None
        self._maintenance = maintenance
        self._pool = pool
        self._leftovers = leftovers
        self._recorder = recorder
        self._queued_creates: set[str] = set()
        """Topics that a unit which is on its way may make: a memory topic of that name must not overtake it."""

    @property
    def capabilities(self) -> Capabilities:
        """Atomic over everything, dense, one writer."""
        return Capabilities()

    @property
    def health(self) -> StoreHealth:
        return self.committer.health

    @property
    def lost(self) -> LostRows:
        return self._visible.catalogue.lost

    # --- writing ---

    def submit(self, unit: Unit, done: Callable[[Ticket], None] | None = None, /) -> Ticket:
        """Queue a unit. What concerns memory topics alone is done when this returns."""
        ticket = Ticket(unit, done)
        appends = unit.appends
        if appends and not (unit.puts or unit.requires or unit.alters or unit.deletes):
            topic = self._topics.get(appends[0].topic)
            if topic is not None and topic.memory and len(appends) == 1 and not unit.creates:
                placement = self._visible.memory.lone(topic, appends[0])
                if placement is not None:
                    self._visible.announce(((topic.name, appends[0].partition),))
                    ticket.finish((placement,))
                    return ticket
            if (topic.memory if topic is not None else unit.creates) and self._in_memory(unit):
                self._submit_memory(ticket)
                return ticket
        elif (
            unit.creates
            and self._makes_memory(unit)
            and not (unit.puts or unit.requires or unit.alters or unit.deletes)
        ):
            self._submit_memory(ticket)
            return ticket
        if unit.creates:
            self._queue_creates(ticket)
        self.committer.submit(ticket)
        return ticket

    def _in_memory(self, unit: Unit) -> bool:
        # whether a unit appends to memory topics and nothing else, those that it makes among them
        fresh = [create.topic for create in unit.creates if create.topic not in self._topics]
        if fresh and not self._makes_memory(unit):
            return False
        for append in unit.appends:
            topic = self._topics.get(append.topic)
            if not (topic.memory if topic is not None else append.topic in fresh):
                return False
        return True

    def _makes_memory(self, unit: Unit) -> bool:
        return bool(unit.creates) and all(
            create.config.durability is Durability.MEMORY and create.topic not in self._queued_creates
            for create in unit.creates
            if create.topic not in self._topics
        )

    def _queue_creates(self, ticket: Ticket) -> None:
        names = [create.topic for create in ticket.unit.creates if create.topic not in self._queued_creates]
        self._queued_creates.update(names)
        ticket.on_done(lambda _ticket: self._queued_creates.difference_update(names))

    def _submit_memory(self, ticket: Ticket) -> None:
        unit = ticket.unit
        try:
            check_unit(unit, self._topics.get)
        except GatewayError as error:
            ticket.finish(error=error)
            return
        placements, grown = self._visible.memory.apply(unit)
        self._visible.announce(grown)
        ticket.finish(placements)

    def on_visible(self, callback: Callable[[Iterable[tuple[str, int]]], None]) -> None:
        self._visible.on_visible(callback)

    def around_tickets(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self.committer.around.append((before, after))

    def on_rows(self, table: str, callback: Callable[[Mapping[bytes, bytes | None]], None]) -> None:
        """Nobody else writes."""

    @property
    def slots(self) -> int:
        return 1

    taken_for_dead = False

    @property
    def member(self) -> bytes:
        return b""

    def on_slots(self, callback: Callable[[frozenset[int]], None]) -> None:
        """There is one writer."""
        callback(frozenset({0}))

    async def serving(self) -> Mapping[bytes, frozenset[int]]:
        return {}

    async def fence(self, member: bytes) -> None:
        """Nobody else writes."""

    def current(self, topic: str) -> bool:  # noqa: ARG002  # of all topics
        """What this process has committed is all there is."""
        return True

    async def refresh(self, topic: str) -> None:
        """There is nothing newer to ask for."""

    async def refresh_ends(self, topics: Iterable[str]) -> None:
        """There is nothing newer to ask for."""

    def watch(self, topic: str) -> None:
        """Every commit is told anyway."""

    def unwatch(self, topic: str) -> None:
        """See `watch`."""

    def set_retention_floor(self, floor: RetentionFloor) -> None:
        self._maintenance.floor = floor

    def maintain(self) -> None:
        """Retention, merging, syncing and healing, here and now; the store with a task is only told to look."""
        if self._loop is not None:
            self.sweep()
            return
        self._maintenance.sweep()
        self.committer.maintain()

    def sweep(self) -> None:
        """Look for records that have grown too old, and have them removed."""
        if self._maintenance.sweep() and self._loop is not None:
            self._loop.wake()

    # --- reading ---

    def _log(self, topic: str, partition: int) -> Log:
        found = self._topics.get(topic)
        if found is None:
            raise UnknownTopic
        if not 0 <= partition < len(found.logs):
            raise UnknownPartition
        return found.logs[partition]

    def read_cached(
        self, topic: str, partition: int, offset: int, max_messages: int, max_bytes: int, now_ms: int
    ) -> ReadResult | None:
        found = self._topics.get(topic)
        if found is None or not 0 <= partition < len(found.logs):
            return None
        log = found.logs[partition]
        state = log.state
        if offset >= state.end or max_messages <= 0:
            return ReadResult((), offset)
        if offset < state.start:
            return None
        runs = log.hot.since(offset)
        if runs is None and log.unposted and offset >= log.unposted[0].base_offset:
            runs = _unposted(log, offset)
        if runs is not None:
            return gather(runs, offset, max_messages, max_bytes, now_ms)
        left = self._leftovers.get(log, offset)
        if left is None:
            return None
        following = log.hot.since(left.next_offset) if left.next_offset < state.end else ()
        result = gather([left, *(following or ())], offset, max_messages, max_bytes, now_ms)
        if following is None and result.next_offset == left.next_offset and total_count(result.runs) < max_messages:
            return None  # more is wanted than what is left of the chunk, and the rest is on disk
        self._leftovers.move(log, offset, result.next_offset)
        return result

    async def read(
        self, topic: str, partition: int, offset: int, max_messages: int, max_bytes: int, now_ms: int
    ) -> ReadResult:
        log = self._log(topic, partition)
        cached = self.read_cached(topic, partition, offset, max_messages, max_bytes, now_ms)
        if cached is not None:
            return cached
        _check_start(self._topics.get(log.topic.name), log, offset)
        try:
            return await self._read_disk(log, offset, max_messages, max_bytes, now_ms)
        except CorruptChunk as damage:
            self._recorder.damaged(damage.topic, damage.partition, damage.first, damage.next_offset)
            raise

    async def _read_disk(self, log: Log, offset: int, max_messages: int, max_bytes: int, now_ms: int) -> ReadResult:
        topic, partition = log.key
        place = RowsPlace(topic, partition, log.slot, log.stored_end)
        unposted = log.unposted[:]
        left = self._leftovers.get(log, offset)
        if left is None:
            runs = await self._from_disk(log, read_runs, place, offset, max_messages, max_bytes, now_ms)
        else:
            rest = await self._from_disk(log, read_runs, place, left.next_offset, max_messages, max_bytes, now_ms, True)
            runs = [left, *rest]
        if not runs:
            _check_start(self._topics.get(log.topic.name), log, offset)
            raise CorruptChunk(topic, partition, *await self._pool.run(hole, place, offset))
        behind = unposted if runs[-1].next_offset == place.end else ()
        result = gather([*runs, *behind], offset, max_messages, max_bytes, now_ms)
        self._leftovers.forget(log, offset)
        last = runs[-1]
        if last.next_offset == log.state.end and not len(log.hot):
            self._visible.keep_tail(log, last)  # after a restart: who reads the end of a log will read it again
        elif last.base_offset < result.next_offset < last.next_offset:
            self._leftovers.keep(log, result.next_offset, last)
        return result

    async def read_stored(
        self, topic: str, partition: int, offset: int, max_messages: int, max_bytes: int
    ) -> Sequence[Stored]:
        log = self._log(topic, partition)
        if log.topic.memory:
            return ()
        place = RowsPlace(topic, partition, log.slot, log.stored_end)
        if offset >= place.end:
            return ()
        return await self._from_disk(log, read_stored, place, offset, max_messages, max_bytes)

    async def _from_disk(self, log: Log, work: Callable[..., T], *args: object) -> T:
        # a read that may find its records trimmed or its topic gone meanwhile
        result = await self._pool.run(work, *args)
        if self._topics.get(log.topic.name) is not log.topic:
            raise UnknownTopic
        return result

    async def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        log = self._log(topic, partition)
        state = log.state
        if state.start == state.end or timestamp_ms > state.last_time_ms:
            return state.end
        oldest = log.hot.first
        if oldest is not None and (log.topic.memory or oldest.times[0] < timestamp_ms):
            run = log.hot.position_of_time(timestamp_ms)
            if run is not None:
                return run.base_offset + next(i for i, time in enumerate(run.times) if time >= timestamp_ms)
        unposted = log.unposted[:]
        place = RowsPlace(topic, partition, log.slot, log.stored_end)
        found = place.end
        if place.end > state.start:
            found = await self._from_disk(log, offset_for_time, place, state.start, timestamp_ms)
        if found < place.end or not unposted:
            return found
        run = next(run for run in unposted if run.times[-1] >= timestamp_ms)
        return run.base_offset + next(i for i, time in enumerate(run.times) if time >= timestamp_ms)

    def table(self, name: str) -> Mapping[bytes, bytes]:
        with reported():
            return self._visible.table(name, self._pool.direct)

    async def scan(self, table: str, first: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        return await self._pool.run(scan_rows, table, first, limit)

    async def get(self, table: str, key: bytes) -> bytes | None:
        return await self._pool.run(get_row, table, key)


def _unposted(log: Log, offset: int) -> Iterator[Run]:
    # the records from an offset on that are in the journal only
    position = bisect_right(log.unposted, offset, key=lambda run: run.base_offset) - 1
    return iter(log.unposted[position:])


def _check_start(known: object, log: Log, offset: int) -> None:
    # `known`: the topic that has the log's name now
    if known is not log.topic:
        raise UnknownTopic
    if offset < log.state.start:
        raise OffsetOutOfRange(first=log.state.start, next_offset=log.state.end)
