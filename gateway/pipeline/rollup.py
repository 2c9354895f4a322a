"""What happened in each minute, by route, topic and protocol: once over all there is, or continuously."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from gateway.errors import InvalidRequest
from gateway.pipeline.checkpoints import checkpoint_at
from gateway.pipeline.deliveries import DeliveryRows
from gateway.pipeline.frames import MessagesToRead, StoredMessages
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.rollup_table import IDENTITY, RollupTable, rollup_table
from gateway.pipeline.shelves import is_remote
from gateway.pipeline.spark_errors import reported
from gateway.pipeline.spread import Session, session_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NEEDED = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "route", "protocol")
LETTERS, ORIGIN = ".dlq", "x-dead-letter-topic"
"""How a dead letter is known: by its topic, and a header that says where it came from."""
PERCENTILES = (0.5, 0.95, 0.99)


@attrs.frozen
class RolledUp:
    rows: int
    """Minutes by route, topic and protocol."""
    late: int = 0
    """Groups of messages that came after their minute was closed, and are not in it (continuously only)."""


def rollup(
    spark: Session,
    messages: MessagesToRead,
    to: Path | str,
    *,
    topics: TopicSelection | None = None,
    from_ms: int | None = None,
) -> RolledUp:
    """Roll up what there is into the table of a directory, or into an object store. A second run replaces what has changed.

    Latencies are in it where the gateway's topic `__stats` is: in its store, or in an archive that names it.
    """
    from pyspark.sql import functions as f

    topics = topics or TopicSelection()
    spans = messages.spans(topics)
    session = session_of(spark)
    with reported(), rollup_table(to) as table:
        frame = messages.frame(session, spans, NEEDED)
        if from_ms is not None:
            # whole minutes only
            frame = frame.where(f.col("timestamp") >= f.timestamp_millis(f.lit(from_ms - from_ms % 60_000)))
        return RolledUp(_put(table, _minutes(frame, f.count_distinct), DeliveryRows(messages, topics, from_ms)))


def follow(
    spark: Session,
    messages: MessagesToRead,
    to: Path | str,
    *,
    topics: str = "**",
    watermark: str = "2 minutes",
    interval: float | None = 30.0,
    stop: threading.Event | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> RolledUp:
    """Roll up what is stored from the beginning on, until stopped; with `interval=None` until the end of what there is.

    A minute is written once the watermark has passed it: when a message was seen that is so much younger. What comes for
    it later is counted as late. Distinct keys are estimated. The position is kept in `_checkpoint` beside the table.
    What was delivered is looked up whenever minutes are written, and at the end.
    """
    if not isinstance(messages, StoredMessages):
        raise InvalidRequest("an archive cannot be followed: follow the store, or roll up the archive once")
    from pyspark.sql import functions as f

    stop = stop or threading.Event()
    options = {**messages.options, "topics": topics, "startingOffsets": "earliest"}
    written = late = 0
    deliveries = DeliveryRows(messages, TopicSelection.parse(topics))

    def put(frame: DataFrame, _batch: int) -> None:
        nonlocal written
        # the same batch again, after a crash, replaces the same rows
        with rollup_table(to) as table:
            written += _put(table, frame, deliveries)
        progress(written, written)

    messages.spans(TopicSelection.parse(topics))  # what is wrong with the place is said before Spark starts
    checkpoint = checkpoint_at(f"{to if is_remote(to) else Path(to).absolute()}/_checkpoint")
    session = session_of(spark)
    with reported():
        frame = session.readStream.format("gateway").options(**options).load().withWatermark("timestamp", watermark)
        query = (
            _minutes(frame, lambda key: f.approx_count_distinct(key, 0.02))
            .writeStream.outputMode("append")
            .option("checkpointLocation", checkpoint)
            .foreachBatch(put)
            .trigger(**({"availableNow": True} if interval is None else {"processingTime": f"{interval} seconds"}))
            .start()
        )
        seen = -1
        try:
            while not query.awaitTermination(1):
                seen, late = _late(query.recentProgress, seen, late)
                if stop.is_set():
                    break
        finally:
            query.stop()
        _, late = _late(query.recentProgress, seen, late)
        with rollup_table(to) as table:
            written += table.put((), deliveries.rows())
    return RolledUp(written, late)


def _late(reports: Sequence[Mapping[str, Any]], seen: int, late: int) -> tuple[int, int]:
    # count what Spark dropped in the micro-batches that were not looked at before
    for one in reports:
        if one["batchId"] > seen:
            seen = one["batchId"]
            late += sum(state["numRowsDroppedByWatermark"] for state in one["stateOperators"])
    return seen, late


def _minutes(frame: DataFrame, distinct: Callable[[Column], Column]) -> DataFrame:
    # One row for each minute, route, topic and protocol. Dead letters count for the topic they came from.
    from pyspark.sql import functions as f

    origin = f.expr(f"cast(get(filter(headers, h -> h.name = '{ORIGIN}'), 0).value as string)")
    letter = f.col("topic").endswith(LETTERS) & origin.isNotNull()
    size = f.when(~f.col("letter"), f.length("value"))
    marked = frame.withColumn("letter", letter).withColumn("topic", f.when(letter, origin).otherwise(f.col("topic")))
    grouped = marked.groupBy(f.window("timestamp", "1 minute").alias("minute"), "route", "topic", "protocol").agg(
        f.count_if(~f.col("letter")).alias("messages"),
        f.coalesce(f.sum(size), f.lit(0)).alias("bytes"),
        distinct(f.when(~f.col("letter"), f.col("key"))).alias("keys"),
        f.percentile_approx(size, list(PERCENTILES), 1000).alias("sizes"),
        f.max(size).alias("size_max"),
        f.count_if(f.col("letter")).alias("dead_letters"),
    )
    sizes = [f.get("sizes", f.lit(index)).alias(f"size_p{round(p * 100)}") for index, p in enumerate(PERCENTILES)]
    rate = f.when(f.col("messages") > 0, f.col("dead_letters") / f.col("messages")).alias("dead_letter_rate")
    minute = f.unix_seconds("minute.start").alias("minute")
    return grouped.select(minute, *IDENTITY[1:], "messages", "bytes", "keys", *sizes, "size_max", "dead_letters", rate)


def _put(table: RollupTable, frame: DataFrame, deliveries: DeliveryRows) -> int:
    columns = frame.toArrow().to_pydict()
    return table.put(zip(*columns.values(), strict=True), deliveries.rows())
