"""Real Spark reads a real store: in batches, in micro-batches over a restart, and where history is gone."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from gateway.pipeline.datasource import register
from gateway.store.interface import DropTopic, Unit
from tests.pipeline.patient import run_to_the_end
from tests.pipeline.places import FORMATS, MODES, Place, place
from tests.pipeline.stored import Log
from tests.store.kit import START_MS

pytestmark = pytest.mark.spark


async def orders(log: Log) -> None:
    await log.create("orders.eu", partitions=2)
    await log.create("orders.us")
    await log.create("other")
    for number in range(10):
        await log.append("orders.eu", [b"a%d" % number, b"b"], 0, [b"k", None], [(("h", b"1"),), ()], [0, START_MS])
        await log.append("orders.eu", [b"c%d" % number], 1)
        log.clock.ms += 1000
    await log.append("orders.us", [b"us"])
    await log.append("other", [b"x"])


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def load(spark: Any, store: Place, **options: Any) -> Any:
    return spark.read.format(store.format).options(**store.options, **options).load()


def values(frame: Any) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def test_a_batch(spark: Any, tmp_path: Path, mode: str, form: str) -> None:
    with place(tmp_path / "store", mode, orders, form) as store:
        read_in_a_batch(spark, store)


def read_in_a_batch(spark: Any, store: Place) -> None:
    frame = load(spark, store, topics="orders.*")
    assert frame.groupBy("topic").count().orderBy("topic").collect() == [("orders.eu", 30), ("orders.us", 1)]
    row = frame.where("topic = 'orders.eu' and partition = 0 and offset = 3").collect()[0].asDict(recursive=True)
    assert row.pop("timestamp").timestamp() * 1000 == START_MS + 1000
    assert row.pop("expires").timestamp() * 1000 == START_MS
    assert row == {
        "topic": "orders.eu",
        "partition": 0,
        "offset": 3,
        "key": None,
        "value": b"b",
        "headers": [],
        "id": b"batch-0123456789\0\0\0\1",
        "protocol": "flymq",
        "listener": "here",
        "principal": "ann",
        "route": "orders",
        "delivery": "at_least_once",
    }
    assert frame.where("offset = 2 and partition = 0").select("headers").first()[0] == [("h", bytearray(b"1"))]
    assert values(load(spark, store, topics="orders.eu", startingOffsets='{"orders.eu": {"0": 18, "1": 9}}')) == [
        b"a9", b"b", b"c9",
    ]  # fmt: skip
    recent = frame.where("topic = 'orders.eu' and timestamp >= to_timestamp('2023-11-14 22:13:29')")
    assert recent.rdd.getNumPartitions() == (2 if store.format == FORMATS[0] else 3)
    assert values(recent) == [b"a9", b"b", b"c9"]
    only = spark.read.format(store.format).schema("value binary").options(**store.options).load()
    assert values(only.limit(1000)) == values(load(spark, store))


def test_a_frame_is_read_again_without_the_conditions_of_before(spark: Any, tmp_path: Path, form: str) -> None:
    """Spark keeps what a source in Python said of conditions, for other queries on the frame."""
    with place(tmp_path / "store", "path", orders, form) as store:
        frame = load(spark, store)
        assert frame.where("offset = 3").count() == 2
        assert frame.count() == 32
        assert frame.where("offset = 3").count() == 2
        assert frame.where("size(headers) >= 0").count() == 32


def test_nothing_there_to_read(spark: Any, tmp_path: Path, form: str) -> None:
    with pytest.raises(PySparkException, match="there is no store at"):
        load(spark, Place(tmp_path / "none", format=form)).count()


def test_nothing_new_to_read(spark: Any, tmp_path: Path, mode: str, form: str) -> None:
    with place(tmp_path / "store", mode, orders, form) as store:
        assert load(spark, store, startingOffsets="latest").count() == 0
        assert load(spark, store, topics="none.*").collect() == []


def test_a_session_that_somebody_else_made(spark: Any, tmp_path: Path) -> None:
    register(spark)
    with place(tmp_path / "store", MODES[0], orders) as store:
        assert load(spark, store, topics="other").count() == 1


class Stream:
    """A query that is run to the end of what there is, and may be run again from its checkpoint."""

    def __init__(self, spark: Any, store: Place, work: Path) -> None:
        self.spark, self.store, self.work = spark, store, work

    def run(self, **options: str) -> list[dict[str, Any]]:
        frame = self.spark.readStream.format(self.store.format).options(**self.store.options, **options).load()
        query = run_to_the_end(
            lambda: (
                frame.writeStream.format("parquet")
                .option("checkpointLocation", str(self.work / "checkpoint"))
                .option("path", str(self.work / "out"))
                .trigger(availableNow=True)
                .start()
            )
        )
        return [json.loads(one.json) for one in query.recentProgress]

    def offsets(self) -> list[tuple[str, int, int]]:
        out = self.spark.read.parquet(str(self.work / "out"))
        return sorted(map(tuple, out.select("topic", "partition", "offset").collect()))


def test_a_stream_goes_on_where_it_ended(spark: Any, tmp_path: Path, mode: str, form: str) -> None:
    with place(tmp_path / "store", mode, orders, form) as store:
        read_in_two_runs(Stream(spark, store, tmp_path))


def read_in_two_runs(stream: Stream) -> None:
    progress = stream.run(topics="orders.*", startingOffsets="earliest", maxRecordsPerTrigger="12")
    assert [one["numInputRows"] for one in progress if one["numInputRows"]] == [12, 12, 7]
    first = stream.offsets()
    assert len(first) == len(set(first)) == 31

    async def more(log: Log) -> None:
        await log.append("orders.eu", [b"later"], 1)
        await log.create("orders.asia")
        await log.append("orders.asia", [b"new"])

    stream.store.fill(more)
    stream.run(topics="orders.*", startingOffsets="earliest", maxRecordsPerTrigger="12")
    assert set(stream.offsets()) - set(first) == {("orders.eu", 1, 10), ("orders.asia", 0, 0)}
    assert len(stream.offsets()) == 33


def test_a_stream_across_retention(spark: Any, tmp_path: Path, mode: str, form: str) -> None:
    async def fill(log: Log) -> None:
        await log.create("t", retention_seconds=10.0)
        await log.append("t", [b"a", b"b"])

    async def trim(log: Log) -> None:
        log.clock.ms += 1000
        await log.append("t", [b"unread"] * 3)
        log.clock.ms += 20_000
        await log.append("t", [b"kept"] * 2)
        log.store.maintain()
        assert log.store.topics["t"].partitions[0].start == 5

    with place(tmp_path / "store", mode, fill, form) as store:
        stream = Stream(spark, store, tmp_path)
        stream.run(startingOffsets="earliest")
        store.fill(trim)
        read_across(stream)


def test_a_stream_of_a_topic_that_is_deleted_and_made_again(spark: Any, tmp_path: Path, form: str) -> None:
    async def fill(log: Log) -> None:
        await log.create("t")
        await log.append("t", [b"a", b"b"])

    async def delete(log: Log) -> None:
        await log.store.submit(Unit(deletes=[DropTopic("t")])).wait()

    with place(tmp_path / "store", "path", fill, form) as store:
        stream = Stream(spark, store, tmp_path)
        stream.run(topics="t", startingOffsets="earliest")
        store.fill(delete)
        with pytest.raises(PySparkException, match="there is no topic t in"):
            stream.run(topics="t", startingOffsets="earliest")
        stream.run(topics="t", startingOffsets="earliest", failOnDataLoss="false")
        store.fill(fill)
        stream.run(topics="t", startingOffsets="earliest", failOnDataLoss="false")
        assert stream.offsets() == [("t", 0, 0), ("t", 0, 0), ("t", 0, 1), ("t", 0, 1)]


def read_across(stream: Stream) -> None:
    with pytest.raises(PySparkException, match="t/0 begins at 5 now, 2 is next"):
        stream.run(startingOffsets="earliest")
    stream.run(startingOffsets="earliest", failOnDataLoss="false")
    assert [offset for _, _, offset in stream.offsets()] == [0, 1, 5, 6]
    assert all(a < b for a, b in itertools.pairwise(stream.offsets()))
