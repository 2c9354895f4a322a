"""The last value of each key: what a topic says now, without how it came to say so."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import attrs

from gateway.arrow.schema import COLUMNS
from gateway.pipeline.frames import MessagesToRead, Span
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.output import appearing
from gateway.pipeline.spark_errors import reported
from gateway.pipeline.spread import Session, session_of


@attrs.frozen
class Compacted:
    messages: int
    """Messages that were looked at; those without a key have no last value and are left out."""
    keys: int
    """Keys whose last value is no tombstone."""
    topics: int


def compact(
    spark: Session,
    messages: MessagesToRead,
    to: Path | str,
    *,
    topics: TopicSelection | None = None,
    keep_tombstones: bool = False,
    overwrite: bool = False,
    now_ms: int | None = None,
) -> Compacted:
    """Write `topic=NAME/*.parquet` with the columns of a message. It appears whole, or not at all, also in an object store.

    A last value that is empty is a tombstone: the key is gone, unless tombstones are kept. One that has expired is gone
    too; what was said before it does not come back. Of a topic that was made again only the last life counts.
    """
    from pyspark.sql import functions as f

    now = now_ms if now_ms is not None else time.time_ns() // 1_000_000
    spans = latest_lives(messages.spans(topics or TopicSelection()))
    with appearing(to, overwrite=overwrite) as fresh, reported():
        session = session_of(spark)
        rows = messages.frame(session, spans).where("key is not null")
        # store time first: a topic that was given more partitions may have a key in two of them
        last = (
            rows.groupBy("topic", "key")
            .agg(f.max_by(f.struct(*COLUMNS), f.struct("timestamp", "partition", "offset")).alias("last"))
            .select("last.*")
            .where(f.col("expires").isNull() | (f.col("expires") > f.timestamp_millis(f.lit(now))))
        )
        if not keep_tombstones:
            last = last.where(f.length("value") > 0)
        last.write.partitionBy("topic").option("compression", "zstd").parquet(fresh.where)
        files = fresh.files()
        return Compacted(
            sum(span.end - span.start for span in spans),
            session.read.parquet(fresh.where).count() if files else 0,
            len({file.partition("/")[0] for file in files}),
        )


def latest_lives(spans: Sequence[Span]) -> list[Span]:
    """The spans of each topic's last epoch: a topic that was deleted and made again has nothing to do with the one before."""
    last: dict[str, int] = {}
    for span in spans:
        last[span.topic] = max(last.get(span.topic, span.epoch), span.epoch)
    return [span for span in spans if span.epoch == last[span.topic]]
