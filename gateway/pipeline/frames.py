"""The messages that a job works on, as a data frame: from a store, an archive or a table, with a place for every message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs
import pyarrow as pa

from gateway.arrow.schema import COLUMNS, SCHEMA, chosen
from gateway.errors import InvalidRequest, NotAStore, UnknownTopic
from gateway.pipeline.history import EPOCH
from gateway.pipeline.manifest import Archive, ArchiveFile, Gap, named_topic
from gateway.pipeline.options import ReadOptions, TopicSelection
from gateway.pipeline.ranges import selected
from gateway.pipeline.shelves import is_remote
from gateway.pipeline.source import open_log, shown
from gateway.pipeline.table_rows import TableDay, TableVersion
from gateway.pipeline.tables import SOURCES, accepted_in, table_there
from gateway.store.kafka.names import KAFKA_URL, log_address
from gateway.store.reader import LogReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@attrs.frozen
class Span:
    """Offsets [start, end) of one partition in one life of its topic."""

    topic: str
    epoch: int
    partition: int
    start: int
    end: int

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.epoch, self.partition


class MessagesToRead(Protocol):
    """Stored messages that a job can read."""

    def spans(self, topics: TopicSelection) -> Sequence[Span]:
        """What there is now."""
        ...

    def frame(self, spark: SparkSession, spans: Sequence[Span], columns: Sequence[str] = COLUMNS) -> DataFrame:
        """The messages of these spans, with their epoch."""
        ...

    def stores(self) -> Sequence[str]:
        """The stores that they came from: directories, or admin addresses."""
        ...

    def accepted(self) -> Sequence[Gap]:
        """What is not there and was accepted as lost."""
        ...


def messages_at(place: str, catalog: str = "", **trust: str) -> MessagesToRead:
    """What the directory of an archive, a table or a store holds, a running gateway at its admin address, or a log on Kafka
    (`kafka://host:port,host:port/prefix`).

    `catalog` is an Iceberg table's, `trust` are the options of the data source about an endpoint or a Kafka. Raises NotAStore if
    a directory is none of them.
    """
    if not place:
        raise InvalidRequest("say where the messages are: the directory of a store or of an archive, or an endpoint")
    if is_served(place):
        return StoredMessages({**log_options(place), **trust})
    if not catalog and Archive(place).is_there():
        return ArchivedMessages(place.rstrip("/") if is_remote(place) else place)
    table = table_there(place, catalog)
    if table is not None:
        return TableMessages(table.version(), catalog, table.said(SOURCES), accepted_in(table))
    if is_remote(place):
        raise NotAStore(f"there is no archive at {place}")
    LogReader(place).close()
    return StoredMessages({"path": place})


def is_endpoint(place: str) -> bool:
    """Whether a place is a gateway's admin address, not a directory."""
    return place.startswith(("http://", "https://"))


def is_served(place: str) -> bool:
    """Whether a place is no directory, but a log that others serve: a gateway, or a Kafka."""
    return is_endpoint(place) or place.startswith(KAFKA_URL)


def log_options(place: str) -> dict[str, str]:
    """The options of the data source that mean a log: a store's directory, an admin address, or a Kafka."""
    if place.startswith(KAFKA_URL):
        brokers, prefix = log_address(place)
        return {"kafka": ",".join(brokers), "kafkaPrefix": prefix}
    return {"endpoint" if is_endpoint(place) else "path": place}


@attrs.frozen
class StoredMessages:
    """Those of a store, live or stopped, or of a running gateway."""

    options: Mapping[str, str] = attrs.field(repr=False)
    """Of the data source: `path`, or `endpoint` or `kafka` and how it is trusted."""

    def spans(self, topics: TopicSelection) -> Sequence[Span]:
        options = attrs.evolve(ReadOptions.parse(self.options), topics=topics)
        with open_log(options.source) as log:
            return [
                Span(topic.name, topic.epoch, partition.number, partition.start, partition.end)
                for topic in selected(log.topics(), options)
                for partition in topic.partitions
            ]

    def frame(self, spark: SparkSession, spans: Sequence[Span], columns: Sequence[str] = COLUMNS) -> DataFrame:
        """Read by the data source, which is told where to begin and end."""
        wanted = _ddl(dict.fromkeys([*columns, "topic", "partition", "offset"]))
        options = {**self.options, **_options(spans)}
        frame = spark.read.format("gateway").schema(wanted).options(**options).load()
        return _within(spark, frame, spans, ["topic", "partition"]).select(*columns, EPOCH)

    def stores(self) -> Sequence[str]:
        return [shown(ReadOptions.parse(self.options).source)]

    def accepted(self) -> Sequence[Gap]:
        return ()


def _options(spans: Sequence[Span]) -> dict[str, str]:
    # Options of the data source that mean these spans. No topic at all is said by one that there cannot be.
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for span in spans:
        starts.setdefault(span.topic, {})[str(span.partition)] = span.start
        ends.setdefault(span.topic, {})[str(span.partition)] = span.end
    return {
        "topics": json.dumps(sorted(starts) or ["__none*"]),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }


@attrs.frozen
class ArchivedMessages:
    """Those of an archive: what its manifests name, whatever else may lie beside it."""

    path: str

    def spans(self, topics: TopicSelection) -> Sequence[Span]:
        found: dict[tuple[str, int, int], Span] = {}
        files = Archive.existing(self.path).files()
        names = topics.among(sorted({file.topic for file in files}))
        missing = [name for name in topics.names if name not in names]
        if missing:
            raise UnknownTopic(f"there is no topic {', '.join(missing)} in {self.path}")
        for file in files:
            if file.topic in names:
                place = (file.topic, file.epoch, file.partition)
                old = found.get(place, Span(*place, file.start, file.end))
                found[place] = Span(*place, min(old.start, file.start), max(old.end, file.end))
        return [found[place] for place in sorted(found)]

    def frame(self, spark: SparkSession, spans: Sequence[Span], columns: Sequence[str] = COLUMNS) -> DataFrame:
        """Read as Parquet, only from files that hold something of it."""
        from pyspark.sql import functions as f

        by_place = {span.place: span for span in spans}
        files = [file for file in Archive.existing(self.path).files() if _touches(by_place, file)]
        if not files:
            return spark.createDataFrame([], f"{_ddl(columns)}, {EPOCH} bigint")
        schema = f"{_ddl(name for name in COLUMNS if name != 'topic')}, topic string, day string"
        paths = [_escaped(f"{self.path}/{file.path}") for file in files]
        frame = spark.read.schema(schema).option("basePath", _escaped(self.path)).parquet(*paths)
        # every file says in its name which life of the topic it is from
        named = frame.withColumn(EPOCH, f.regexp_extract("_metadata.file_name", r"^e(\d+)-", 1).cast("bigint"))
        cut = {named_topic(file.topic): file.topic for file in files if named_topic(file.topic) != file.topic}
        if cut:
            whole = f.create_map(*[f.lit(text) for pair in cut.items() for text in pair])
            named = named.withColumn("topic", f.coalesce(whole[f.col("topic")], "topic"))
        return _within(spark, named, spans, ["topic", EPOCH, "partition"]).select(*columns, EPOCH)

    def stores(self) -> Sequence[str]:
        return Archive(self.path).sources()

    def accepted(self) -> Sequence[Gap]:
        return Archive(self.path).accepted()


@attrs.frozen
class TableMessages:
    """Those of a Delta or an Iceberg table, as it was when it was looked at. Its own package reads it, on the executors."""

    table: TableVersion
    catalog: str = attrs.field(default="", repr=False)
    _stores: Sequence[str] = ()
    _accepted: Sequence[Gap] = ()

    def spans(self, topics: TopicSelection) -> Sequence[Span]:
        days = self.table.days()
        names = topics.among(sorted({one.topic for one in days}))
        missing = [name for name in topics.names if name not in names]
        if missing:
            raise UnknownTopic(f"there is no topic {', '.join(missing)} in {self.table.place}")
        found: dict[tuple[str, int, int], Span] = {}
        for one in days:
            if one.topic in names:
                for place, offsets in self.table.covered(one).items():
                    start, end = int(offsets[0]), int(offsets[-1]) + 1
                    old = found.get(place, Span(*place, start, end))
                    found[place] = Span(*place, min(old.start, start), max(old.end, end))
        return [found[place] for place in sorted(found)]

    def frame(self, spark: SparkSession, spans: Sequence[Span], columns: Sequence[str] = COLUMNS) -> DataFrame:
        """A task for each topic and day."""
        names = {span.topic for span in spans}
        tasks = [(one.topic, one.day) for one in self.table.days() if one.topic in names]
        wanted = list(dict.fromkeys([*columns, "topic", "partition", "offset"]))
        schema = f"{_ddl(wanted)}, {EPOCH} bigint"
        if not tasks:
            return spark.createDataFrame([], schema).select(*columns, EPOCH)
        days = spark.createDataFrame(spark.sparkContext.parallelize(tasks, len(tasks)), "topic string, day string")
        rows = days.mapInArrow(_days_of(self.table, wanted), schema)
        return _within(spark, rows, spans, ["topic", EPOCH, "partition"]).select(*columns, EPOCH)

    def stores(self) -> Sequence[str]:
        return self._stores

    def accepted(self) -> Sequence[Gap]:
        return self._accepted

    def values(self, topic: str) -> Iterator[bytes]:
        """Those of one topic, in no order."""
        for one in self.table.days():
            if one.topic == topic:
                for batch in self.table.batches(chosen(["value"]), one):
                    yield from batch.column("value").to_pylist()


def _days_of(
    table: TableVersion, columns: Sequence[str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = chosen(columns).append(pa.field(EPOCH, pa.int64()))
        for batch in batches:
            for one in batch.to_pylist():
                yield from table.batches(schema, TableDay(one["topic"], one["day"]))

    return read


def _touches(spans: Mapping[tuple[str, int, int], Span], file: ArchiveFile) -> bool:
    span = spans.get((file.topic, file.epoch, file.partition))
    return span is not None and file.start < span.end and span.start < file.end


def _escaped(path: str) -> str:
    # a path for Spark, which takes some characters for a pattern
    return "".join(f"\\{character}" if character in "*?[]{}\\" else character for character in path)


def _ddl(columns: Iterable[str]) -> str:
    # a schema with some of the columns, in Spark's language
    from pyspark.sql.pandas.types import from_arrow_schema

    types = {field.name: field.dataType.simpleString() for field in from_arrow_schema(SCHEMA).fields}
    return ", ".join(f"{name} {types[name]}" for name in columns)


def _within(spark: SparkSession, frame: DataFrame, spans: Sequence[Span], on: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as f

    rows = [(span.topic, span.epoch, span.partition, span.start, span.end) for span in spans]
    known = spark.createDataFrame(
        rows, f"topic string, {EPOCH} bigint, partition int, span_start bigint, span_end bigint"
    )
    return frame.join(f.broadcast(known), list(on)).where("offset >= span_start and offset < span_end")
