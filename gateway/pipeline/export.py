"""Messages as CSV, JSON lines or Parquet, with their payloads decoded."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from gateway.errors import InvalidRequest
from gateway.pipeline.decoding import Decoding, Undecodable, header_text, lines, registered, text
from gateway.pipeline.frames import MessagesToRead, is_served
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.output import appearing
from gateway.pipeline.spark_errors import reported
from gateway.pipeline.spread import Session, session_of
from gateway.store.reader import LogReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("csv", "jsonl", "parquet")
COLUMNS = (
    "topic", "partition", "offset", "timestamp", "expires", "key", "value", "headers",
    "id", "protocol", "listener", "principal", "route", "delivery",
)  # fmt: skip
TEXTS = ("timestamp", "expires", "key", "value", "headers", "id")
"""What becomes text; the others are numbers or text already."""
PROBLEM = "problem"
LINES = "lines"


@attrs.frozen
class Exported:
    messages: int
    undecodable: int = 0
    first_problem: str = ""
    files: int = 0


def decoding_for(
    kind: str,
    messages: MessagesToRead,
    topics: TopicSelection,
    *,
    store: str = "",
    schema: str = "",
    version: int | None = None,
) -> Decoding:
    """How to decode. For Avro the schemas are looked up in a store's registry: the topic's own, or the one that is named."""
    if kind != "avro":
        return Decoding(kind)
    registry = store or next((one for one in messages.stores() if not is_served(one)), "")
    if not registry:
        raise InvalidRequest("schemas are in a store: say --schemas DIR")
    names = {span.topic for span in messages.spans(topics)}
    with LogReader(registry) as reader:
        own = {name: topic.config.schema for name, topic in reader.topics().items()}
    found = {}
    for topic in sorted(names):
        name = schema or own.get(topic, "")
        if not name:
            raise InvalidRequest(f"the topic {topic} has no schema: say --schema NAME")
        found[topic] = registered(registry, name, version)
    return Decoding(kind, found)


def export(
    spark: Session,
    messages: MessagesToRead,
    to: Path | str,
    *,
    form: str,
    decoding: Decoding,
    topics: TopicSelection | None = None,
    where: str = "",
    skip_undecodable: bool = False,
    overwrite: bool = False,
) -> Exported:
    """Write files; they appear whole, or not at all.

    Keys and ids: keys as text where they are, else as `base64:...`. With JSON or Avro, a value in Parquet is a struct of
    the fields that were found, and in CSV its JSON. Raises TaskFailed, which names the place, for a value that is not
    what it was said to be, unless such messages are left out and counted.
    """
    if form not in FORMATS:
        raise InvalidRequest(f"a format is {', '.join(FORMATS)}, not {form!r}")
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    spans = messages.spans(topics or TopicSelection())
    with appearing(to, overwrite=overwrite) as fresh, reported():
        session = session_of(spark)
        frame = messages.frame(session, spans, COLUMNS)
        if where:
            frame = frame.where(where)
        strict = not skip_undecodable
        decoded = frame.select(*COLUMNS).mapInArrow(_decoder(decoding, strict=strict), _schema())
        seen = Observation("export")
        counted = decoded.observe(
            seen,
            f.count("*").alias("all"),
            f.count(PROBLEM).alias("undecodable"),
            f.min(PROBLEM).alias("problem"),
        )
        good = counted.where(f"{PROBLEM} is null").drop(PROBLEM)
        _write(session, good, fresh.where, form, embed=decoding.kind in {"json", "avro"})
        made: dict[str, Any] = seen.get
        files = fresh.files()
    count, bad = made.get("all") or 0, made.get("undecodable") or 0
    return Exported(count - bad, bad, made.get("problem") or "", len(files))


def _schema() -> str:
    return (
        "topic string, partition int, offset bigint, timestamp string, expires string, key string, value string, "
        f"headers string, id string, protocol string, listener string, principal string, route string, "
        f"delivery string, {PROBLEM} string"
    )


def _decoder(decoding: Decoding, *, strict: bool) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        maker = decoding.maker()
        for batch in batches:
            yield _decoded(batch, maker, strict=strict)

    return decode


def _decoded(batch: pa.RecordBatch, maker: Callable[[str], Callable[[bytes], str]], *, strict: bool) -> pa.RecordBatch:
    cells = {name: batch.column(name) for name in COLUMNS}
    topics, partitions, offsets = (cells[name].to_pylist() for name in ("topic", "partition", "offset"))
    values: list[str | None] = []
    problems: list[str | None] = []
    for index, value in enumerate(cells["value"].to_pylist()):
        try:
            values.append(maker(topics[index])(value))
            problems.append(None)
        except Undecodable as error:
            place = f"{topics[index]}/{partitions[index]} offset {offsets[index]}: {error}"
            if strict:
                raise Undecodable(place) from error
            values.append(None)
            problems.append(place)
    made = {
        **cells,
        "timestamp": _times(cells["timestamp"]),
        "expires": _times(cells["expires"]),
        "key": pa.array([None if key is None else _key(key) for key in cells["key"].to_pylist()], pa.string()),
        "value": pa.array(values, pa.string()),
        "headers": pa.array([header_text(pairs) for pairs in cells["headers"].to_pylist()], pa.string()),
        "id": pa.array([one.hex() for one in cells["id"].to_pylist()], pa.string()),
        PROBLEM: pa.array(problems, pa.string()),
    }
    return pa.record_batch(made)


def _times(cells: pa.Array) -> pa.Array:
    return pa.array(
        [None if one is None else one.isoformat(timespec="milliseconds") for one in cells.to_pylist()], pa.string()
    )


def _key(key: bytes) -> str:
    try:
        return text(key)
    except Undecodable:
        return f"base64:{b64encode(key).decode()}"


def _write(spark: SparkSession, frame: DataFrame, fresh: str, form: str, *, embed: bool) -> None:
    if form == "csv":
        frame.write.option("header", True).option("escape", '"').option("emptyValue", '""').csv(fresh)
    elif form == "jsonl":
        frame.mapInArrow(_lines(embed=embed), f"{LINES} string").write.text(fresh)
    else:
        _write_parquet(spark, frame, fresh, embed=embed)


def _write_parquet(spark: SparkSession, frame: DataFrame, fresh: str, *, embed: bool) -> None:
    from pyspark.sql import functions as f

    shown = frame.withColumns({name: f.to_timestamp(name) for name in ("timestamp", "expires")})
    if embed:
        # what is not the same everywhere becomes text
        found = spark.read.json(frame.select("value").rdd.map(lambda row: row.value)).schema
        if found.fields and "_corrupt_record" not in found.names:
            shown = shown.withColumn("value", f.from_json("value", found))
    shown.write.option("compression", "zstd").parquet(fresh)


def _lines(*, embed: bool) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found: Sequence[str] = list(lines(iter(batch.to_pylist()), embed=embed))
            yield pa.record_batch({LINES: pa.array(found, pa.string())})

    return write
