"""What the pipeline moves a second: `python -m tests.bench.pipeline [PART [RECORDS]]`, in local mode on two cores.

The parts, of which all are made in turn where none is named:

- `path`: records of 200 random bytes with keys, in chunks of 100, read by `path`: all columns, some, values alone, offsets alone; by
  the data source in the JVM, by the one in Python, and the same rows by Spark from Parquet, in turns
- `archive`: the same to Parquet, on Spark and in one process
- `endpoint`: the same and records of 100 bytes, read from a gateway in a process of its own
- `sink`: records of 200 bytes written into one
- `kafka`: 200 bytes on a Kafka, read by Spark's own source, by the data source in Python, and by Spark's source alone, which leaves
  the headers as they are
- `follow`: an archive that follows a gateway which serves (`tests.bench.following`)

Starting up, and what Java compiles at first, are apart. On a machine with other work the rate per CPU second says more.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
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
from gateway.pipeline.endpoint import Endpoint, EndpointLog
from gateway.pipeline.manifest import Archive
from gateway.pipeline.ranges import Range, record_batches
from gateway.pipeline.session import spark_session
from gateway.pipeline.source import open_log
from gateway.pipeline.spread import Here, OnSpark, Spread
from gateway.store.committer import Mode
from gateway.store.interface import Append, Durability, MakeTopic, TopicConfig, Unit
from gateway.store.kafka.opening import open_kafka_store
from gateway.store.kafka.options import KafkaOptions
from gateway.store.sqlite import StoreOptions, open_store
from tests.bench.following import cpu_seconds, following
from tests.bench.processes import gateway
from tests.kafka.node import Kafka
from tests.pipeline.jars import spark_kafka

CHUNK = 100
SIZE, SMALL_SIZE = 200, 100
APPEND, ON_KAFKA = 1_000, 2
"""Records of an append to Kafka, and partitions there."""
PARTITIONS = 4
TASK = 250_000
FEWER = 1_000_000
"""Records of what would take too long with all of them."""
OPTIONS = StoreOptions(tail_cache=0, page_cache=8 << 20, free_space_floor=0)
WARM, TURNS, ARCHIVES = 2, 3, 3
"""Rounds that are not counted, since Java compiles in them, and those whose median is."""
READS = {
    "offset alone": "offset bigint",
    "all columns": "",
    "offset, timestamp, key, value": "offset bigint, timestamp timestamp, key binary, value binary",
    "value alone": "value binary",
}
"""The first of them also brings the files into memory."""


async def fill(path: Path, records: int, size: int = SIZE) -> None:
    """Chunks as a busy gateway leaves them that has not merged them yet."""
    async with open_store(path, OPTIONS, mode=Mode.INLINE) as store:
        config = TopicConfig(PARTITIONS, Durability.NONE)
        await store.submit(Unit(creates=[MakeTopic("orders", config)])).wait()
        keys = [b"key-%04d" % number for number in range(CHUNK)]
        chance = random.Random(1)
        for number in range(records // CHUNK):
            drawn = chance.randbytes(size * CHUNK)
            values = [drawn[at : at + size] for at in range(0, len(drawn), size)]
            meta = BatchMeta(number.to_bytes(16, "big"), Origin("flymq", "flymq", "", "10.0.0.1:5"), "orders")
            append = Append("orders", number % PARTITIONS, Columns.of(values, keys), meta)
            await store.submit(Unit(appends=[append])).wait()


def timed(label: str, records: int, work: Callable[[], Any]) -> float:
    """Rows a second."""
    seconds, used = measured(work)
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


def reads(spark: SparkSession, of_records: int, parquet: str, sets: Sequence[str], title: str, **options: str) -> None:
    """The same rows by the data sources, and from Parquet."""

    def one(form: str, columns: str) -> DataFrame:
        if form == "parquet":
            frame = spark.read.parquet(parquet)
            return frame.select(*[name.split()[0] for name in columns.split(", ")]) if columns else frame
        ends = json.dumps({"orders": {str(number): of_records // PARTITIONS for number in range(PARTITIONS)}})
        given = {"topics": "orders", "maxRecordsPerPartition": str(TASK), "endingOffsets": ends, **options}
        return loaded(spark, form, columns, given)

    in_turn(of_records, ["gateway", *(["gateway-python", "parquet"] if parquet else [])], one, sets, title)


def in_turn(
    of_records: int, forms: Sequence[str], one: Callable[[str, str], DataFrame], sets: Sequence[str], title: str
) -> None:
    """The same rows by each way in turn, several times: what the machine does meanwhile, it does to all of them."""
    for name in sets:
        spent: dict[str, list[tuple[float, float]]] = {form: [] for form in forms}
        for turn in range(WARM + TURNS):
            for form in forms:
                frame = one(form, READS[name])
                found = measured(functools.partial(consumed, frame, of_records))
                if turn >= WARM:
                    spent[form].append(found)
        said = {form: figure(of_records, found) for form, found in spent.items()}
        rate = {
            form: of_records / statistics.median(seconds for seconds, _used in found) for form, found in spent.items()
        }
        ratios = "".join(f"; {rate[forms[0]] / rate[form]:.2f} times {form}" for form in forms[1:])
        print(f"{title}, {name}: {', '.join(f'{form} {text}' for form, text in said.items())}{ratios}", flush=True)


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and of the processors: of this process and all that it has started."""
    used, started = cpu_seconds(os.getpid()), time.perf_counter()
    work()
    return time.perf_counter() - started, cpu_seconds(os.getpid()) - used


def figure(records: int, spent: Sequence[tuple[float, float]]) -> str:
    """The median of several rounds."""
    seconds, used = (statistics.median(column) for column in zip(*spent, strict=True))
    return f"{records / seconds / 1e6:.2f} M rows/s ({used / records * 1e6:.2f} CPU s for a million)"


def loaded(spark: SparkSession, kind: str, columns: str, options: dict[str, str]) -> DataFrame:
    """A frame of some columns, or all."""
    reader = spark.read.format(kind).options(**options)
    return reader.schema(columns).load() if columns else reader.load()


def archiving(path: Path, to: Path, spark: SparkSession, records: int) -> None:
    """Store to Parquet, and what a reader of the Parquet files counts."""
    spreads: dict[str, Spread] = {"on Spark": OnSpark(spark), "one process, no Spark": Here()}
    for label, spread in spreads.items():
        spent = []
        for turn in range(1 + ARCHIVES):
            directory = to / f"{label} {turn}"
            found = measured(functools.partial(archive, path, directory, spread=spread))
            if turn:  # the first has started workers, who have imported what they need
                spent.append(found)
            named = sum(pq.read_metadata(directory / file.path).num_rows for file in Archive(directory).files())
            counted = spark.read.parquet(str(directory)).count()
            assert (named, counted) == (records, records), (named, counted)
            shutil.rmtree(directory)
        print(f"archive, {label}: {figure(records, spent)}", flush=True)


def by_path(directory: Path, spark: SparkSession, records: int) -> None:
    path = directory / "data"
    trio.run(fill, path, records)
    fewer = min(records, FEWER)
    for columns in (SCHEMA.names, ["value"]):
        name = "all columns" if len(columns) > 1 else "value alone"
        bare(str(path), fewer, f"path, one process, no Spark, {name}, cold", columns)
        bare(str(path), fewer, f"path, one process, no Spark, {name}", columns)
    parquet = str(directory / "parquet")
    spark.read.format("gateway").option("path", str(path)).load().write.parquet(parquet)
    reads(spark, records, parquet, list(READS), "path", path=str(path))


def to_archive(directory: Path, spark: SparkSession, records: int) -> None:
    trio.run(fill, directory / "data", records)
    archiving(directory / "data", directory, spark, records)


def by_endpoint(directory: Path, spark: SparkSession, records: int) -> None:
    for size in (SMALL_SIZE, SIZE):
        place = directory / str(size)
        trio.run(fill, place / "data", records, size)
        with gateway(str(place)) as served:
            url = f"http://127.0.0.1:{served.ports['admin']}"
            sets = [name for name in READS if name != "offset, timestamp, key, value"]
            reads(spark, records, "", sets, f"endpoint, {size} B", endpoint=url)


def to_gateway(directory: Path, spark: SparkSession, records: int) -> None:
    with gateway(str(directory)) as served:
        url = f"http://127.0.0.1:{served.ports['admin']}"
        frame = spark.range(0, records, 1, 2).selectExpr(
            "concat(lpad(id, 8, '0'), repeat('x', 192)) value", "concat('key-', id % 100) key"
        )
        writer = frame.write.format("gateway").mode("append").options(endpoint=url, topic="sunk")
        spent = [measured(writer.save) for _ in range(WARM + TURNS)]
        print(f"sink, cold: {figure(records, spent[:1])}", flush=True)
        print(f"sink: {figure(records, spent[WARM:])}", flush=True)
        with EndpointLog(Endpoint.of(url)) as log:
            assert sum(one.end for one in log.topic("sunk").partitions) == records * len(spent)


async def fill_kafka(brokers: str, records: int) -> None:
    """Appends as those of a busy gateway, each to one partition."""
    async with open_kafka_store(KafkaOptions([brokers], prefix="bench.")) as store:
        await store.submit(Unit(creates=[MakeTopic("orders", TopicConfig(ON_KAFKA, Durability.FSYNC))])).wait()
        chance = random.Random(1)
        keys = [b"key-%04d" % number for number in range(APPEND)]
        for number in range(records // APPEND):
            values = [chance.randbytes(SIZE) for _ in range(APPEND)]
            meta = BatchMeta(number.to_bytes(16, "big"), Origin("flymq", "flymq", "", "10.0.0.1:5"), "orders")
            append = Append("orders", number % ON_KAFKA, Columns.of(values, keys), meta)
            await store.submit(Unit(appends=[append])).wait()


def on_kafka(directory: Path, spark: SparkSession, records: int) -> None:
    with Kafka(directory) as node:
        trio.run(fill_kafka, node.brokers, records)
        ours = {"kafka": node.brokers, "kafkaPrefix": "bench.", "topics": "orders"}
        bare = {"kafka.bootstrap.servers": node.brokers, "subscribe": "bench.orders", "includeHeaders": "true"}
        bare |= {"startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}

        def one(form: str, columns: str) -> DataFrame:
            if form == "bare":
                frame = spark.read.format("kafka").options(**bare).load()
                return frame.select(*[name.split()[0] for name in columns.split(", ")]) if columns else frame
            return loaded(spark, "gateway", columns, {**ours, "kafkaReader": form})

        sets = [name for name in READS if name != "offset alone"]
        in_turn(records, ["spark", "gateway", "bare"], one, sets, "kafka")


PARTS: dict[str, tuple[Callable[[Path, SparkSession, int], None], int]] = {
    "path": (by_path, 5_000_000),
    "archive": (to_archive, 5_000_000),
    "endpoint": (by_endpoint, 2_000_000),
    "sink": (to_gateway, FEWER),
    "kafka": (on_kafka, FEWER),
}
"""And how many records each takes."""


def main(part: str = "", records: int = 0) -> None:
    for name in [part] if part else [*PARTS, "follow"]:
        if name == "follow":
            following(lambda label, figure: print(f"{label:<50} {figure}", flush=True))
            continue
        work, most = PARTS[name]
        with tempfile.TemporaryDirectory() as directory:
            spark = spark_session("local[2]", settings={"spark.jars": spark_kafka()})
            spark.range(10).repartition(2).mapInArrow(lambda them: them, "id long").count()  # workers are up
            work(Path(directory), spark, records or most)
            spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "", int(sys.argv[2]) if len(sys.argv) > 2 else 0)
