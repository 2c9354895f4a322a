"""What the pipeline moves a second: `python -m tests.bench.pipeline [RECORDS]`, in local mode on two cores.

Records of 200 bytes with keys, in chunks of 100, read by `path`: all columns, some, values alone, and counted. Beside each
read stands the ceiling: the same columns in batches that are ready, so that nothing is left of the work but Spark's own. Then
the archive to Parquet, reading by `endpoint`, as many records written by the sink, and an archive that follows a gateway
which serves (`tests.bench.following`). Starting up is apart. On a machine with other work the rate per CPU second says more.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import trio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from gateway.arrow.schema import DDL, SCHEMA, chosen
from gateway.envelope import BatchMeta, Columns, Origin
from gateway.pipeline.archive import archive
from gateway.pipeline.manifest import Archive
from gateway.pipeline.ranges import Range, record_batches
from gateway.pipeline.session import spark_session
from gateway.pipeline.source import open_log
from gateway.pipeline.spread import Here, OnSpark, Spread
from gateway.store.committer import Mode
from gateway.store.interface import Append, Durability, MakeTopic, TopicConfig, Unit
from gateway.store.sqlite import StoreOptions, open_store
from tests.bench.following import cpu_seconds, following
from tests.pipeline.served import gateway

CHUNK = 100
PARTITIONS = 4
TASK = 250_000
FEWER = 1_000_000
"""Records of what would take too long with all of them."""
OPTIONS = StoreOptions(tail_cache=0, page_cache=8 << 20, free_space_floor=0)
READS = {
    "offset alone, counted": "offset bigint",
    "all columns": "",
    "offset, timestamp, key, value": "offset bigint, timestamp timestamp, key binary, value binary",
    "value alone": "value binary",
}
"""The first of them also brings the file into memory."""


async def fill(path: Path, records: int) -> None:
    """Chunks as a busy gateway leaves them that has not merged them yet."""
    async with open_store(path, OPTIONS, mode=Mode.INLINE) as store:
        config = TopicConfig(PARTITIONS, Durability.NONE)
        await store.submit(Unit(creates=[MakeTopic("orders", config)])).wait()
        values = [b"%08d" % number + b"x" * 192 for number in range(CHUNK)]
        keys = [b"key-%04d" % number for number in range(CHUNK)]
        for number in range(records // CHUNK):
            meta = BatchMeta(number.to_bytes(16, "big"), Origin("flymq", "flymq", "", "10.0.0.1:5"), "orders")
            append = Append("orders", number % PARTITIONS, Columns.of(values, keys), meta)
            await store.submit(Unit(appends=[append])).wait()


class Ceiling(DataSource):
    """The first batch of a store, as often as it takes: what Spark does with batches that cost nothing."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> CeilingReader:
        return CeilingReader(self.options["path"], int(self.options["records"]), schema.names)


class CeilingReader(DataSourceReader):
    """As many tasks as the real one has."""

    def __init__(self, path: str, records: int, columns: Sequence[str]) -> None:
        self._path = path
        self._records = records
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """The number of records is all a task needs to know."""
        return [InputPartition(min(TASK, self._records - at)) for at in range(0, self._records, TASK)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """On an executor."""
        with open_log(self._path) as log:
            topic = log.topic("orders")
            first = Range("orders", 0, 0, topic.partition(0).end, topic.epoch)
            batch = next(record_batches(log, first, chosen(self._columns)))
        left = partition.value
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


def timed(label: str, records: int, work: Callable[[], Any]) -> float:
    """Rows a second."""
    used, started = cpu_seconds(os.getpid()), time.perf_counter()
    work()
    seconds, used = time.perf_counter() - started, cpu_seconds(os.getpid()) - used
    rates = f"{records / seconds:>12,.0f} rows/s  {records / max(used, 0.01):>12,.0f} rows per CPU second"
    print(f"{label:<50} {rates}  ({seconds:.2f} s)", flush=True)
    return records / seconds


def bare(source: Any, records: int, label: str, columns: Sequence[str]) -> None:
    """The same reading without Spark."""

    def work() -> None:
        left = records
        with open_log(source) as log:
            topic = log.topic("orders")
            for partition in topic.partitions:
                what = Range("orders", partition.number, 0, min(partition.end, records // PARTITIONS), topic.epoch)
                left -= sum(batch.num_rows for batch in record_batches(log, what, chosen(columns)))
        assert not left

    timed(label, records, work)


def consumed(frame: DataFrame, records: int) -> None:
    """Every row is made, and goes nowhere."""
    if frame.columns == ["offset"]:
        assert frame.count() == records
    else:
        frame.write.format("noop").mode("overwrite").save()


def reads(spark: SparkSession, of_records: int, ceiling: str, **options: str) -> None:
    """Each read after two shorter ones, since what the JVM compiles it has compiled then; then the same of nothing."""

    def real(columns: str, count: int) -> DataFrame:
        ends = json.dumps({"orders": {str(number): count // PARTITIONS for number in range(PARTITIONS)}})
        given = {"topics": "orders", "maxRecordsPerPartition": str(TASK), "endingOffsets": ends, **options}
        return loaded(spark, "gateway", columns, given)

    def ready(columns: str, count: int) -> DataFrame:
        return loaded(spark, "ceiling", columns, {"path": ceiling, "records": str(count)})

    def rate(title: str, columns: str, load: Callable[[str, int], DataFrame]) -> float:
        warm = min(of_records, FEWER)
        for _ in range(2):
            consumed(load(columns, warm), warm)
        frame = load(columns, of_records)
        return timed(title, of_records, functools.partial(consumed, frame, of_records))

    for name, columns in READS.items():
        found = rate(f"{next(iter(options))}, {name}", columns, real)
        if ceiling:
            print(
                f"  of the ceiling: {found / rate('  ceiling: batches that are ready', columns, ready):.0%}", flush=True
            )


def loaded(spark: SparkSession, kind: str, columns: str, options: dict[str, str]) -> DataFrame:
    """A frame of some columns, or all."""
    reader = spark.read.format(kind).options(**options)
    return reader.schema(columns).load() if columns else reader.load()


def archiving(path: Path, to: Path, spark: SparkSession, records: int) -> None:
    """Store to Parquet, and what a reader of the Parquet files counts."""
    few = to / "few"
    trio.run(fill, few, 1000 * CHUNK)
    archive(few, to / "warm", spread=OnSpark(spark))  # workers have imported what they need
    spreads: dict[str, Spread] = {"on Spark": OnSpark(spark), "one process, no Spark": Here()}
    for label, spread in spreads.items():
        directory = to / label
        timed(f"archive, {label}", records, functools.partial(archive, path, directory, spread=spread))
        found = sum(pq.read_metadata(directory / file.path).num_rows for file in Archive(directory).files())
        counted = spark.read.parquet(str(directory)).count()
        assert (found, counted) == (records, records), (found, counted)


def main(records: int) -> None:
    """All of it."""
    fewer = min(records, FEWER)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "data"
        trio.run(fill, path, records)
        spark = spark_session("local[2]")
        spark.dataSource.register(Ceiling)
        spark.range(10).repartition(2).mapInArrow(lambda them: them, "id long").count()  # workers are up
        for columns in (SCHEMA.names, ["value"]):
            name = "all columns" if len(columns) > 1 else "value alone"
            bare(str(path), fewer, f"path, one process, no Spark, {name}, cold", columns)
            bare(str(path), fewer, f"path, one process, no Spark, {name}", columns)
        reads(spark, records, str(path), path=str(path))
        archiving(path, Path(directory), spark, records)
        with gateway(path) as served:
            bare(served.endpoint, fewer, "endpoint, one process, no Spark, all columns", SCHEMA.names)
            reads(spark, fewer, "", endpoint=served.url)
            frame = spark.range(0, fewer, 1, 2).selectExpr(
                "concat(lpad(id, 8, '0'), repeat('x', 192)) value", "concat('key-', id % 100) key"
            )
            writer = frame.write.format("gateway").mode("append").options(endpoint=served.url, topic="sunk")
            timed("sink", fewer, writer.save)
            assert sum(one.end for one in served.store.topics["sunk"].partitions) == fewer
        spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
    following(lambda label, figure: print(f"{label:<50} {figure}", flush=True))
