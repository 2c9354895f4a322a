"""Playing stored messages back into a gateway or a broker, in order, at a pace, and on from where the last run ended.

Spark selects and sorts; what it finds comes back in pieces and is sent in steps, each of messages of one topic. A step is
written down before it is begun, if the target knows a repeated step again, and when it was taken: a target that does is
never sent anything twice, any other at most the one step that a killed replay was in.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gateway.envelope import Columns
from gateway.errors import Conflict, GatewayError, InvalidRequest
from gateway.pipeline.frames import MessagesToRead, Span, is_endpoint, is_served
from gateway.pipeline.history import EPOCH
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.pacing import Pacer
from gateway.pipeline.progress import Place, Progress, ProgressFile, Wanted
from gateway.pipeline.spark_errors import reported
from gateway.pipeline.spread import Session, session_of
from gateway.store.serving import Address, served_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STEP_BYTES = 1 << 20
NEEDED = ("topic", "partition", "offset", "timestamp", "expires", "key", "value", "headers")


class Target(Protocol):
    """Where messages are sent to."""

    address: Address
    """Host and port."""
    knows_repeats: bool
    """Whether the same step, sent again, adds nothing."""
    carries_keys: bool
    carries_headers: bool
    step_messages: int
    """How many messages it takes at a time."""

    def send(self, topic: str, columns: Columns, *, replay: str, step: int) -> Mapping[int, GatewayError]:
        """Publish messages that were of one topic; which were refused. Raises GatewayError if nothing is known of it."""
        ...


@attrs.frozen
class Replayed:
    sent: int = 0
    """Messages that were sent by this run and by those it went on from."""
    bytes: int = 0
    """Bytes of the values that this run sent."""
    refused: int = 0
    finished: bool = True
    """False: it was stopped, and the next run goes on."""
    resumed: bool = False
    refusals: tuple[str, ...] = ()
    """The first of the refusals, with their places."""


@attrs.frozen
class Selected:
    topics: Mapping[str, int]
    """Messages by topic."""
    bytes: int
    keys: int
    """Messages that have one."""
    headers: int
    first_ms: int | None
    last_ms: int | None

    @property
    def messages(self) -> int:
        return sum(self.topics.values())


class Selection:
    def __init__(self, spark: Session, messages: MessagesToRead, wanted: Wanted) -> None:
        self._spark = spark
        self.wanted = wanted
        self.messages = messages

    def spans(self) -> Sequence[Span]:
        return self.messages.spans(TopicSelection.parse(self.wanted.topics))

    def count(self, spans: Sequence[Span], now_ms: int) -> Selected:
        from pyspark.sql import functions as f

        with reported():
            found = (
                self._frame(spans, now_ms)
                .groupBy("topic")
                .agg(
                    f.count("*").alias("messages"),
                    f.sum(f.length("value")).alias("bytes"),
                    f.count("key").alias("keys"),
                    f.count_if(f.size("headers") > 0).alias("headers"),
                    f.min(f.unix_millis("timestamp")).alias("first"),
                    f.max(f.unix_millis("timestamp")).alias("last"),
                )
                .orderBy("topic")
                .collect()
            )
        return Selected(
            {row.topic: row.messages for row in found},
            sum(row.bytes for row in found),
            sum(row.keys for row in found),
            sum(row.headers for row in found),
            min((row["first"] for row in found), default=None),
            max((row["last"] for row in found), default=None),
        )

    def ordered(self, spans: Sequence[Span], now_ms: int) -> Iterator[pa.RecordBatch]:
        """The messages by time; those of a partition by offset, which is the same."""
        if not spans:
            return
        ordered = self._frame(spans, now_ms).orderBy("timestamp", "topic", "partition", "offset")
        # a row of Spark's for each record batch instead of one for each message
        packed = ordered.mapInArrow(_packed, "part binary")
        with reported():
            for row in packed.toLocalIterator(prefetchPartitions=True):
                with pa.ipc.open_stream(bytes(row.part)) as parts:
                    yield from parts

    def _frame(self, spans: Sequence[Span], now_ms: int) -> DataFrame:
        from pyspark.sql import functions as f

        wanted = self.wanted
        with reported():
            frame = self.messages.frame(session_of(self._spark), spans, NEEDED)
            if wanted.from_ms is not None:
                frame = frame.where(f.col("timestamp") >= f.timestamp_millis(f.lit(wanted.from_ms)))
            if wanted.before_ms is not None:
                frame = frame.where(f.col("timestamp") < f.timestamp_millis(f.lit(wanted.before_ms)))
            # what has expired was not to be read any more
            frame = frame.where(f.col("expires").isNull() | (f.col("expires") > f.timestamp_millis(f.lit(now_ms))))
            return frame.where(wanted.where) if wanted.where else frame


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.record_batch({"part": pa.array([out.getvalue().to_pybytes()], pa.binary())})


@attrs.frozen
class ReplayStep:
    """Messages of one topic that are sent together."""

    topic: str
    columns: Columns
    reached: Mapping[Place, int]
    """Where each of its partitions goes on behind it."""
    places: Sequence[tuple[int, int]]
    """(partition, offset) of each message."""


def steps(batch: pa.RecordBatch, most: int) -> Iterator[ReplayStep]:
    """Messages of a record batch, by topic and otherwise in their order, at most so many at a time."""
    topics = batch.column("topic").to_numpy(zero_copy_only=False)
    # an append has one address, and order is promised within a topic
    for topic in dict.fromkeys(topics):
        own = batch.filter(pa.array(topics == topic))
        sizes = np.cumsum(pc.binary_length(own.column("value")).to_numpy())
        start = 0
        while start < own.num_rows:
            base = int(sizes[start - 1]) if start else 0
            fits = int(np.searchsorted(sizes, base + STEP_BYTES, side="right"))
            stop = min(start + most, max(fits, start + 1))
            yield _step(str(topic), own.slice(start, stop - start))
            start = stop


def _step(topic: str, rows: pa.RecordBatch) -> ReplayStep:
    keys = rows.column("key").to_pylist()
    headers = [
        tuple((one["name"], one["value"]) for one in pairs) if pairs else ()
        for pairs in rows.column("headers").to_pylist()
    ]
    expires = rows.column("expires").cast(pa.int64()).fill_null(0).to_numpy() // 1000
    columns = Columns.of(
        rows.column("value").to_pylist(),
        keys if any(key is not None for key in keys) else None,
        headers if any(headers) else None,
        expires.tolist() if expires.any() else None,
    )
    partitions, offsets = rows.column("partition").to_pylist(), rows.column("offset").to_pylist()
    epochs = rows.column(EPOCH).to_pylist()
    reached = {
        (topic, epoch, number): offset + 1
        for epoch, number, offset in zip(epochs, partitions, offsets, strict=True)  # the last of each counts
    }
    return ReplayStep(topic, columns, reached, list(zip(partitions, offsets, strict=True)))


def same_gateway(stores: Sequence[str], address: Address) -> str | None:
    """The store among these that the gateway at an address serves, as far as this machine can tell."""
    there = _resolved(address)
    for store in stores:
        if is_endpoint(store):
            parts = urlsplit(store)
            if parts.port == address[1] and _resolved((parts.hostname or "", parts.port)) & there:
                return store
            continue
        if is_served(store):
            continue  # a Kafka does not say who serves it
        for bound, served in served_at(Path(store)):
            here = any(map(_own, there)) if bound in ANYWHERE else bound in there
            if served == address[1] and here:
                return store
    return None


ANYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104  # how a listener is bound to every address


def _resolved(address: Address) -> frozenset[str]:
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(*address, type=socket.SOCK_DGRAM))
    except OSError:
        return frozenset()  # the connection will say so better


def _own(address: str) -> bool:
    # whether an address is one of this machine's: then a socket can be bound to it
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


@attrs.define(eq=False)
class ReplayRun:
    selection: Selection
    target: Target
    file: ProgressFile
    pacer: Pacer
    stop: threading.Event
    skip_refused: bool
    progress: Progress
    report: Callable[[int], None]
    clock: Callable[[], float] = time.monotonic
    size: int = 0
    refusals: list[str] = attrs.Factory(list)

    def go(self) -> bool:
        """Send what is left; whether that was all of it."""
        if self.progress.pending is not None:
            self._again()
        for batch in self.selection.ordered(self.progress.left(), self.progress.started_ms):
            times = batch.column("timestamp").cast(pa.int64()).to_numpy() / 1000.0
            at = 0
            while at < batch.num_rows:
                ready = self.pacer.ready(times[at:], self.clock())
                if self.stop.is_set() or (not ready and self._wait(times[at])):
                    return False
                for step in steps(batch.slice(at, ready), self.target.step_messages):
                    self._send(step)
                self.pacer.sent(ready)
                at += ready
        return True

    def _wait(self, time_ms: float) -> bool:
        # until the next message is due; whether it was stopped meanwhile
        return self.stop.wait(self.pacer.pause(time_ms, self.clock()))

    def _again(self) -> None:
        # the step in which the last run ended: a target that has it already says so
        # any other target would have it twice: there a crash may repeat what was under way, and that is said
        if self.target.knows_repeats:
            parts = list(self.selection.ordered(self.progress.begun(), self.progress.started_ms))
            whole = pa.Table.from_batches(parts).combine_chunks()
            (step,) = steps(whole.to_batches()[0], whole.num_rows)
            self._send(step)
        self.progress.pending = None

    def _send(self, step: ReplayStep) -> None:
        progress = self.progress
        if self.target.knows_repeats:
            progress.pending = dict(step.reached)
            # before it is sent: after a crash the same step, with the same number, is said again, and the target knows it
            self.file.save(progress)
        refused = self.target.send(step.topic, step.columns, replay=progress.id, step=progress.sequence + 1)
        for index, error in refused.items():
            partition, offset = step.places[index]
            self.refusals.append(f"{step.topic}/{partition} offset {offset}: {error}")
            if not self.skip_refused:
                raise Conflict(f"{self.refusals[-1]}. --skip-refused goes on behind what the target does not take")
        progress.taken(step.reached, step.columns.count - len(refused))
        self.file.save(progress)
        self.size += step.columns.value_bytes
        self.report(progress.sent)


def replay(
    spark: Session,
    messages: MessagesToRead,
    wanted: Wanted,
    target: Target,
    *,
    state: Path | None = None,
    speed: float | None = None,
    rate: float | None = None,
    accept_loss: Sequence[str] = (),
    allow_same_source: bool = False,
    skip_refused: bool = False,
    stop: threading.Event | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Replayed:
    """Send what is wanted, or what is left of it since the last run. Calls `progress` with messages sent, and in all.

    Raises Conflict for a target that is the source, InvalidRequest for one that cannot carry what the messages have
    and whose loss was not accepted (`key`, `headers`, `all`).
    """
    selection = Selection(spark, messages, wanted)
    own = same_gateway(selection.messages.stores(), target.address)
    if own is not None and not allow_same_source:
        raise Conflict(
            f"{wanted.target} is the gateway that serves {own}, the source: say --allow-same-source if so meant"
        )
    file = ProgressFile.of(wanted, state)
    before = file.load(wanted)
    current = before or Progress(wanted, selection.spans(), now_ms())
    there = selection.count(current.left(), current.started_ms)
    for lost, count, carried in (
        ("key", there.keys, target.carries_keys),
        ("headers", there.headers, target.carries_headers),
    ):
        if count and not carried and not {lost, "all"} & set(accept_loss):
            raise InvalidRequest(
                f"{wanted.target} cannot carry the {lost} that {count} messages have: --accept-loss {lost}"
            )
    total = current.sent + there.messages
    run = ReplayRun(
        selection,
        target,
        file,
        Pacer(speed=speed, rate=rate),
        stop or threading.Event(),
        skip_refused,
        current,
        lambda sent: progress(sent, total),
    )
    finished = run.go()
    if finished:
        file.remove()
    return Replayed(current.sent, run.size, len(run.refusals), finished, before is not None, tuple(run.refusals[:10]))


def dry_run(spark: Session, messages: MessagesToRead, wanted: Wanted, *, state: Path | None = None) -> Selected:
    selection = Selection(spark, messages, wanted)
    before = ProgressFile.of(wanted, state).load(wanted)
    now = before.started_ms if before is not None else time.time_ns() // 1_000_000
    return selection.count(before.left() if before is not None else selection.spans(), now)


def speed_of(text: str) -> float | None:
    """`1x`, `10x`, `0.5x`, or `max`. Raises InvalidRequest."""
    if text == "max":
        return None
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not text.endswith("x") or not 0 < speed < float("inf"):
        raise InvalidRequest(f"a speed is like 1x, 10x, 0.5x or max, not {text!r}")
    return speed
