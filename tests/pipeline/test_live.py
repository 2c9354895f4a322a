"""Real-time mode: a query gets each record when it comes, and its checkpoint says how far it was."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.envelope import Columns
from gateway.pipeline.endpoint import EndpointWriter
from gateway.store.interface import DropTopic, Unit
from gateway.store.reader import LogReader
from tests.pipeline.served import Gateway, gateway
from tests.pipeline.stored import Log, filled

pytestmark = pytest.mark.spark
PATIENCE = 240.0
SHORT = {
    "spark.sql.streaming.realTimeMode.minBatchDuration": "1000",
    "spark.sql.streaming.realTimeMode.dangerouslyAllowCheckpointV1.enabled": "true",
}
"""Micro-batches of a second, instead of five at least."""


async def orders(log: Log) -> None:
    await log.create("orders", partitions=2)
    for _ in range(3):
        await log.append("orders", [b"a", b"b"], 0)
        await log.append("orders", [b"c"], 1)


@pytest.fixture
def short(spark: Any) -> Iterator[Any]:
    before = {name: spark.conf.get(name, None) for name in SHORT}
    for name, value in SHORT.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def until(holds: Callable[[], bool], query: Any) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE * 10)):
        if holds():
            return
        assert query.isActive, query.exception()
        pause.wait(0.1)
    raise AssertionError(query.lastProgress)


def live(spark: Any, work: Path, **options: str) -> Any:
    """Writes a file for each record, called as it is placed."""
    out = work / "out"
    out.mkdir(exist_ok=True)
    directory = str(out)

    def each(row: Any) -> None:
        with open(f"{directory}/{row.partition}-{row.offset}", "ab") as file:  # noqa: PTH123  # on an executor
            file.write(bytes(row.value))

    read = spark.readStream.format("gateway").options(topics="orders", startingOffsets="earliest", **options).load()
    write = read.select("partition", "offset", "value").writeStream.foreach(each).outputMode("update")
    return write.option("checkpointLocation", str(work / "checkpoint")).trigger(realTime="1 second").start()


def seen(work: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (work / "out").iterdir()}


def stored(path: Path) -> dict[str, bytes]:
    with LogReader(path) as reader:
        return {
            f"{number}-{run.base_offset + index}": run.columns.value(index)
            for number in (0, 1)
            for run in reader.read_chunks("orders", number)
            for index in range(run.count)
        }


def publish(served: Gateway, number: int) -> None:
    with EndpointWriter(served.endpoint) as out:
        columns = Columns.of([b"%d-%d" % (number, one) for one in range(5)])
        out.append("orders", columns, producer="p", epoch=0, sequence=number, partition=number % 2)


@pytest.mark.parametrize("mode", ["path", "endpoint"])
def test_each_record_when_it_comes_and_none_twice_behind_a_checkpoint(short: Any, tmp_path: Path, mode: str) -> None:
    store = tmp_path / "store"
    filled(store, orders)
    with gateway(store) as served:
        options = {"path": str(store)} if mode == "path" else {"endpoint": served.url}
        query = live(short, tmp_path, **options)
        for number in range(4):
            publish(served, number)
        until(lambda: seen(tmp_path) == stored(store), query)
        began = query.lastProgress["batchId"] if query.lastProgress else 0
        publish(served, 4)  # into a later micro-batch
        until(lambda: query.lastProgress is not None and query.lastProgress["batchId"] > began + 1, query)
        assert seen(tmp_path) == stored(store)
        query.stop()
        publish(served, 5)
        again = live(short, tmp_path, **options)
        until(lambda: seen(tmp_path).keys() == stored(store).keys(), again)
        again.stop()
        # what the checkpoint has is not read again: a file that was written twice would hold its record twice
        assert seen(tmp_path) == stored(store)
        (source,) = query.lastProgress["sources"]
        at = json.loads(source["endOffset"])["orders"]
        assert at["0"] + at["1"] >= 9 + 20


def test_a_topic_that_is_deleted_meanwhile_is_said(short: Any, tmp_path: Path) -> None:

    store = tmp_path / "store"
    filled(store, orders)
    with gateway(store) as served:
        query = live(short, tmp_path, path=str(store))
        until(lambda: seen(tmp_path) == stored(store), query)

        async def drop() -> None:
            await served.store.submit(Unit(deletes=[DropTopic("orders")])).wait()

        served.inside(drop)
        with pytest.raises(Exception, match=r"there is no topic orders|orders: the topic was deleted"):
            query.awaitTermination(int(PATIENCE))
