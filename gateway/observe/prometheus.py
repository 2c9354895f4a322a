"""The recorder that counts for Prometheus.

Updates happen once per batch in the event loop, so a counter is a plain number in a dict (a tenth of what the client
library's locked counters cost) and the library only does what it is good at: the exposition, when somebody asks.
"""

from __future__ import annotations

import functools
import math
import platform
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import structlog

from gateway.errors import Status
from gateway.observe import metrics as m
from gateway.recorder import LINK_FAILURES, PASSED, UPKEEP, FetchMeter, PublishMeter, Recorder
from gateway.requests import Quantiles, Totals, Upkeep

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

Labels = tuple[str, ...]

DAMAGED_KEPT = 1000
"""So many damaged ranges are told apart; who has more needs no more lines in the log to know that the disk is broken."""

log = structlog.get_logger()


class _Cells:
    """The series of one family: label values to a number (counter, gauge) or to buckets and a sum (histogram)."""

    __slots__ = ("family", "histograms", "max_series", "overflowed", "values")

    def __init__(self, family: m.Family, max_series: int) -> None:
        self.family = family
        self.max_series = max_series
        self.values: dict[Labels, float] = {}
        self.histograms: dict[Labels, list[float]] = {}
        self.overflowed = 0

    def labels(self, labels: Labels) -> Labels:
        """These labels, or the overflow bucket's when there are too many series already."""
        if labels in self.values or labels in self.histograms or not labels:
            return labels
        if len(self.values) + len(self.histograms) < self.max_series:
            return labels
        self.overflowed += 1
        return (m.OTHER,) * len(labels)

    def add(self, labels: Labels, amount: float) -> None:
        try:
            self.values[labels] += amount
        except KeyError:
            labels = self.labels(labels)
            self.values[labels] = self.values.get(labels, 0) + amount

    def set(self, labels: Labels, value: float) -> None:
        self.values[self.labels(labels)] = value

    def observe(self, labels: Labels, value: float) -> None:
        cell = self.histograms.get(labels)
        if cell is None:
            cell = self.declare(self.labels(labels))
        cell[bisect_left(self.family.buckets, value)] += 1
        cell[-1] += value

    def declare(self, labels: Labels) -> list[float]:
        """A histogram without observations: a count per bucket, one above the last bound, and the sum."""
        return self.histograms.setdefault(labels, [0.0] * (len(self.family.buckets) + 2))

    def quantiles(self) -> Quantiles:
        """Over all series, as far as the buckets tell: between two bounds times are taken to lie evenly."""
        counts = [sum(column) for column in zip(*(cell[:-1] for cell in self.histograms.values()), strict=True)]
        half, most, nearly_all = (_quantile(self.family.buckets, counts, share) for share in (0.5, 0.95, 0.99))
        return half, most, nearly_all

    def collect(self) -> Metric:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        family = self.family
        metric: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
        if family.kind is m.MetricType.HISTOGRAM:
            metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
            for labels, cell in self.histograms.items():
                metric.add_metric(labels, self._cumulative(cell), cell[-1])
            return metric
        kind = CounterMetricFamily if family.kind is m.MetricType.COUNTER else GaugeMetricFamily
        metric = kind(family.name, family.help, labels=family.labels)
        for labels, value in self.values.items():
            metric.add_metric(labels, value)
        return metric

    def _cumulative(self, cell: Sequence[float]) -> list[tuple[str, float]]:
        buckets: list[tuple[str, float]] = []
        total = 0.0
        for bound, count in zip((*self.family.buckets, math.inf), cell[:-1], strict=True):
            total += count
            buckets.append(("+Inf" if bound == math.inf else repr(bound), total))
        return buckets


def _add_both(families: tuple[_Cells, _Cells], labels: Labels, messages: int, size: int) -> None:
    # for every batch that is handed out
    counts, sizes = families
    if labels in counts.values and labels in sizes.values:
        counts.values[labels] += messages
        sizes.values[labels] += size
    else:
        counts.add(labels, messages)
        sizes.add(labels, size)


def _quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float:
    wanted = share * sum(counts)
    below = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if wanted <= count and count:
            return below + (bound - below) * wanted / count
        wanted -= count
        below = bound
    return below if wanted else 0.0


class _Told:
    """What is worth a line in the log, and no metric of its own."""

    def upstream_failed(self, upstream: str, problem: str) -> None:
        log.warning("an upstream fails", upstream=upstream, problem=problem)

    def upstream_back(self, upstream: str, seconds: float) -> None:
        log.info("an upstream is back", upstream=upstream, away_seconds=round(seconds, 1))


class PrometheusRecorder(_Told, Recorder):
    """Counts everything in `gateway.observe.metrics`. Call it from the event loop's thread only."""

    def __init__(
        self,
        *,
        routes: Iterable[str] = (),
        listeners: Mapping[str, str] | None = None,
        targets: Iterable[str] = (),
        version: str = "",
        max_series: int = 10_000,
    ) -> None:
        self._listeners = dict(listeners or {})
        self._cells = {family.name: _Cells(family, max_series) for family in m.FAMILIES}
        self._refreshers: list[Callable[[], None]] = []
        self._preparations: list[Callable[[], Awaitable[None]]] = []
        self._meters: dict[tuple[str, str], PublishMeter] = {}
        self._fetch_meters: dict[tuple[str, str], FetchMeter] = {}
        self._damaged: set[tuple[str, int, int, int]] = set()
        cells = self._cells
        self._received = cells[m.RECEIVED_MESSAGES.name], cells[m.RECEIVED_BYTES.name]
        self._stored = cells[m.STORED_MESSAGES.name], cells[m.STORED_BYTES.name]
        self._delivered = cells[m.DELIVERED_MESSAGES.name], cells[m.DELIVERED_BYTES.name]
        self._acknowledged = cells[m.ACKNOWLEDGED_MESSAGES.name], cells[m.ACKNOWLEDGED_BYTES.name]
        self._refused = cells[m.REFUSED_MESSAGES.name]
        self._latency = cells[m.PUBLISH_LATENCY.name]
        self._fetch_latency = cells[m.FETCH_LATENCY.name]
        self._commits = tuple(
            cells[one.name]
            for one in (m.STORE_COMMITS, m.STORE_COMMIT_SECONDS, m.STORE_COMMIT_RECORDS, m.STORE_COMMIT_BYTES)
        )
        _foresee(cells, self._listeners)
        self.foreseen = Foreseen(cells, tuple(self._listeners))
        self.foreseen.routes(routes, targets)
        self.gauge(m.BUILD_INFO.name, 1, version=version, python=platform.python_version())

    # --- gateway.recorder.Recorder ---

    def received(self, route: str, listener: str, messages: int, size: int) -> None:
        labels = (route or m.NO_ROUTE, listener)
        self._received[0].add(labels, messages)
        self._received[1].add(labels, size)

    def stored(self, route: str, messages: int, size: int) -> None:
        labels = (route or m.NO_ROUTE,)
        self._stored[0].add(labels, messages)
        self._stored[1].add(labels, size)

    def delivered(self, route: str, target: str, messages: int, size: int) -> None:
        _add_both(self._delivered, (route or m.NO_ROUTE, target), messages, size)

    def acknowledged(self, route: str, target: str, messages: int, size: int) -> None:
        _add_both(self._acknowledged, (route or m.NO_ROUTE, target), messages, size)

    def refused(self, route: str, reason: Status, messages: int) -> None:
        self._refused.add((route or m.NO_ROUTE, reason.value), messages)

    def dropped(self, route: str, reason: str, messages: int) -> None:
        self._cells[m.DROPPED_MESSAGES.name].add((route or m.NO_ROUTE, reason), messages)

    def dead_lettered(self, route: str, reason: str, messages: int) -> None:
        self._cells[m.DEAD_LETTERED_MESSAGES.name].add((route or m.NO_ROUTE, reason), messages)

    def publish_latency(self, route: str, seconds: float) -> None:
        self._latency.observe((route or m.NO_ROUTE,), seconds)

    def publish_meter(self, route: str, listener: str, /) -> PublishMeter:
        meter = self._meters.get((route, listener))
        if meter is None:
            meter = self._meters[route, listener] = PublishMeter()
            meter.collect = functools.partial(self._read_off, route, listener, meter)
        return meter

    def fetch_meter(self, route: str, listener: str, /) -> FetchMeter:
        meter = self._fetch_meters.get((route, listener))
        if meter is None:
            meter = self._fetch_meters[route, listener] = FetchMeter()
            meter.collect = functools.partial(self._read_off_fetches, route, listener, meter)
        return meter

    def _read_meters(self) -> None:
        for meter in self._meters.values():
            meter.collect()
        for read in self._fetch_meters.values():
            read.collect()

    def _read_off_fetches(self, route: str, listener: str, meter: FetchMeter) -> None:
        if meter.delivered_messages:
            self.delivered(route, listener, meter.delivered_messages, meter.delivered_bytes)
        for seconds in meter.latencies:
            self.fetch_latency(listener, seconds)
        meter.delivered_messages = meter.delivered_bytes = 0
        meter.latencies.clear()

    def _read_off(self, route: str, listener: str, meter: PublishMeter) -> None:
        if meter.received_messages:
            self.received(route, listener, meter.received_messages, meter.received_bytes)
        if meter.stored_messages:
            self.stored(route, meter.stored_messages, meter.stored_bytes)
        for seconds in meter.latencies:
            self.publish_latency(route, seconds)
        meter.received_messages = meter.received_bytes = meter.stored_messages = meter.stored_bytes = 0
        meter.latencies.clear()

    def connections(self, listener: str, change: int) -> None:
        labels = (listener, self._listeners.get(listener, ""))
        self._cells[m.CONNECTIONS.name].add(labels, change)
        if change > 0:
            self._cells[m.CONNECTIONS_OPENED.name].add(labels, change)

    def refused_connection(self, listener: str, reason: str) -> None:
        self._cells[m.CONNECTIONS_REFUSED.name].add((listener, reason), 1)

    def limit_hit(self, listener: str, limit: str) -> None:
        self._cells[m.LIMIT_HITS.name].add((listener or m.NO_ROUTE, limit), 1)

    def login_failed(self, listener: str, reason: str, peer: str, principal: str) -> None:
        """Somebody was not let in. Who was refused unheard gets no line: their failures before had one each."""
        self._cells[m.FAILED_LOGINS.name].add((listener, reason), 1)
        tell = log.debug if reason == "throttled" else log.warning
        tell("a login failed", listener=listener, reason=reason, peer=peer, principal=principal)

    def committed(self, records: int, size: int, seconds: float, synced: bool) -> None:
        # all four have their series from the start: nothing but numbers is left to change
        commits, latencies, all_records, all_bytes = self._commits
        durability = ("synced" if synced else "unsynced",)
        commits.values[durability] += 1
        cell = latencies.histograms[durability]
        cell[bisect_left(latencies.family.buckets, seconds)] += 1
        cell[-1] += seconds
        all_records.values[()] += records
        all_bytes.values[()] += size

    def writable(self, now: bool, reason: str = "") -> None:
        """The store takes writes, or takes none; a change is worth a line in the log."""
        cells = self._cells[m.STORE_WRITABLE.name]
        before = cells.values.get((), 1.0)
        cells.set((), float(now))
        if now and not before:
            log.info("the store takes writes again")
        elif before and not now:
            log.error("the store takes no writes", reason=reason)

    def damaged(self, topic: str, partition: int, first: int, next_offset: int) -> None:
        """A reader met a damaged range. The log names it once, however often it is read."""
        self._cells[m.STORE_DAMAGED_READS.name].add((), 1)
        found = (topic, partition, first, next_offset)
        if found in self._damaged or len(self._damaged) >= DAMAGED_KEPT:
            return
        self._damaged.add(found)
        self._cells[m.STORE_DAMAGED_RANGES.name].set((), len(self._damaged))
        log.error("a damaged range was met", topic=topic, partition=partition, first=first, next_offset=next_offset)

    def rows_lost(self, texts: Sequence[str]) -> None:
        self._cells[m.STORE_LOST.name].set((), len(texts))
        for text in texts:
            log.error("the store has lost something", what=text, way_on="gateway store salvage --accept-loss")

    def ingested(self, upstream: str, source: str, messages: int) -> None:
        self._cells[m.INGEST_MESSAGES.name].add((upstream, source), messages)

    def ingest_failed(self, upstream: str, source: str, reason: Status, times: int = 1) -> None:
        self._cells[m.INGEST_ERRORS.name].add((upstream, source, reason.value), times)

    def mirrored(self, route: str, target: str, outcome: str, messages: int) -> None:
        self._cells[m.MIRRORED_MESSAGES.name].add((route, target, outcome), messages)

    def mirror_compared(self, route: str, target: str, compared: str, result: str, messages: int) -> None:
        self._cells[m.MIRROR_COMPARED.name].add((route, target, compared, result), messages)

    def mirror_latency(self, route: str, target: str, seconds: float) -> None:
        self._cells[m.MIRROR_LATENCY.name].observe((route, target), seconds)

    def reloaded(self, outcome: str) -> None:
        self._cells[m.CONFIG_RELOADS.name].add((outcome,), 1)
        self._cells[m.CONFIG_RELOADED.name].set((), float(outcome == "applied"))

    def lagged(self, seconds: float) -> None:
        self._cells[m.LOOP_LAG.name].observe((), seconds)

    def collected(self, kind: str, seconds: float) -> None:
        self._cells[m.COLLECTIONS.name].observe((kind,), seconds)

    def connected(self) -> tuple[int, int]:
        """How many connections there are, and how many were."""
        there = int(sum(self._cells[m.CONNECTIONS.name].values.values()))
        return there, int(sum(self._cells[m.CONNECTIONS_OPENED.name].values.values())) - there

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a declared gauge; KeyError for one that is not declared or lacks a label."""
        family = m.GAUGES[name]
        self._cells[name].set(tuple(labels[label] for label in family.labels), value)

    def owned(self, slots: int) -> None:
        self._cells[m.OWNED_SLOTS.name].set((), slots)
        self._cells[m.OWNERSHIP_CHANGES.name].add((), 1)

    def passed(self, request: str) -> None:
        self._cells[m.PASSED_REQUESTS.name].add((request,), 1)

    def linked(self, side: str, change: int) -> None:
        self._cells[m.LINKS.name].add((side,), change)

    def link_failed(self, reason: str) -> None:
        self._cells[m.LINK_FAILURES.name].add((reason,), 1)

    def fetch_latency(self, listener: str, seconds: float) -> None:
        self._fetch_latency.observe((listener,), seconds)

    def upkeep(self, done: str, chunks: int, size: int) -> None:
        """The store trimmed or merged chunks, or looked in vain."""
        for family, amount in ((m.UPKEEP_STEPS, 1), (m.UPKEEP_CHUNKS, chunks), (m.UPKEEP_BYTES, size)):
            self._cells[family.name].add((done,), amount)

    def totals(self) -> Totals:
        def total(family: m.Family, **wanted: str) -> int:
            places = [(family.labels.index(label), value) for label, value in wanted.items()]
            series = self._cells[family.name].values.items()
            return int(sum(value for labels, value in series if all(labels[at] == what for at, what in places)))

        self._read_meters()
        return Totals(
            received=total(m.RECEIVED_MESSAGES),
            received_bytes=total(m.RECEIVED_BYTES),
            delivered=total(m.DELIVERED_MESSAGES),
            delivered_bytes=total(m.DELIVERED_BYTES),
            connections=total(m.CONNECTIONS),
            held_back=total(m.LIMIT_HITS, limit="output"),
            cut_off=total(m.CONNECTIONS_REFUSED, reason="write_timeout"),
            damaged=total(m.STORE_DAMAGED_RANGES),
            upkeep={
                done: Upkeep(*(total(one, outcome=done) for one in (m.UPKEEP_STEPS, m.UPKEEP_CHUNKS, m.UPKEEP_BYTES)))
                for done in UPKEEP
            },
            publishes=self._latency.quantiles(),
            fetches=self._fetch_latency.quantiles(),
        )

    def counted(self, *families: m.Family) -> Sequence[Mapping[Labels, float]]:
        """What these counters and gauges say now, by labels: to be read at once, and not to be changed."""
        self._read_meters()
        return [self._cells[family.name].values for family in families]

    # --- the exposition ---

    @functools.cached_property
    def registry(self) -> CollectorRegistry:
        """What the client library asks. It is loaded for whoever wants to see it first, and not for a start."""
        from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
        from prometheus_client.registry import Collector

        recorder = self

        class Counted(Collector):
            def collect(self) -> Iterator[Metric]:
                return recorder.collect()

        made = CollectorRegistry(auto_describe=False)
        made.register(Counted())
        for about_the_process in (ProcessCollector, PlatformCollector, GCCollector):
            about_the_process(registry=made)
        return made

    def text(self) -> str:
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()

    def on_scrape(self, refresh: Callable[[], None]) -> None:
        """Call this before every exposition: gauges that are worked out, not kept (accounting, sizes, budget)."""
        self._refreshers.append(refresh)

    def before_scrape(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """The same, for what goes through so much that others have the event loop in between."""
        self._preparations.append(prepare)

    async def prepare(self) -> None:
        """Before an exposition that is to be whole."""
        for prepare in self._preparations:
            await prepare()

    def collect(self) -> Iterator[Metric]:
        """Every family, for the client library."""
        for refresh in self._refreshers:
            refresh()
        self._read_meters()
        overflow = self._cells[m.SERIES_OVERFLOW.name]
        for name, cells in self._cells.items():
            if cells.overflowed:
                overflow.values[(name,)] = cells.overflowed
        for cells in self._cells.values():
            yield cells.collect()


# Every series that can be foreseen starts at 0: a rate over a series that appears with its first event misses it.


@attrs.frozen
class Foreseen:
    """The series of what the configuration names: there from the start with 0, and gone when it no longer names them."""

    _cells: Mapping[str, _Cells]
    _listeners: Sequence[str]

    def routes(self, routes: Iterable[str], targets: Iterable[str]) -> None:
        """The series of routes and their targets; those that count already go on."""
        targets = (*self._listeners, *targets)
        for route in routes:
            for reason in m.REFUSALS:
                self._cells[m.REFUSED_MESSAGES.name].add((route, reason), 0)
            for family in (m.STORED_MESSAGES, m.STORED_BYTES):
                self._cells[family.name].add((route,), 0)
            for listener in self._listeners:
                for family in (m.RECEIVED_MESSAGES, m.RECEIVED_BYTES):
                    self._cells[family.name].add((route, listener), 0)
            for target in targets:
                for family in (m.DELIVERED_MESSAGES, m.DELIVERED_BYTES, m.ACKNOWLEDGED_MESSAGES, m.ACKNOWLEDGED_BYTES):
                    self._cells[family.name].add((route, target), 0)
            for reason in m.DROPS:
                self._cells[m.DROPPED_MESSAGES.name].add((route, reason), 0)
            for reason in m.DEAD_LETTERS:
                self._cells[m.DEAD_LETTERED_MESSAGES.name].add((route, reason), 0)
            self._cells[m.UNACCOUNTED.name].add((route,), 0)
            self._cells[m.PUBLISH_LATENCY.name].declare((route,))

    def upstreams(self, used: Container[str]) -> None:
        """These upstreams are used. Of others there is no state to show; what was counted stays."""
        for family in m.GAUGES.values():
            if "upstream" in family.labels:
                place, values = family.labels.index("upstream"), self._cells[family.name].values
                for labels in [one for one in values if one[place] not in used]:
                    del values[labels]
        self._cells[m.INGEST_STATE.name].values.clear()  # said anew before each exposition, of those there are


def _foresee(cells: Mapping[str, _Cells], listeners: Mapping[str, str]) -> None:
    for reason in m.REFUSALS:
        cells[m.REFUSED_MESSAGES.name].add((m.NO_ROUTE, reason), 0)
    for listener, protocol in listeners.items():
        cells[m.CONNECTIONS.name].set((listener, protocol), 0)
        cells[m.CONNECTIONS_OPENED.name].add((listener, protocol), 0)
        for reason in m.CONNECTION_REFUSALS:
            cells[m.CONNECTIONS_REFUSED.name].add((listener, reason), 0)
        for limit in m.LIMITS:
            cells[m.LIMIT_HITS.name].add((listener, limit), 0)
        for reason in m.LOGIN_FAILURES:
            cells[m.FAILED_LOGINS.name].add((listener, reason), 0)
    for kind in m.CONSUMER_KINDS:
        cells[m.CONSUMER_UNACCOUNTED.name].set((kind,), 0)
        cells[m.CONSUMER_BACKLOG.name].set((kind,), 0)
    for durability in ("synced", "unsynced"):
        cells[m.STORE_COMMITS.name].add((durability,), 0)
        cells[m.STORE_COMMIT_SECONDS.name].declare((durability,))
    for limit in (m.CACHE_LIMIT, m.PROXY_LIMIT, m.STATS_LIMIT):
        cells[m.LIMIT_HITS.name].add((m.NO_ROUTE, limit), 0)
    for outcome in m.RELOADS:
        cells[m.CONFIG_RELOADS.name].add((outcome,), 0)
    cells[m.CONFIG_RELOADED.name].set((), 1)
    cells[m.OWNED_SLOTS.name].set((), 0)
    cells[m.OWNERSHIP_CHANGES.name].add((), 0)
    cells[m.PASSED_WAITING.name].set((), 0)
    for request in PASSED:
        cells[m.PASSED_REQUESTS.name].add((request,), 0)
    for side in ("asks", "answers"):
        cells[m.LINKS.name].set((side,), 0)
    for reason in LINK_FAILURES:
        cells[m.LINK_FAILURES.name].add((reason,), 0)
    cells[m.LOOP_LAG.name].declare(())
    for kind in m.COLLECTION_KINDS:
        cells[m.COLLECTIONS.name].declare((kind,))
    for listener in listeners:
        cells[m.FETCH_LATENCY.name].declare((listener,))
    for done in UPKEEP:
        for family in (m.UPKEEP_STEPS, m.UPKEEP_CHUNKS, m.UPKEEP_BYTES):
            cells[family.name].add((done,), 0)
    cells[m.STORE_COMMIT_RECORDS.name].add((), 0)
    cells[m.STORE_COMMIT_BYTES.name].add((), 0)
    cells[m.STORE_DAMAGED_READS.name].add((), 0)
    cells[m.STORE_DAMAGED_RANGES.name].set((), 0)
