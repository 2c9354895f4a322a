"""What a log or an archive holds, counted for one page: Spark counts, and what comes back has a bound, however large the log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from gateway.errors import InvalidRequest
from gateway.pipeline.audit import audit
from gateway.pipeline.comparing import Audited
from gateway.pipeline.deliveries import PERCENTILES, DeliveryRows
from gateway.pipeline.frames import (
    ArchivedMessages,
    MessagesToRead,
    StoredMessages,
    TableMessages,
    is_served,
    log_options,
)
from gateway.pipeline.options import ReadOptions, TopicSelection
from gateway.pipeline.rollup import LETTERS, ORIGIN
from gateway.pipeline.spark_errors import reported
from gateway.pipeline.spread import Session, Spread, session_of
from gateway.store.stats import percentile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Totals: TypeAlias = "Mapping[str, Sequence[Mapping[str, Any]]]"
NEEDED = ("topic", "partition", "timestamp", "expires", "key", "value", "headers", "route", "protocol")
DIMENSIONS = ("route", "protocol", "topic")
REASON = "x-dead-letter-reason"
BUCKETS = 96
"""About how many steps of time a chart has."""
STEPS_S = (60, 300, 900, 3_600, 3 * 3_600, 6 * 3_600, 12 * 3_600, 86_400, 7 * 86_400, 28 * 86_400, 364 * 86_400)
NAMED = 8
"""The largest of a kind that are named; the others are one."""
OTHERS = "others"
ROWS = 25
"""The most rows of a table that lists what is most frequent."""
KEY_BYTES = 96
"""What is shown of a key."""


@attrs.frozen
class Traffic:
    """Messages and bytes by time, for the largest of one dimension and the others together."""

    names: Sequence[str]
    """The largest first; behind them, if there are more, None of them: `others`."""
    messages: Mapping[str, Mapping[int, int]]
    """By name, by the time a step begins (seconds since the epoch)."""
    sizes: Mapping[str, int]
    kinds: int
    """How many there are in all."""


@attrs.frozen
class TopicSizes:
    topic: str
    messages: int
    value_bytes: int
    percentiles: Sequence[int]
    """Of the sizes of values: 50, 95, 99 %."""
    largest: int


@attrs.frozen
class LogReport:
    source: str
    made_s: int
    step_s: int
    """Seconds from one step of time to the next."""
    first_s: int | None
    """When the oldest message was stored; None: there is none."""
    last_s: int | None
    messages: int
    value_bytes: int
    expired: int
    letters: int
    traffic: Mapping[str, Traffic]
    sizes: Mapping[int, int]
    """Messages by size: the power of two that it is below."""
    topics: Sequence[TopicSizes]
    keys: Sequence[tuple[str, bytes, int, int]]
    """Topic, the key's beginning, its length, messages."""
    dead: Sequence[tuple[str, str, int]]
    """Topic that letters came from, why, how many."""
    delivered: Mapping[tuple[str, str], tuple[int, Sequence[float]]]
    """By route and protocol: how many were handed out, and how many ms after they were stored (50, 95, 99 %)."""
    latency: Mapping[int, float]
    """The 95th percentile by time."""
    removed: Sequence[tuple[str, int, int, int]]
    """What is not there any more: topic, partition, [0, start)."""
    gaps: Sequence[str]
    """Of an archive: what was accepted."""
    audit: Audited | None
    """None: nobody asked for one."""


def report(
    spark: Session,
    messages: MessagesToRead,
    source: str,
    *,
    topics: TopicSelection | None = None,
    audited: Audited | None = None,
    now_s: float | None = None,
) -> LogReport:
    """Count. `audited` is what an audit has found, for the page to say."""
    from pyspark.sql import functions as f

    topics = topics or TopicSelection()
    now_s = time.time() if now_s is None else now_s
    spans = messages.spans(topics)
    session = session_of(spark)
    with reported():
        frame = _marked(messages.frame(session, spans, NEEDED))
        oldest, newest = (
            None if one is None else one.timestamp()
            for one in frame.agg(f.min("timestamp"), f.max("timestamp")).toArrow().to_pylist()[0].values()
        )
        step = _step((newest or 0) - (oldest or 0))
        totals = _totals(frame, now_s)
        names = {one: _largest(totals[one]) for one in DIMENSIONS}
        traffic = _traffic(frame, totals, names, step)
        keys = _keys(frame)
        dead = _dead(frame)
        sizes = _sizes(frame)
    whole = totals["all"][0] if totals["all"] else {}
    delivered, latency = _deliveries(messages, topics, step)
    return LogReport(
        source,
        int(now_s),
        step,
        None if oldest is None else int(oldest),
        None if newest is None else int(newest),
        whole.get("messages", 0),
        whole.get("bytes") or 0,
        whole.get("expired", 0),
        whole.get("letters", 0),
        traffic,
        sizes,
        [_topic(one) for one in sorted(totals["topic"], key=_count)[:ROWS]],
        keys,
        dead,
        delivered,
        latency,
        sorted((one.topic, one.partition, 0, one.start) for one in spans if one.start > 0)[: ROWS * 4],
        [f"{one}: {one.why}" for one in messages.accepted()],
        audited,
    )


def audit_between(
    messages: MessagesToRead,
    other: str,
    *,
    topics: TopicSelection | None = None,
    spread: Spread | None = None,
) -> Audited:
    """Compare an archive or a table with its log, whichever is reported about. Raises InvalidRequest for two of a kind."""
    other_log = log_options(other)
    if isinstance(messages, ArchivedMessages):
        source, archive, catalog = StoredMessages(other_log), messages.path, ""
    elif isinstance(messages, TableMessages):
        source, archive, catalog = StoredMessages(other_log), messages.table.place, messages.catalog
    elif isinstance(messages, StoredMessages) and not is_served(other):
        source, archive, catalog = messages, other, ""
    else:
        raise InvalidRequest(f"an audit compares a log with an archive, and {other} is none")
    log = ReadOptions.parse(source.options).source
    return audit(log, archive, topics=topics, spread=spread, catalog=catalog)


def _count(row: Mapping[str, Any]) -> tuple[int, str]:
    return -row["messages"], str(row["topic"])


def _topic(row: Mapping[str, Any]) -> TopicSizes:
    shares = [int(one) for one in row["shares"] or (0, 0, 0)]
    return TopicSizes(row["topic"], row["messages"], row["bytes"] or 0, shares, row["largest"] or 0)


def _step(seconds: float) -> int:
    return next((one for one in STEPS_S if seconds / one <= BUCKETS), STEPS_S[-1])


def _marked(frame: DataFrame) -> DataFrame:
    # with what is asked of every row; values and headers themselves are needed for nothing else
    from pyspark.sql import functions as f

    def header(name: str) -> Any:
        return f.expr(f"cast(get(filter(headers, h -> h.name = '{name}'), 0).value as string)")

    origin = f.when(f.col("topic").endswith(LETTERS), header(ORIGIN))
    return frame.select(
        *DIMENSIONS,
        "timestamp",
        "expires",
        "key",
        f.length("value").alias("size"),
        origin.alias("origin"),
        f.when(origin.isNotNull(), header(REASON)).alias("reason"),
    )


def _totals(frame: DataFrame, now_s: float) -> dict[str, list[dict[str, Any]]]:
    # by each dimension, and of all, in one pass
    from pyspark.sql import functions as f

    sets = [[f.col(one)] for one in DIMENSIONS]
    rows = (
        frame.groupingSets([*sets, []], *DIMENSIONS)
        .agg(
            f.grouping_id().alias("set"),
            f.count("*").alias("messages"),
            f.sum("size").alias("bytes"),
            f.count_if(f.col("expires") <= f.timestamp_millis(f.lit(int(now_s * 1000)))).alias("expired"),
            f.count_if(f.col("origin").isNotNull()).alias("letters"),
            f.percentile_approx("size", list(PERCENTILES), 1000).alias("shares"),
            f.max("size").alias("largest"),
        )
        .toArrow()
        .to_pylist()
    )
    # the bit of each dimension that is not grouped by is set, the first one's highest
    which = {0b011: "route", 0b101: "protocol", 0b110: "topic", 0b111: "all"}
    found: dict[str, list[dict[str, Any]]] = {one: [] for one in which.values()}
    for row in rows:
        found[which[row["set"]]].append(row)
    return found


def _largest(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    ordered = sorted(rows, key=lambda row: -row["messages"])
    return [dict(row) for row in (ordered if len(ordered) <= NAMED + 1 else ordered[:NAMED])]


def _traffic(
    frame: DataFrame,
    totals: Mapping[str, Sequence[Mapping[str, Any]]],
    largest: Mapping[str, Sequence[Mapping[str, Any]]],
    step: int,
) -> dict[str, Traffic]:
    from pyspark.sql import functions as f

    names = {one: [str(row[one]) for row in largest[one]] for one in DIMENSIONS}
    # a name may be anything, `others` too: what is not named is null here
    folded = frame.select(
        (f.unix_seconds("timestamp") - f.unix_seconds("timestamp") % step).alias("at"),
        *(f.when(f.col(one).isin(names[one]), f.col(one)).alias(one) for one in DIMENSIONS),
    )
    grouped = folded.groupingSets([[f.col("at"), f.col(one)] for one in DIMENSIONS], "at", *DIMENSIONS)
    rows = grouped.agg(f.grouping_id().alias("set"), f.count("*").alias("messages")).toArrow().to_pylist()
    which = {0b0011: "route", 0b0101: "protocol", 0b0110: "topic"}
    messages: dict[str, dict[str, Counter[int]]] = {one: {} for one in DIMENSIONS}
    for row in rows:
        kind = which[row["set"]]
        name = OTHERS if row[kind] is None else row[kind]
        messages[kind].setdefault(name, Counter())[row["at"]] += row["messages"]
    made = {}
    for one in DIMENSIONS:
        sizes = {str(row[one]): row["bytes"] or 0 for row in largest[one]}
        rest = sum(row["bytes"] or 0 for row in totals[one]) - sum(sizes.values())
        order = [*names[one], *([OTHERS] if OTHERS in messages[one] and OTHERS not in names[one] else [])]
        made[one] = Traffic(order, messages[one], sizes | ({OTHERS: rest} if rest else {}), len(totals[one]))
    return made


def _sizes(frame: DataFrame) -> dict[int, int]:
    from pyspark.sql import functions as f

    power = f.when(f.col("size") > 0, f.length(f.bin("size"))).otherwise(0)
    rows = frame.where("size is not null").groupBy(power.alias("power")).count().toArrow().to_pylist()
    return {row["power"]: row["count"] for row in sorted(rows, key=lambda row: int(row["power"]))}


def _keys(frame: DataFrame) -> list[tuple[str, bytes, int, int]]:
    from pyspark.sql import functions as f

    rows = frame.where("key is not null").groupBy("topic", "key").count()
    shown = rows.orderBy(f.desc("count"), "topic", "key").limit(ROWS)
    made = shown.select(
        "topic", f.substring("key", 1, KEY_BYTES).alias("key"), f.length("key").alias("length"), "count"
    )
    return [tuple(row.values()) for row in made.toArrow().to_pylist()]


def _dead(frame: DataFrame) -> list[tuple[str, str, int]]:
    from pyspark.sql import functions as f

    rows = frame.where("origin is not null").groupBy("origin", f.coalesce("reason", f.lit("")).alias("reason")).count()
    return [
        tuple(row.values())
        for row in rows.orderBy(f.desc("count"), "origin", "reason").limit(ROWS).toArrow().to_pylist()
    ]


def _deliveries(
    messages: MessagesToRead, topics: TopicSelection, step: int
) -> tuple[dict[tuple[str, str], tuple[int, Sequence[float]]], dict[int, float]]:
    # from the gateway's own topic, a record at a time
    by_way: dict[tuple[str, str], Counter[int]] = {}
    by_time: dict[int, Counter[int]] = {}
    for one in DeliveryRows(messages, topics).each():
        by_way.setdefault((one.route, one.protocol), Counter()).update(one.counts)
        by_time.setdefault(one.minute - one.minute % step, Counter()).update(one.counts)
    ways = sorted(by_way.items(), key=lambda item: (-item[1].total(), item[0]))
    if len(ways) > ROWS:
        rest: Counter[int] = reduce(lambda so_far, item: so_far + item[1], ways[ROWS:], Counter())
        ways = [*ways[:ROWS], ((OTHERS, OTHERS), rest)]
    return (
        {way: (counts.total(), [percentile(counts, share) for share in PERCENTILES]) for way, counts in ways},
        {at: percentile(counts, 0.95) for at, counts in sorted(by_time.items())},
    )
