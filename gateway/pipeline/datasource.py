"""The Spark data source `gateway`: `spark.read.format("gateway")` and `spark.readStream.format("gateway")`.

Readers travel to the executors by pickle, so they hold options and nothing that is open. A stream's position is, for
every topic, its epoch and the next offset of each partition; Spark writes it into the checkpoint.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from gateway.arrow.schema import SCHEMA, chosen
from gateway.bulk import wire
from gateway.errors import InvalidRequest, Unsupported
from gateway.pipeline.jvm import add_jar
from gateway.pipeline.options import TO_THE_END, ReadOptions
from gateway.pipeline.ranges import WAY_ON, HistoryGone, Range, cut, meant, record_batches, selected, starts, whole
from gateway.pipeline.sink import GatewayStreamWriter, GatewayWriter, WriteOptions
from gateway.pipeline.source import ReadableLog, open_log
from gateway.store.reader import StoredTopic

FIRST_YEAR = 1970
"""The log counts milliseconds from here, so no message is older."""

Position = dict[str, dict[str, int]]
"""Topic -> {"epoch": its epoch, "0": next offset, ...}."""


def register(spark: SparkSession) -> None:
    """Make `format("gateway")` known to a session, and let conditions reach it.

    It is the data source in the JVM where its jar can be had, else the one in Python, which is always there as `gateway-python`.
    """
    # without it Spark refuses every batch of a source in Python that takes filters
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PythonDataSource)
    add_jar(spark)
    try:
        spark.dataSource.register(GatewayDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


class LogRange(InputPartition):
    """What one task reads."""

    def __init__(self, what: Range) -> None:
        super().__init__(what)


class GatewayDataSource(DataSource):
    """A gateway's log, from the directory of its store or from its admin address; and the sink into a running one."""

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "gateway"

    def schema(self) -> StructType:
        """Every column; a schema of the user's own with fewer of them reads only those."""
        options = ReadOptions.parse(self.options)
        return StructType([one for one in from_arrow_schema(SCHEMA).fields if options.headers or one.name != "headers"])

    def reader(self, schema: StructType) -> GatewayReader:
        return GatewayReader(ReadOptions.parse(self.options), _columns(schema))

    def streamReader(self, schema: StructType) -> GatewayStreamReader:  # noqa: N802  # Spark's name
        return GatewayStreamReader(ReadOptions.parse(self.options), _columns(schema))

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


def _columns(schema: StructType) -> tuple[str, ...]:
    full = {field.name: field.dataType for field in from_arrow_schema(SCHEMA).fields}
    for field in schema.fields:
        if field.name in full and field.dataType != full[field.name]:
            raise InvalidRequest(f"the column {field.name} is {full[field.name].simpleString()}")
    chosen(schema.names)
    return tuple(schema.names)


def _read(options: ReadOptions, columns: Sequence[str], partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    if partition is None or partition.value is None:
        return  # how Spark asks when there was nothing to plan
    with open_log(options.source) as reader:
        yield from record_batches(reader, partition.value, chosen(columns), fail_on_data_loss=options.fail_on_data_loss)


# --- a batch ---


@attrs.define
class Narrowing:
    """What filters say about where to look. Spark applies the filters again, so this may take too much, never too little."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    low: int = 0
    high: int | None = None
    """Offsets [low, high)."""
    from_ms: int | None = None
    before_ms: int | None = None

    def add(self, one: Filter) -> None:
        """Take a filter into account, if it is about a place in the log."""
        column = ".".join(getattr(one, "attribute", ()))
        value: Any = getattr(one, "value", None)
        if isinstance(one, In | EqualTo):
            values = frozenset(each for each in (one.value if isinstance(one, In) else [value]) if each is not None)
            if not values:
                return
            if column == "topic":
                self.topics = values if self.topics is None else self.topics & values
            elif column == "partition":
                self.partitions = values if self.partitions is None else self.partitions & values
            elif column == "offset":
                self._offsets(min(values), max(values) + 1)
            elif column == "timestamp":
                self._times(min(map(_earliest, values)), max(map(_latest, values)))
        elif isinstance(one, GreaterThan | GreaterThanOrEqual):
            if column == "offset":
                self._offsets(value + isinstance(one, GreaterThan), None)
            elif column == "timestamp":
                self._times(_earliest(value), None)
        elif isinstance(one, LessThan | LessThanOrEqual):
            if column == "offset":
                self._offsets(0, value + isinstance(one, LessThanOrEqual))
            elif column == "timestamp":
                self._times(None, _latest(value))

    def _offsets(self, low: int, high: int | None) -> None:
        self.low = max(self.low, low)
        self.high = high if self.high is None else self.high if high is None else min(self.high, high)

    def _times(self, first: int | None, last: int | None) -> None:
        if first is not None:
            self.from_ms = first if self.from_ms is None else max(self.from_ms, first)
        if last is not None:
            self.before_ms = last + 1 if self.before_ms is None else min(self.before_ms, last + 1)

    def apply(self, reader: ReadableLog, what: Range) -> Range:
        """What is left of a range; it may be empty."""
        if (self.topics is not None and what.topic not in self.topics) or (
            self.partitions is not None and what.partition not in self.partitions
        ):
            return attrs.evolve(what, end=what.start)
        start = max(what.start, self.low)
        end = what.end if self.high is None else min(what.end, self.high)
        if self.from_ms is not None:
            start = max(start, reader.offset_for_time(what.topic, what.partition, self.from_ms))
        if self.before_ms is not None:
            end = min(end, reader.offset_for_time(what.topic, what.partition, self.before_ms))
        return attrs.evolve(what, start=start, end=end)


def _earliest(time: dt.datetime) -> int:
    return min(_instants(time))


def _latest(time: dt.datetime) -> int:
    return max(_instants(time)) + 1


def _instants(time: dt.datetime) -> Sequence[int]:
    """Spark gives local time without a zone: in the hour that autumn repeats it may be either."""
    if time.year < FIRST_YEAR:
        return (0,)  # nothing was ever stored so early
    if time.year == dt.MAXYEAR:
        return (wire.LATEST,)  # west of Greenwich it ends in a year that Python does not know
    return [max(0, int(time.replace(fold=fold).timestamp() * 1000)) for fold in (0, 1)]


class GatewayReader(DataSourceReader):
    """Reads what there is at the moment of planning."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._narrowing = Narrowing()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Look only where the filters leave something; Spark applies them all the same."""
        for one in filters:
            self._narrowing.add(one)
            yield one

    def partitions(self) -> Sequence[InputPartition]:
        """A task for each partition of the log, several for a long one."""
        options = self._options
        with open_log(options.source) as reader:
            ranges = [self._narrowing.apply(reader, one) for one in whole(reader, options)]
        return [LogRange(one) for one in cut(ranges, options.per_partition, options.least_partitions)]

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

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Where a query without a checkpoint begins."""
        options = self._options
        with open_log(options.source) as reader:
            return {
                topic.name: _position(topic, options, starts(reader, topic, options, TO_THE_END))
                for topic in selected(reader.topics(), options)
            }

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """`maxRecordsPerTrigger`."""
        limit = self._options.per_trigger
        return ReadMaxRows(limit) if limit is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self._last = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """How far the next micro-batch goes."""
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
        """The tasks of a micro-batch."""
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
        """Whether to wait for more; Spark has no limit of this kind for a source in Python, so it is taken from the options."""
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
        """Where to go on in everything that `end` names; refuses, or passes over, what is gone."""
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
    """Offsets of each partition that are not read yet."""
    return {
        (name, number): offset - begin[name][number]
        for name, offsets in end.items()
        if name in begin
        for number, offset in offsets.items()
        if number != "epoch"
    }


def _limited(begin: Position, end: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """An end with at most so many records before it: each partition gives in proportion to what it has."""
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
