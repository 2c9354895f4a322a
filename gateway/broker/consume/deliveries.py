"""What is counted when messages are handed out: how many, by which routes they came, and how long they had been stored; the
last by minute, written to the topic `__stats`.

Counted once per batch: by the clock when it is handed out and the times its records were stored at, which the log has in
order, so that a look at both ends is mostly enough.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import islice

import trio

from gateway.broker.service import Clock, ListenerInfo
from gateway.broker.timers import Pump
from gateway.envelope import PREFIX, BatchIds, BatchMeta, Columns, Origin, Run
from gateway.recorder import Recorder
from gateway.store.interface import Append, Durability, MakeTopic, Store, Ticket, TopicConfig, Unit
from gateway.store.stats import BUCKETS, OTHER, TOPIC, WHOLE, Deliveries, encode

EVERY = 60.0
"""Seconds from one writing to the next."""
LATE = 3
"""Minutes that are kept until they are written; with none written the oldest is forgotten."""
MOST_SERIES = 1_000
"""Routes, topics and protocols of one minute; further topics are one."""
CONFIG = TopicConfig(durability=Durability.NONE, retention_seconds=7 * 86_400.0, retention_bytes=256 << 20)
CLOSE_SECONDS = 2.0
"""How long going down waits for the last of them."""
LIMIT = "stats"

Series = tuple[str, str, str]
"""Route, topic, protocol."""


class Latencies:
    """Histograms of the minutes that are not written yet."""

    def __init__(self) -> None:
        self._minutes: dict[int, dict[Series, list[int]]] = {}
        self._minute = -1
        self._series: dict[Series, list[int]] = {}
        self.forgotten = 0
        """Minutes that nobody took in time."""

    def add(self, route: str, topic: str, protocol: str, times: Sequence[int], now_ms: int) -> None:
        """Messages stored at these times, ascending and at least one, are handed out now."""
        self.add_all(route, topic, protocol, (times,), len(times), now_ms)

    def add_all(
        self, route: str, topic: str, protocol: str, stretches: Sequence[Sequence[int]], messages: int, now_ms: int
    ) -> None:
        """The same in several pieces, one behind the other."""
        minute = now_ms // 60_000
        if minute != self._minute:
            self._turn(minute)
        counts = self._series.get((route, topic, protocol))
        if counts is None:
            counts = self._opened(route, topic, protocol)
        oldest, youngest = stretches[0][0], stretches[-1][-1]
        bucket = bisect_right(WHOLE, now_ms - oldest)
        if oldest == youngest or bucket == bisect_right(WHOLE, now_ms - youngest):
            counts[bucket] += messages
        else:
            for times in stretches:
                _spread(counts, times, now_ms)

    def add_mixed(self, run: Run, protocol: str, now_ms: int) -> None:
        """A run is handed out whose batches came in by several routes."""
        batches, times = run.batches, run.times
        route, first = batches[0][2].route, 0
        for start, _inner, meta in islice(batches, 1, None):
            if meta.route != route:
                self.add(route, run.topic, protocol, times[first:start], now_ms)
                route, first = meta.route, start
        self.add(route, run.topic, protocol, times[first:], now_ms)

    def take(self, before_ms: int | None = None) -> list[Deliveries]:
        """What was counted in the minutes that ended before a time, or in all; it is forgotten here."""
        taken: list[Deliveries] = []
        for minute in sorted(self._minutes):
            if before_ms is None or (minute + 1) * 60_000 <= before_ms:
                for (route, topic, protocol), counts in self._minutes.pop(minute).items():
                    found = {bucket: count for bucket, count in enumerate(counts) if count}
                    taken.append(Deliveries(minute * 60, route, topic, protocol, found))
        if self._minute not in self._minutes:
            self._minute = -1
        return taken

    def _turn(self, minute: int) -> None:
        self._minute = minute
        self._series = self._minutes.setdefault(minute, {})
        if len(self._minutes) > LATE:
            del self._minutes[next(iter(self._minutes))]
            self.forgotten += 1

    def _opened(self, route: str, topic: str, protocol: str) -> list[int]:
        if len(self._series) >= MOST_SERIES:
            topic = OTHER  # routes and protocols are as many as the configuration has
        return self._series.setdefault((route, topic, protocol), [0] * BUCKETS)


def _spread(counts: list[int], times: Sequence[int], now_ms: int) -> None:
    # count times that are in several buckets: a search for each bucket, not a step for each message
    start, count = 0, len(times)
    while start < count:
        bucket = bisect_right(WHOLE, now_ms - times[start])
        # what follows is younger: in this bucket too while it is not below where the bucket begins
        end = bisect_right(times, now_ms - WHOLE[bucket - 1], start) if bucket else count
        counts[bucket] += end - start
        start = end


class StatsWriter:
    """Writes finished minutes to `__stats`, and the rest when it is closed. What the store does not take is lost, and counted."""

    def __init__(self, latencies: Latencies, store: Store, pump: Pump, clock: Clock, recorder: Recorder) -> None:
        self._latencies = latencies
        self._store = store
        self._pump = pump
        self._clock = clock
        self._recorder = recorder
        self._ids = BatchIds()
        self._forgotten = 0
        self._cancel: Callable[[], None] = self._next()

    def _next(self) -> Callable[[], None]:
        return self._pump.call_at(self._clock.now() + EVERY, self._tick)

    def _tick(self) -> None:
        self._cancel = self._next()
        self.write(self._clock.now_ms())

    def write(self, before_ms: int | None = None) -> Ticket | None:
        """Write the minutes that ended before a time, or all; None if there is nothing to write."""
        taken = self._latencies.take(before_ms)
        for _ in range(self._latencies.forgotten - self._forgotten):
            self._recorder.limit_hit("", LIMIT)
        self._forgotten = self._latencies.forgotten
        if not taken:
            return None
        meta = BatchMeta(self._ids.next(self._clock.now_ms()), Origin("gateway", "stats"))
        columns = Columns.of([encode(one) for one in taken])
        creates = () if TOPIC in self._store.topics else (MakeTopic(TOPIC, CONFIG),)
        ticket = self._store.submit(Unit(creates=creates, appends=(Append(TOPIC, 0, columns, meta),)))
        ticket.on_done(self._written)
        return ticket

    def _written(self, ticket: Ticket) -> None:
        if ticket.error is not None:
            self._recorder.limit_hit("", LIMIT)

    async def close(self) -> None:
        self._cancel()
        ticket = self.write()
        if ticket is not None:
            done = trio.Event()
            ticket.on_done(lambda _ticket: done.set())
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
                await done.wait()


@asynccontextmanager
async def writing_stats(
    latencies: Latencies, store: Store, pump: Pump, clock: Clock, recorder: Recorder
) -> AsyncIterator[StatsWriter]:
    """Written once a minute inside the block, and when it ends."""
    writer = StatsWriter(latencies, store, pump, clock, recorder)
    try:
        yield writer
    finally:
        await writer.close()


def record_delivered(
    recorder: Recorder, latencies: Latencies, runs: Iterable[Run], to: ListenerInfo, now_ms: int
) -> None:
    for run in runs:
        if len(run.batches) == 1:  # without a list: so it is for who takes message after message
            route, columns = run.batches[0][2].route, run.columns
            recorder.delivered(route, to.name, columns.count, len(columns.packed) - PREFIX * columns.count)
            latencies.add(route, run.topic, to.protocol, run.times, now_ms)
            continue
        counted = by_route(run)
        for route, messages, size in counted:
            recorder.delivered(route, to.name, messages, size)
        if len(counted) == 1:
            latencies.add(counted[0][0], run.topic, to.protocol, run.times, now_ms)
        else:
            latencies.add_mixed(run, to.protocol, now_ms)


def record_acknowledged(recorder: Recorder, runs: Iterable[Run], by: ListenerInfo) -> None:
    """Count runs whose reader need not confirm them."""
    for run in runs:
        for route, messages, size in by_route(run):
            recorder.acknowledged(route, by.name, messages, size)


def by_route(run: Run) -> Sequence[tuple[str, int, int]]:
    """(route, messages, bytes) of a run."""
    batches = run.batches
    if len(batches) == 1 or len({meta.route for _first, _inner, meta in batches}) == 1:
        return [(batches[0][2].route, run.columns.count, run.columns.value_bytes)]
    counted: dict[str, tuple[int, int]] = {}
    ends = run.columns.ends
    for position, (first, _inner, meta) in enumerate(batches):
        stop = batches[position + 1][0] if position + 1 < len(batches) else run.columns.count
        size = ends[stop - 1] - (ends[first - 1] if first else 0) - PREFIX * (stop - first)
        messages, total = counted.get(meta.route, (0, 0))
        counted[meta.route] = (messages + stop - first, total + size)
    return [(route, messages, size) for route, (messages, size) in counted.items()]
