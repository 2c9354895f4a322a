"""What the core tells the outside about itself. Injected, so that nothing below imports a metrics library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from gateway.errors import Status
from gateway.requests import Totals

TRIMMED, NOTHING_TRIMMED, MERGED, NOTHING_MERGED = UPKEEP = ("trimmed", "nothing_trimmed", "merged", "nothing_merged")
"""What a step of the store's upkeep may do."""

MOST_LATENCIES = 4_096
"""Kept one by one until somebody collects them, or until they are so many."""


@attrs.define(eq=False)
class PublishMeter:
    """What is counted of each plain publish by one route and listener. Who publishes adds to the numbers itself: at this
    place a call costs as much as all the rest of the counting.
    """

    received_messages: int = 0
    received_bytes: int = 0
    stored_messages: int = 0
    stored_bytes: int = 0
    latencies: list[float] = attrs.Factory(list)
    collect: Callable[[], None] = lambda: None
    """Takes everything out of it, into the metrics."""


@attrs.define(eq=False)
class FetchMeter:
    """The same of each plain read by offset, by the route its messages came in by and the listener that it was asked at."""

    delivered_messages: int = 0
    delivered_bytes: int = 0
    latencies: list[float] = attrs.Factory(list)
    collect: Callable[[], None] = lambda: None


LINK_FAILURES = ("unreachable", "cut", "closed", "silent", "frame", "stranger", "strangers", "login")
"""Why there is no connection between two gateways: it could not be made; it was cut, closed by the other one, silent for too
long, or had a frame that is none; whoever came has no member's certificate, was one of too many, or took too long.
"""
PASSED = ("subscribe", "take", "settle", "unsubscribe", "use")
"""What is passed from one gateway to another."""


class Recorder:
    """Counters and histograms. Called once per batch, never per message. This one keeps none of them: who counts has a way of its
    own for each.
    """

    def received(self, route: str, listener: str, messages: int, size: int) -> None:
        """A batch came through the door."""

    def stored(self, route: str, messages: int, size: int) -> None:
        """Offsets were given to them."""

    def delivered(self, route: str, target: str, messages: int, size: int) -> None:
        """They were handed to a reader. `target` is the reader's listener or upstream."""

    def acknowledged(self, route: str, target: str, messages: int, size: int) -> None:
        """Their reader confirmed them."""

    def refused(self, route: str, reason: Status, messages: int) -> None:
        """They were not taken."""

    def dropped(self, route: str, reason: str, messages: int) -> None:
        """They were taken and will not be delivered (filtered, duplicate, rolled back, expired, trimmed, skipped)."""

    def dead_lettered(self, route: str, reason: str, messages: int) -> None:
        """They went to a dead-letter topic."""

    def publish_latency(self, route: str, seconds: float) -> None:
        """From receipt to reply."""

    def publish_meter(self, _route: str, _listener: str, /) -> PublishMeter:
        """The one meter of a route and a listener."""
        meter = PublishMeter()
        meter.collect = meter.latencies.clear
        return meter

    def fetch_meter(self, _route: str, _listener: str, /) -> FetchMeter:
        """The one meter of a route and a listener."""
        meter = FetchMeter()
        meter.collect = meter.latencies.clear
        return meter

    def connections(self, listener: str, change: int) -> None:
        """A connection came (+1) or went (-1)."""

    def refused_connection(self, listener: str, reason: str) -> None:
        """A connection was turned away or cut by a limit."""

    def limit_hit(self, listener: str, limit: str) -> None:
        """A bound was reached (in_flight, output, budget, ...)."""

    def owned(self, slots: int) -> None:
        """So many shares of what one gateway does at a time are this one's from now on."""

    def passed(self, request: str) -> None:
        """Something was passed on to the gateway that has the subscription it is about."""

    def linked(self, side: str, change: int) -> None:
        """So many more connections with other gateways of this log, on this side (`asks` or `answers`)."""

    def link_failed(self, reason: str) -> None:
        """Such a connection was not made, or has ended, for this reason (LINK_FAILURES)."""

    def login_failed(self, listener: str, reason: str, peer: str, principal: str) -> None:
        """Somebody was not let in. `principal`: who they said to be, if they did; never what they would prove it by."""

    def committed(self, records: int, size: int, seconds: float, synced: bool) -> None:
        """The store wrote one commit (called in the event loop, not in the writing thread)."""

    def writable(self, now: bool, reason: str = "") -> None:
        """The store takes writes from now on, or takes none, and why."""

    def damaged(self, topic: str, partition: int, first: int, next_offset: int) -> None:
        """A reader met a range that fails its checksum or is not there; it was refused."""

    def rows_lost(self, texts: Sequence[str]) -> None:
        """What damaged pages have taken along of the small tables, as of this start."""

    def upstream_failed(self, upstream: str, problem: str) -> None:
        """An upstream cannot be reached, does not let us in, or broke its connection: a line for the log now and then."""

    def upstream_back(self, upstream: str, seconds: float) -> None:
        """An upstream that was away, and said to be, answers again after so long."""

    def ingested(self, upstream: str, source: str, messages: int) -> None:
        """Messages of an upstream were committed."""

    def ingest_failed(self, upstream: str, source: str, reason: Status, times: int = 1) -> None:
        """Something between an upstream and the log went wrong; it will be tried again."""

    def mirrored(self, route: str, target: str, outcome: str, messages: int) -> None:
        """A mirror's target took messages, refused them, or nobody knows; or they were dropped before."""

    def mirror_compared(self, route: str, target: str, compared: str, result: str, messages: int) -> None:
        """What a mirror's target made of messages, beside what became of them here."""

    def mirror_latency(self, route: str, target: str, seconds: float) -> None:
        """From when messages were visible here to the acknowledgement of a mirror's target."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge that `gateway.observe.metrics` declares."""

    def fetch_latency(self, listener: str, seconds: float) -> None:
        """From a read by offset to its answer; the time it waited for a message does not count."""

    def upkeep(self, done: str, chunks: int, size: int) -> None:
        """The store took a step of its upkeep (one of UPKEEP)."""

    def totals(self) -> Totals:
        """What was counted since the start; not the lag, which is not counted here."""
        return Totals()


# --- the accounting identity: what the broker samples at one instant between two commits ---


@attrs.frozen
class DoorCounts:
    """What came in by one route since the process started, and where all of it is."""

    route: str
    received: int
    """Counted where sessions hand over their requests."""
    stored: int
    """By the advance of the primary topics' offsets, not by counting replies."""
    refused: int = 0
    filtered: int = 0
    duplicate: int = 0
    rolled_back: int = 0
    committing: int = 0
    """Submitted to the store, not yet answered."""
    in_transactions: int = 0
    delayed: int = 0
    proxied: int = 0
    """Taken by a broker elsewhere, whose answer the publisher has."""
    proxying: int = 0
    """Messages on their way to a broker elsewhere, whose publishers wait."""

    @property
    def unaccounted(self) -> int:
        """Anything but 0 is a message lost or counted twice."""
        known = (
            self.stored
            + self.refused
            + self.filtered
            + self.duplicate
            + self.rolled_back
            + self.proxied
            + self.proxying
        )
        return self.received - known - self.committing - self.in_transactions - self.delayed


@attrs.frozen
class ConsumerCounts:
    """How far one durable consumer is on one partition, from stored offsets."""

    kind: str
    """`subscription`, `reader` or `forward`."""
    name: str
    start: int
    """The offset it began at."""
    end: int
    """The end of the log."""
    acknowledged: int
    backlog: int
    """At or above its low water and not settled."""
    filtered: int = 0
    expired: int = 0
    dead_lettered: int = 0
    trimmed: int = 0
    absent: int = 0
    """Offsets at which there was no record."""
    skipped: int = 0
    """Passed over when somebody put it further on."""
    repeated: int = 0
    """Settled once, and to be settled again since somebody put it back."""
    topic: str = ""
    partition: int = 0
    position: int = 0
    """The first offset that is not settled."""

    @property
    def unaccounted(self) -> int:
        """Anything but 0 is a message skipped or settled twice."""
        settled = self.acknowledged + self.filtered + self.expired + self.dead_lettered + self.trimmed + self.absent
        return self.end - self.start - settled - self.skipped + self.repeated - self.backlog


@attrs.frozen
class UnderWay:
    """A message that a consumer has tried, and that is not settled."""

    kind: str
    name: str
    topic: str
    partition: int
    offset: int
    attempts: int
    error: str
    """Why the last attempt came to nothing, if somebody said so."""
    due: float | None
    """Seconds until it is tried again; None: it waits for an answer, or for what is before it."""


@attrs.frozen
class IngestPlace:
    """How far an ingest is on one address of a broker elsewhere."""

    upstream: str
    source: str
    """What its `from` says in the configuration."""
    address: str
    state: str
    position: int | None
    """The next offset there that is asked for; None where the broker remembers how far we are."""
    waiting: int
    """Messages that were taken and are not stored yet."""
    problem: str


@attrs.frozen
class MirrorPlace:
    """How far a mirror is on one partition."""

    route: str
    upstream: str
    topic: str
    partition: int
    position: int
    """The next offset it looks at."""
    end: int
    """The end of the log."""
    waiting: int
    """Messages that were chosen, and have no answer yet."""


@attrs.frozen
class ConnectionSnapshot:
    """One connection, as it is at one moment."""

    id: int
    listener: str
    protocol: str
    peer: str
    principal: str
    dialect: str
    sign: str
    """The sign by which the dialect was recognised."""
    handshaken: bool
    age: float
    """Seconds since it was opened."""
    quiet: float
    """Seconds since anything came."""
    in_flight: int
    """Requests under way."""
    buffered: int
    """Bytes that go out and are not taken yet."""
    replies: int
    """Bytes of them that are answers."""
    kept: int
    """Bytes that came in and are not worked on yet."""
    held_by: str
    """The limit because of which it is not read now."""
    limits_hit: int
    last_limit: str
    last_error: str


@attrs.frozen
class GroupPosition:
    """Where a consumer group is on one partition: what it has committed, in a log that goes from `start` to `end`."""

    group: str
    topic: str
    partition: int
    committed: int
    start: int
    end: int
    lag: int
    """Messages it has not committed; at most so many, where some offsets have none."""


@attrs.frozen
class Snapshot:
    """Both halves of the identity: all doors at one instant, and each consumer at the one at which it is come to. There may be
    tens of thousands of these, so they are for who goes through them in slices, once.
    """

    doors: Sequence[DoorCounts] = ()
    consumers: Iterable[ConsumerCounts] = ()
