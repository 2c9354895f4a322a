"""What the pipeline moves a second: `python -m tests.bench.pipeline [RECORDS]`, in local mode on two cores.

Records of 200 random bytes with keys, in chunks of 100, read by `path`: all columns, some, values alone, offsets alone; by the data
source in the JVM, by the one in Python, and the same rows by Spark from Parquet, in turns. Then
the archive to Parquet, reading by `endpoint`, as many records written by the sink, and an archive that follows a gateway
which serves (`tests.bench.following`). Starting up is apart. On a machine with other work the rate per CPU second says more.
"""

from __future__ import annotations

import functools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import trio
from pyspark.sql import DataFrame, SparkSession

from gateway.arrow.schema import SCHEMA, chosen
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
WARM, TURNS = 2, 5
"""Rounds that are not counted, since Java compiles in them, and those whose median is."""
READS = {
    "offset alone": "offset bigint",
    "all columns": "",
    "offset, timestamp, key, value": "offset bigint, timestamp timestamp, key binary, value binary",
    "value alone": "value binary",
}
"""The first of them also brings the files into memory."""


async def fill(path: Path, records: int) -> None:
    """Chunks as a busy gateway leaves them that has not merged them yet."""
    async with open_store(path, OPTIONS, mode=Mode.INLINE) as store:
        config = TopicConfig(PARTITIONS, Durability.NONE)
        await store.submit(Unit(creates=[MakeTopic("orders", config)])).wait()
        keys = [b"key-%04d" % number for number in range(CHUNK)]
        chance = random.Random(1)
        for number in range(records // CHUNK):
            drawn = chance.randbytes(200 * CHUNK)
            values = [drawn[at : at + 200] for at in range(0, len(drawn), 200)]
            meta = BatchMeta(number.to_bytes(16, "big"), Origin("flymq", "flymq", "", "10.0.0.1:5"), "orders")
            append = Append("orders", number % PARTITIONS, Columns.of(values, keys), meta)
            await store.submit(Unit(appends=[append])).wait()


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
    assert records
    frame.write.format("noop").mode("overwrite").save()


def reads(spark: SparkSession, of_records: int, parquet: str, **options: str) -> None:
    """The same rows by each way in turn, several times: what the machine does meanwhile, it does to all of them."""

    def one(form: str, columns: str) -> DataFrame:
        if form == "parquet":
            frame = spark.read.parquet(parquet)
            return frame.select(*[name.split()[0] for name in columns.split(", ")]) if columns else frame
        ends = json.dumps({"orders": {str(number): of_records // PARTITIONS for number in range(PARTITIONS)}})
        given = {"topics": "orders", "maxRecordsPerPartition": str(TASK), "endingOffsets": ends, **options}
        return loaded(spark, form, columns, given)

    forms = ["gateway", "gateway-python", *(["parquet"] if parquet else [])]
    for name, columns in READS.items():
        rates: dict[str, list[float]] = {form: [] for form in forms}
        for turn in range(WARM + TURNS):
            for form in forms:
                frame = one(form, columns)
                started = time.perf_counter()
                consumed(frame, of_records)
                if turn >= WARM:
                    rates[form].append(of_records / (time.perf_counter() - started))
        rate = {form: statistics.median(found) for form, found in rates.items()}
        said = ", ".join(f"{form} {found / 1e6:.2f} M rows/s" for form, found in rate.items())
        ratios = ", ".join(f"{rate['gateway'] / rate[form]:.1f} times {form}" for form in forms[1:])
        print(f"{next(iter(options))}, {name}: {said}; {ratios}", flush=True)


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
        spark.range(10).repartition(2).mapInArrow(lambda them: them, "id long").count()  # workers are up
        for columns in (SCHEMA.names, ["value"]):
            name = "all columns" if len(columns) > 1 else "value alone"
            bare(str(path), fewer, f"path, one process, no Spark, {name}, cold", columns)
            bare(str(path), fewer, f"path, one process, no Spark, {name}", columns)
        parquet = str(Path(directory) / "parquet")
        spark.read.format("gateway").option("path", str(path)).load().write.parquet(parquet)
        reads(spark, records, parquet, path=str(path))
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
