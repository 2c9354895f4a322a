"""Reading by offset: Fetch, at once or as soon as there is something."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import trio
from msgspec.structs import replace

from gateway.broker.administration.topics import TopicService
from gateway.broker.consume.deliveries import Latencies, record_delivered
from gateway.broker.consume.watch import Watchers
from gateway.broker.service import Caller, Clock, Handler
from gateway.broker.timers import Pump
from gateway.envelope import PREFIX, Run
from gateway.errors import GatewayError, OffsetOutOfRange, TooLarge
from gateway.recorder import Recorder
from gateway.requests import Fetch, Fetched, Request, Sieve
from gateway.store.interface import ReadResult, Store

MOST_SIFTING = 2
"""Threads that look through records: whoever filters waits for others who do, and nobody else does."""


class FetchService:
    def __init__(
        self,
        store: Store,
        topics: TopicService,
        watchers: Watchers,
        pump: Pump,
        clock: Clock,
        recorder: Recorder,
        latencies: Latencies,
        start_soon: Callable[..., None],
        refusal: Callable[[Caller, str], GatewayError | None],
    ) -> None:
        """`refusal`: why a caller may not read an address now."""
        self._store = store
        self._topics = topics
        self._watchers = watchers
        self._pump = pump
        self._clock = clock
        self._recorder = recorder
        self._latencies = latencies
        self._start_soon = start_soon
        self._refusal = refusal
        self._sifting = trio.CapacityLimiter(MOST_SIFTING)
        self._waiting: dict[tuple[int, int], Callable[[], None]] = {}

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {Fetch: self.fetch}

    def fetch(self, caller: Caller, request: Fetch) -> None:
        began = self._clock.now()
        state, partition = self._topics.partition(caller, request.address, request.partition)
        if request.offset < partition.start:
            raise OffsetOutOfRange(first=partition.start, next_offset=partition.end)
        if request.offset >= partition.end or request.max_messages <= 0:
            if request.hold_until is not None and request.hold_until > self._clock.now():
                self._wait(caller, request, state.name)
            else:
                caller.answer(request.id, Fetched((), request.offset, partition.start, partition.end))
            return
        wanted = (
            state.name,
            request.partition,
            request.offset,
            request.max_messages,
            request.max_bytes,
            self._clock.now_ms(),
        )
        cached = self._store.read_cached(*wanted)
        sieve = request.sieve
        if cached is not None and sieve is None:
            self._answer(caller, request, cached, partition.start, partition.end, began)
            return

        async def later() -> None:
            found = cached if cached is not None else await self._store.read(*wanted)
            if sieve is not None:
                found = await self._sifted(sieve, found)
            self._answer(caller, request, found, partition.start, partition.end, began)

        self._start_soon(caller, request, later)

    def cancel(self, caller: Caller, request_id: int) -> bool:
        """Answer a waiting fetch with nothing; False if none waits under that id."""
        expire = self._waiting.get((caller.id, request_id))
        if expire is None:
            return False
        expire()
        return True

    # --- inside ---

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

    def _answer(self, caller: Caller, request: Fetch, result: ReadResult, start: int, end: int, began: float) -> None:
        runs, next_offset = result.runs, result.next_offset
        if request.value_limit is not None:
            runs, next_offset = _carriable(runs, next_offset, request.value_limit)
        if request.record_overhead:
            runs, next_offset = _within(runs, next_offset, request.max_bytes, request.record_overhead)
        if not request.allow_gaps:
            runs, next_offset = _gapless(runs, next_offset)
        if runs:
            record_delivered(self._recorder, self._latencies, runs, caller.listener, self._clock.now_ms())
        self._recorder.fetch_latency(caller.listener.name, self._clock.now() - began)
        caller.answer(request.id, Fetched(runs, next_offset, start, end))


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
        fitting = bisect_right(range(run.columns.count), left, key=lambda index: ends[index] + extra * (index + 1))
        if fitting < run.columns.count:
            return _cut(runs, position, max(fitting, 1) if position == 0 else fitting)
        left -= ends[-1] + extra * run.columns.count
    return runs, next_offset


def _gapless(runs: Sequence[Run], next_offset: int) -> tuple[Sequence[Run], int]:
    # end before the first record that does not follow the one before it
    for position in range(1, len(runs)):
        if runs[position].base_offset != runs[position - 1].next_offset:
            return runs[:position], runs[position - 1].next_offset
    if runs and next_offset != runs[-1].next_offset:
        return runs, runs[-1].next_offset
    return runs, next_offset
