"""The Spark data source `gateway`: `spark.read.format("gateway")` and `spark.readStream.format("gateway")`.

Readers travel to the executors by pickle, so they hold options and nothing that is open. A stream's position is, for
every topic, its epoch and the next offset of each partition; Spark writes it into the checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from gateway.arrow.schema import SCHEMA, chosen
from gateway.errors import InvalidRequest, Unsupported
from gateway.pipeline.history import EPOCH, WITH_EPOCH, archived_batches, history
from gateway.pipeline.jvm import add_jar
from gateway.pipeline.manifest import ArchiveFile
from gateway.pipeline.options import TO_THE_END, ReadOptions
from gateway.pipeline.ranges import WAY_ON, HistoryGone, Range, cut, meant, record_batches, selected, starts, whole
from gateway.pipeline.sink import GatewayStreamWriter, GatewayWriter, WriteOptions
from gateway.pipeline.source import open_log
from gateway.store.reader import StoredTopic

Position = dict[str, dict[str, int]]
"""Topic -> {"epoch": its epoch, "0": next offset, ...}."""


def register(spark: SparkSession) -> None:
    """Make `format("gateway")` known to a session.

    It is the data source in the JVM where its jar can be had, else the one in Python, which is always there as `gateway-python`.
    """
    spark.dataSource.register(PythonDataSource)
    add_jar(spark)
    try:
        spark.dataSource.register(GatewayDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


class LogRange(InputPartition):
    def __init__(self, what: Range) -> None:
        super().__init__(what)


class GatewayDataSource(DataSource):
    """A gateway's log, from the directory of its store or from its admin address; and the sink into a running one."""

    @classmethod
    def name(cls) -> str:
        return "gateway"

    def _given(self) -> ReadOptions:
        options = ReadOptions.parse(self.options)
        if options.kafka_reader == "spark":
            raise InvalidRequest(
                "kafkaReader: Spark's own source is read through the data source in the JVM, and this is the one in Python"
            )
        return options

    def schema(self) -> StructType:
        """Every column; a schema of the user's own with fewer of them reads only those."""
        options = self._given()
        columns = from_arrow_schema(WITH_EPOCH if options.history else SCHEMA).fields
        return StructType([one for one in columns if options.headers or one.name != "headers"])

    def reader(self, schema: StructType) -> GatewayReader:
        options = self._given()
        return GatewayReader(options, _columns(schema, WITH_EPOCH if options.history else SCHEMA))

    def streamReader(self, schema: StructType) -> GatewayStreamReader:  # noqa: N802  # Spark's name
        options = self._given()
        if options.history:
            raise InvalidRequest(
                "history is for a batch: a stream reads the log; an archive is a stream of Parquet files to Spark"
            )
        return GatewayStreamReader(options, _columns(schema, SCHEMA))

    def writer(self, schema: StructType, overwrite: bool) -> GatewayWriter:
        """For a batch; always adds."""
        if overwrite:
            raise Unsupported('a log is only added to: mode("append")')
        return GatewayWriter(WriteOptions.parse(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> GatewayStreamWriter:  # noqa: N802  # Spark's name
        """For a stream; always adds."""
        if overwrite:
            raise Unsupported('a log is only added to: outputMode("append")')
        return GatewayStreamWriter(WriteOptions.parse(self.options), schema)


class PythonDataSource(GatewayDataSource):
    """The same by a name of its own: what the one in the JVM writes by, and what it is compared with."""

    @classmethod
    def name(cls) -> str:
        return "gateway-python"


def _columns(schema: StructType, there: pa.Schema) -> tuple[str, ...]:
    full = {field.name: field.dataType for field in from_arrow_schema(there).fields}
    for field in schema.fields:
        if field.name in full and field.dataType != full[field.name]:
            raise InvalidRequest(f"the column {field.name} is {full[field.name].simpleString()}")
    chosen([name for name in schema.names if name != EPOCH or EPOCH not in there.names])
    return tuple(schema.names)


def _read(options: ReadOptions, columns: Sequence[str], partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    if partition is None or partition.value is None:
        return  # how Spark asks when there was nothing to plan
    wanted = chosen([name for name in columns if name != EPOCH])
    what = partition.value
    if isinstance(what, ArchiveFile):
        for batch in archived_batches(options.history, what, wanted):
            yield _with_epoch(batch, what.epoch, columns)
        return
    with open_log(options.source) as reader:
        for batch in record_batches(reader, what, wanted, fail_on_data_loss=options.fail_on_data_loss):
            yield _with_epoch(batch, what.epoch, columns)


def _with_epoch(batch: pa.RecordBatch, epoch: int, columns: Sequence[str]) -> pa.RecordBatch:
    if EPOCH not in columns:
        return batch
    said = pa.repeat(pa.scalar(epoch, pa.int64()), batch.num_rows)
    return pa.RecordBatch.from_arrays(
        [said if name == EPOCH else batch.column(name) for name in columns], list(columns)
    )


# --- a batch ---


class GatewayReader(DataSourceReader):
    """Reads what there is at the moment of planning.

    It takes no conditions: what a source in Python has planned by those of one query, Spark keeps for others on the same frame.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """A task for each partition of the log, several for a long one."""
        options = self._options
        files: list[ArchiveFile] = []
        with open_log(options.source) as reader:
            if options.history:
                files, ranges = history(options.history, reader, options)
            else:
                ranges = whole(reader, options)
        of_files: list[InputPartition] = [InputPartition(one) for one in files]
        return of_files + [LogRange(one) for one in cut(ranges, options.per_partition, options.least_partitions)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._columns, partition)


# --- a stream ---


def _position(topic: StoredTopic, options: ReadOptions, offsets: Sequence[int]) -> dict[str, int]:
    numbers = [str(one.number) for one in meant(topic, options)]
    return {"epoch": topic.epoch, **dict(zip(numbers, offsets, strict=True))}


class GatewayStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads in micro-batches, each of them a range of offsets that the checkpoint names."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._last: Position | None = None
        self._triggered_ms = 0.0
        self._unwritten: Position | None = None
        """Where it begins, until a micro-batch without records has that in the checkpoint."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Where a query without a checkpoint begins."""
        options = self._options
        where = options.starting if options.starting is not None else TO_THE_END
        with open_log(options.source) as reader:
            begin = {
                topic.name: _position(topic, options, starts(reader, topic, options, TO_THE_END))
                for topic in selected(reader.topics(), options)
            }
        self._unwritten = begin if where.moves else None
        return begin

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """`maxRecordsPerTrigger`."""
        limit = self._options.per_trigger
        return ReadMaxRows(limit) if limit is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self._last = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        if self._unwritten == start:
            # Spark writes down where a micro-batch ends, not where the first one begins: whoever repeats that after a crash asks
            # for the latest anew, and what came in between would be in none
            self._unwritten = None
            return start
        end = self._last if self._last is not None else self._ends()
        begin = self._begins(start, end)
        if self._last is None and self._too_few(begin, end):
            return start
        if not self._options.fail_on_data_loss:
            end = {**end}
        else:
            end = {**{name: start[name] for name in start if name not in end}, **end}
        if isinstance(limit, ReadMaxRows):
            return _limited(begin, end, limit.max_rows)
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        return self._ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = self._begins(start, end)
        ranges = [
            Range(name, int(number), begin[name][number], offset, offsets["epoch"])
            for name, offsets in sorted(end.items())
            for number, offset in offsets.items()
            if number != "epoch" and begin[name][number] < offset
        ]
        return [LogRange(one) for one in cut(ranges, self._options.per_partition, self._options.least_partitions)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._columns, partition)

    def _too_few(self, begin: Position, end: Position) -> bool:
        # whether to wait for more; Spark has no limit of this kind for a source in Python, so it is taken from the options
        least, now = self._options.least_per_trigger, time.monotonic() * 1000
        if least is None:
            return False
        if sum(_waiting(begin, end).values()) < least and now - self._triggered_ms < self._options.trigger_delay_ms:
            return bool(self._triggered_ms)
        self._triggered_ms = now
        return False

    def _ends(self) -> Position:
        options = self._options
        with open_log(options.source) as reader:
            return {
                topic.name: _position(topic, options, [one.end for one in meant(topic, options)])
                for topic in selected(reader.topics(), options, all_named=options.fail_on_data_loss)
            }

    def _begins(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Position:
        # where to go on in everything that `end` names; refuses, or passes over, what is gone
        with open_log(self._options.source) as reader:
            topics = reader.topics()
        strict = self._options.fail_on_data_loss
        lost = [f"the topic {name} was deleted" for name in start if name not in topics]
        begin: Position = {}
        for name, offsets in end.items():
            topic = topics.get(name)
            known = start.get(name)
            if topic is None:
                begin[name] = dict(offsets)  # deleted: nothing of it can be read
                continue
            if known is not None and known["epoch"] != offsets["epoch"]:
                lost.append(f"the topic {name} was deleted and made again")
                known = None
            begin[name] = {"epoch": offsets["epoch"]}
            for number, offset in offsets.items():
                if number == "epoch":
                    continue
                first = topic.partitions[int(number)].start if topic.epoch == offsets["epoch"] else offset
                at = known.get(number, 0) if known is not None else 0
                if known is not None and at < first:
                    lost.append(f"{name}/{number} begins at {first} now, {at} is next")
                begin[name][number] = min(max(at, first), offset)
        if lost and strict:
            raise HistoryGone(f"{'; '.join(lost)}. {WAY_ON}")
        return begin


def _waiting(begin: Position, end: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    # offsets of each partition that are not read yet
    return {
        (name, number): offset - begin[name][number]
        for name, offsets in end.items()
        if name in begin
        for number, offset in offsets.items()
        if number != "epoch"
    }


def _limited(begin: Position, end: Mapping[str, Any], rows: int) -> dict[str, Any]:
    # an end with at most so many records before it: each partition gives in proportion to what it has
    waiting = _waiting(begin, end)
    total = sum(waiting.values())
    if total <= rows:
        return dict(end)
    limited: dict[str, Any] = {name: dict(offsets) for name, offsets in end.items()}
    shares = {place: count * rows // total for place, count in waiting.items()}
    left = rows - sum(shares.values())
    for place, count in waiting.items():
        more = min(left, count - shares[place])
        left -= more
        name, number = place
        limited[name][number] = begin[name][number] + shares[place] + more
    return limited
