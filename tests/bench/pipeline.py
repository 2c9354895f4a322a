"""What the Spark source and sink move a second: `python -m tests.bench.pipeline [RECORDS]`, in local mode on two cores.

Records of 200 bytes with keys, in chunks of 100, read by `path` and by `endpoint`, all columns and values alone; then as many
written by the sink. Starting up is apart. On a machine with other work the rate per CPU second says more. The rates beside them are the same work in one bare process.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from gateway.envelope import BatchMeta, Columns, Origin
from gateway.pipeline.columns import batches
from gateway.pipeline.session import spark_session
from gateway.pipeline.source import open_log
from gateway.store.committer import Mode
from gateway.store.interface import Append, CreateTopic, Durability, TopicConfig, Unit
from gateway.store.sqlite import StoreOptions, open_store
from tests.pipeline.served import gateway

CHUNK = 100
PARTITIONS = 4
OPTIONS = StoreOptions(tail_cache=0, page_cache=8 << 20, free_space_floor=0)


async def fill(path: Path, records: int) -> None:
    """Chunks as a busy gateway leaves them that has not merged them yet."""
    async with open_store(path, OPTIONS, mode=Mode.INLINE) as store:
        config = TopicConfig(PARTITIONS, Durability.NONE)
        await store.submit(Unit(creates=[CreateTopic("orders", config)])).wait()
        values = [b"%08d" % number + b"x" * 192 for number in range(CHUNK)]
        keys = [b"key-%04d" % number for number in range(CHUNK)]
        for number in range(records // CHUNK):
            meta = BatchMeta(number.to_bytes(16, "big"), Origin("flymq", "flymq", "", "10.0.0.1:5"), "orders")
            append = Append("orders", number % PARTITIONS, Columns.of(values, keys), meta)
            await store.submit(Unit(appends=[append])).wait()


def cpu_seconds() -> float:
    """What this process and everything it has started have used: Spark's share is in others."""
    ticks: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it has ended meanwhile
        fields = text.rsplit(") ", 1)[1].split()
        ticks[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, (parent, _used) in ticks.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return sum(ticks[pid][1] for pid in family if pid in ticks) / os.sysconf("SC_CLK_TCK")


def timed(label: str, records: int, work: Callable[[], Any]) -> None:
    used, started = cpu_seconds(), time.perf_counter()
    work()
    seconds, used = time.perf_counter() - started, cpu_seconds() - used
    rates = f"{records / seconds:>12,.0f} rows/s  {records / max(used, 0.01):>12,.0f} rows per CPU second"
    print(f"{label:<34} {rates}  ({seconds:.2f} s)", flush=True)


def bare(source: Any, records: int, label: str) -> None:
    """The same reading without Spark."""

    def work() -> None:
        with open_log(source) as log:
            found = sum(
                batch.num_rows for number in range(PARTITIONS) for batch in batches(log.read_chunks("orders", number))
            )
        assert found == records

    timed(label, records, work)


def main(records: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "data"
        trio.run(fill, path, records)
        spark = spark_session("local[2]")
        spark.range(10).repartition(2).mapInArrow(lambda them: them, "id long").count()  # workers are up
        bare(str(path), records, "path, one process, no Spark")

        def read(label: str, **options: str) -> None:
            def work(columns: str = "") -> None:
                frame = spark.read.format("gateway").options(
                    topics="orders", maxRecordsPerPartition="250000", **options
                )
                frame = frame.schema(columns).load() if columns else frame.load()
                frame.write.format("noop").mode("overwrite").save()

            work()  # what the JVM compiles, it has compiled
            timed(f"{label}, all columns", records, work)
            timed(f"{label}, value alone", records, lambda: work("value binary"))

        read("path", path=str(path))
        with gateway(path) as served:
            bare(served.endpoint, records, "endpoint, one process, no Spark")
            read("endpoint", endpoint=served.url)
            frame = spark.range(0, records, 1, 2).selectExpr(
                "concat(lpad(id, 8, '0'), repeat('x', 192)) value", "concat('key-', id % 100) key"
            )
            writer = frame.write.format("gateway").mode("append").options(endpoint=served.url, topic="sunk")
            timed("sink", records, writer.save)
            assert sum(one.end for one in served.store.topics["sunk"].partitions) == records
        spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
