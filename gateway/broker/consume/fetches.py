"""Reading by offset: Fetch, at once or as soon as there is something."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import trio
from msgspec.structs import replace

from gateway.broker.administration.topics import TopicService
from gateway.broker.consume.answer_room import MUCH, AnswerRoom
from gateway.broker.consume.deliveries import Latencies, record_delivered
from gateway.broker.consume.watch import Watchers
from gateway.broker.service import Caller, Clock, Handler
from gateway.broker.timers import Pump
from gateway.envelope import PREFIX, Run
from gateway.errors import GatewayError, OffsetOutOfRange, TooLarge
from gateway.recorder import MOST_LATENCIES, FetchMeter, Recorder
from gateway.requests import Fetch, Fetched, Request, Sieve
from gateway.routing.table import RoutingTable
from gateway.store.interface import PartitionState, ReadResult, Store, TopicState

MOST_SIFTING = 2
"""Threads that look through records: whoever filters waits for others who do, and nobody else does."""
MOST_READS = 256
"""Addresses that a connection is remembered to read; who reads more is remembered anew."""


@attrs.define(eq=False)
class PlainRead:
    """Where a connection reads an address, as long as table and topic stay what they are."""

    table: object
    topic: TopicState
    route: str
    """By which the messages that it read last came in; and what is counted of those."""
    meter: FetchMeter


class FetchService:
    def __init__(
        self,
        store: Store,
        topics: TopicService,
        table: RoutingTable,
        watchers: Watchers,
        pump: Pump,
        clock: Clock,
        recorder: Recorder,
        latencies: Latencies,
        start_soon: Callable[..., None],
        room: AnswerRoom,
        refusal: Callable[[Caller, str], GatewayError | None],
    ) -> None:
        """`refusal`: why a caller may not read an address now."""
        self._store = store
        self._topics = topics
        self._table = table
        self._watchers = watchers
        self._pump = pump
        self._clock = clock
        self._recorder = recorder
        self._latencies = latencies
        self._start_soon = start_soon
        self._room = room
        self._refusal = refusal
        self._sifting = trio.CapacityLimiter(MOST_SIFTING)
        self._waiting: dict[tuple[int, int], Callable[[], None]] = {}

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {Fetch: self.fetch}

    def fetch(self, caller: Caller, request: Fetch) -> None:
        began = time.perf_counter()
        address = request.address
        way = caller.reads.get(address)
        # a reload, or a topic that is made again, puts other objects here, as where messages are published
        if (
            way is None
            or way.table is not self._table.version
            or self._store.topics.get(way.topic.name) is not way.topic
        ):
            way = self._found(caller, address)
        topic, number, offset = way.topic, request.partition, request.offset
        if not 0 <= number < len(topic.partitions):
            raise self._topics.no_partition(address, number)
        partition = topic.partitions[number]
        if offset < partition.start:
            raise OffsetOutOfRange(first=partition.start, next_offset=partition.end)
        if offset >= partition.end or request.max_messages <= 0:
            if request.hold_until is not None and request.hold_until > self._clock.now():
                self._wait(caller, request, topic.name)
            else:
                caller.answer(request.id, Fetched((), offset, partition.start, partition.end))
            return
        now_ms = self._clock.now_ms()
        # as much as was asked for where it is looked through: who finds nothing in it asks no further
        most = max(request.max_bytes, 1) if request.sieve is not None else self._room.most(request.max_bytes)
        cached = (
            self._store.read_cached(topic.name, number, offset, request.max_messages, most, now_ms)
            if most > 0
            else None
        )
        if cached is not None and request.sieve is None:
            self._answer(caller, request, way, cached, partition.start, partition.end, began, now_ms)
            return
        self._start_soon(
            caller, request, partial(self._read_on, caller, request, way, partition, cached, began, now_ms)
        )

    def cancel(self, caller: Caller, request_id: int) -> bool:
        """Answer a waiting fetch with nothing; False if none waits under that id."""
        expire = self._waiting.get((caller.id, request_id))
        if expire is None:
            return False
        expire()
        return True

    # --- inside ---

    def _found(self, caller: Caller, address: str) -> PlainRead:
        topic = self._topics.state(caller, address)
        reads = caller.reads
        # who reads so many addresses finds each again as cheaply as an order of their last use would be kept
        if len(reads) >= MOST_READS:
            reads.clear()
        way = reads[address] = PlainRead(
            self._table.version, topic, "", self._recorder.fetch_meter("", caller.listener.name)
        )
        return way

    async def _read_on(
        self,
        caller: Caller,
        request: Fetch,
        way: PlainRead,
        partition: PartitionState,
        found: ReadResult | None,
        began: float,
        now_ms: int,
    ) -> None:
        # from the disk, or through a sieve
        most, sieve = 0, request.sieve
        if found is None:
            async with self._room.turn(caller.listener.name, request.max_bytes, whole=sieve is not None) as most:
                if caller.detached:
                    return
                wanted = request.offset, request.max_messages, most, now_ms
                found = await self._store.read(way.topic.name, request.partition, *wanted)
                if sieve is None:
                    self._answer(
                        caller, request, way, found, partition.start, partition.end, began, self._clock.now_ms()
                    )
                    return
        if sieve is not None:
            with self._room.holding(most):  # others read meanwhile: to look through it takes long
                found = await self._sifted(sieve, found)
                self._answer(caller, request, way, found, partition.start, partition.end, began, self._clock.now_ms())

    async def _sifted(self, sieve: Sieve, found: ReadResult) -> ReadResult:
        runs, ended = await trio.to_thread.run_sync(sieve, found.runs, limiter=self._sifting, abandon_on_cancel=True)
        return replace(found, runs=runs, next_offset=found.next_offset if ended is None else ended)

    def _wait(self, caller: Caller, request: Fetch, topic: str) -> None:
        key = (caller.id, request.id)

        def stop() -> None:
            del self._waiting[key]
            self._watchers.remove(topic, key)
            cancel_timer()

        def again() -> None:
            if key not in self._waiting:
                return
            state = self._store.topics.get(topic)
            grown = state is None or request.offset < state.partitions[request.partition].end
            if grown:
                stop()
                self._start_soon(caller, request, lambda: self._retry(caller, request))

        def expire() -> None:
            if key in self._waiting:
                stop()
                caller.answer(request.id, Fetched((), request.offset, 0, request.offset))

        assert request.hold_until is not None
        cancel_timer = self._pump.call_at(request.hold_until, expire)
        self._waiting[key] = expire
        self._watchers.add(topic, key, again)
        caller.on_detach(expire)

    async def _retry(self, caller: Caller, request: Fetch) -> None:
        refusal = self._refusal(caller, request.address)
        if refusal is not None:
            raise refusal
        self.fetch(caller, replace(request, hold_until=None))

    def _answer(
        self,
        caller: Caller,
        request: Fetch,
        way: PlainRead,
        result: ReadResult,
        start: int,
        end: int,
        began: float,
        now_ms: int,
    ) -> None:
        runs, next_offset = result.runs, result.next_offset
        limit, overhead = request.value_limit, request.record_overhead
        route, count, size, following, times = _alike(runs)
        if (
            count
            and (limit is None or size <= limit)
            and (not overhead or size + (overhead - PREFIX) * count <= request.max_bytes)
        ):
            # what is left in memory of a few batches, as most reads at the end of a log find: all of it is within the bounds
            listener = caller.listener
            if route != way.route:
                way.route, way.meter = route, self._recorder.fetch_meter(route, listener.name)
            if size >= MUCH:
                self._room.given(size)
            meter = way.meter
            meter.delivered_messages += count
            meter.delivered_bytes += size - PREFIX * count
            self._latencies.add_all(route, way.topic.name, listener.protocol, times, count, now_ms)
            latencies = meter.latencies
            latencies.append(time.perf_counter() - began)
            if len(latencies) >= MOST_LATENCIES:
                meter.collect()
            caller.answer(request.id, Fetched(runs, next_offset if request.allow_gaps else following, start, end))
            return
        if limit is not None:
            runs, next_offset = _carriable(runs, next_offset, limit)
        if overhead:
            runs, next_offset = _within(runs, next_offset, request.max_bytes, overhead)
        if not request.allow_gaps:
            runs, next_offset = _gapless(runs, next_offset)
        if runs:
            self._room.given(sum([len(run.columns.packed) for run in runs]))
            record_delivered(self._recorder, self._latencies, runs, caller.listener, now_ms)
        self._recorder.fetch_latency(caller.listener.name, time.perf_counter() - began)
        caller.answer(request.id, Fetched(runs, next_offset, start, end))


def _alike(runs: Sequence[Run]) -> tuple[str, int, int, int, Sequence[Sequence[int]]]:
    # route, records, bytes, the offset behind them and the times of runs that follow each other without a gap, each of one
    # batch, all by one route; no records where it is not so
    if not runs:
        return _NOTHING_ALIKE
    first = runs[0]
    route, following = first.batches[0][2].route, first.base_offset
    count = size = 0
    times = []
    for run in runs:
        batches, columns = run.batches, run.columns
        if run.base_offset != following or len(batches) != 1 or batches[0][2].route != route:
            return _NOTHING_ALIKE
        more = columns.count
        count += more
        following += more
        size += len(columns.packed)
        times.append(run.times)
    return route, count, size, following, times


_NOTHING_ALIKE: tuple[str, int, int, int, Sequence[Sequence[int]]] = ("", 0, 0, 0, ())


def _cut(runs: Sequence[Run], position: int, count: int) -> tuple[Sequence[Run], int]:
    # keep the runs before `position` and `count` records of that one
    kept = list(runs[:position])
    run = runs[position]
    if count:
        kept.append(run.slice(0, count))
    return kept, run.base_offset + count


def _carriable(runs: Sequence[Run], next_offset: int, limit: int) -> tuple[Sequence[Run], int]:
    # end before the first value that the reader's protocol cannot carry; refuse when that is the first of all
    for position, run in enumerate(runs):
        if len(run.columns.packed) <= limit:
            continue
        before = 0
        for index, end in enumerate(run.columns.ends):
            if end - before - PREFIX > limit:
                if position == 0 and index == 0:
                    offset = run.base_offset
                    raise TooLarge(
                        f"the record at offset {offset} has {end - before - PREFIX} bytes, more than this protocol can "
                        f"carry; read on from offset {offset + 1}"
                    )
                return _cut(runs, position, index)
            before = end
    return runs, next_offset


def _within(runs: Sequence[Run], next_offset: int, max_bytes: int, overhead: int) -> tuple[Sequence[Run], int]:
    # end where the values plus a cost for each record exceed the limit; the first record always fits
    left = max_bytes
    for position, run in enumerate(runs):
        ends = run.columns.ends
        extra = overhead - PREFIX
        whole = ends[-1] + extra * run.columns.count
        if whole <= left:
            left -= whole
            continue
        fitting = bisect_right(range(run.columns.count), left, key=lambda index: ends[index] + extra * (index + 1))
        return _cut(runs, position, max(fitting, 1) if position == 0 else fitting)
    return runs, next_offset


def _gapless(runs: Sequence[Run], next_offset: int) -> tuple[Sequence[Run], int]:
    # end before the first record that does not follow the one before it
    for position in range(1, len(runs)):
        if runs[position].base_offset != runs[position - 1].next_offset:
            return runs[:position], runs[position - 1].next_offset
    if runs and next_offset != runs[-1].next_offset:
        return runs, runs[-1].next_offset
    return runs, next_offset
