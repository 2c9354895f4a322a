"""Real Spark writes into a real gateway: each row once, whatever is retried, and mistakes are named."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as spark_sql
from pyspark.sql.pandas.types import from_arrow_schema

from gateway.envelope import Envelope
from gateway.errors import Conflict, GatewayError
from gateway.pipeline.datasource import GatewayDataSource
from gateway.pipeline.endpoint import EndpointLog
from gateway.pipeline.sink import WriteOptions, publish
from tests.pipeline.patient import run_to_the_end
from tests.pipeline.served import Gateway, gateway
from tests.pipeline.stored import Log, filled

pytestmark = pytest.mark.spark


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Gateway]:
    with gateway(tmp_path / "sink") as running:
        yield running


def stored(served: Gateway, topic: str) -> list[Envelope]:
    with EndpointLog(served.endpoint) as log:
        partitions = log.topic(topic).partitions
        return [one for p in partitions for run in log.read_chunks(topic, p.number) for one in run.envelopes()]


def write(frame: Any, served: Gateway, **options: str) -> None:
    frame.write.format("gateway").mode("append").options(**{"endpoint": served.url, **options}).save()


WHEN = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


def test_a_frame_becomes_messages(spark: Any, served: Gateway) -> None:
    rows = [
        ("orders", b"v0", b"k", [("h", b"1"), ("h", b"2")], WHEN),
        ("refunds", b"", None, None, None),
        ("orders", b"v2" * 50, None, [], None),
    ]
    schema = (
        "topic string, value binary, key binary, headers array<struct<name: string, value: binary>>, expires timestamp"
    )
    write(spark.createDataFrame(rows, schema).coalesce(1), served)
    first, second = stored(served, "orders")
    assert (first.value, first.key, first.headers) == (b"v0", b"k", (("h", b"1"), ("h", b"2")))
    assert first.expires_ms == WHEN.timestamp() * 1000
    assert (second.value, second.key, second.headers, second.expires_ms) == (b"v2" * 50, None, (), 0)
    assert [one.value for one in stored(served, "refunds")] == [b""]
    assert first.origin.protocol == "bulk"


def test_what_was_read_can_be_written_and_keeps_its_order(spark: Any, served: Gateway) -> None:
    frame = spark.range(3000).select(
        spark_sql.lit("source").alias("topic"), spark_sql.col("id").cast("string").alias("value")
    )
    write(frame.coalesce(1), served)
    log = spark.read.format("gateway").options(endpoint=served.url, topics="source").load()
    write(log, served, topic="copy")
    assert [int(one.value) for one in stored(served, "copy")] == list(range(3000))


def test_a_task_that_is_tried_again_adds_nothing_twice(served: Gateway) -> None:
    """What runs inside a task, dying in its midst and then done again, while another attempt does the same."""
    batches = [
        pa.record_batch({"value": [b"%d" % n for n in range(start, start + 700)]}) for start in range(0, 2800, 700)
    ]
    options = WriteOptions.parse({"endpoint": served.url, "topic": "once"})

    def dying() -> Iterator[pa.RecordBatch]:
        yield from batches[:3]
        raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        publish(options, dying(), "query/0", 5)
    assert len(stored(served, "once")) == 2100
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(publish, options, iter(batches), "query/0", 5) for _ in range(2)]
    assert [one.result().messages for one in both] == [2800, 2800]
    assert sum(one.result().repeated for one in both) == 2800 + 2100
    assert [int(one.value) for one in stored(served, "once")] == list(range(2800))
    with pytest.raises(Conflict, match="has to be the same, in the same order"):
        publish(options, iter(batches[1:]), "query/0", 5)
    publish(options, iter(batches), "query/0", 6)
    with pytest.raises(Conflict, match="query/0 is in epoch 6: epoch 5 is over"):
        publish(options, iter(batches), "query/0", 5)
    assert len(stored(served, "once")) == 5600


@pytest.mark.soak  # a Spark of its own takes its time
def test_spark_tries_tasks_again(tmp_path: Path) -> None:
    async def fill(log: Log) -> None:
        await log.create("in", partitions=2)
        for partition in (0, 1):
            for first in range(0, 24_000, 4_000):
                await log.append("in", [b"%d.%d" % (partition, n) for n in range(first, first + 4_000)], partition)

    filled(tmp_path / "sink", fill)
    with gateway(tmp_path / "sink") as served:
        command = [sys.executable, "-m", "tests.pipeline.retried", served.url, str(tmp_path)]
        subprocess.run(command, check=True, timeout=550)  # noqa: TID251  # nothing else runs here
        assert sorted(one.name for one in tmp_path.glob("died-*")) == ["died-0", "died-1"]
        assert sorted(one.value for one in stored(served, "out")) == sorted(one.value for one in stored(served, "in"))


def test_a_run_that_is_done_again_under_its_name_adds_nothing(spark: Any, served: Gateway) -> None:
    frame = spark.range(0, 1000, 1, 2).select(spark_sql.col("id").cast("string").alias("value"))
    for _ in range(2):
        write(frame, served, topic="named", producer="nightly-1")
    write(frame, served, topic="named")
    assert len(stored(served, "named")) == 2000
    other = frame.withColumn("value", spark_sql.concat("value", spark_sql.lit("!")))
    with pytest.raises(PySparkException, match=r"nightly-1/\d appended something else as epoch 0, sequence 0"):
        write(other, served, topic="named", producer="nightly-1")


class Flow:
    """A stream from one topic to another, run to the end of what there is."""

    def __init__(self, spark: Any, served: Gateway, work: Path) -> None:
        self.spark, self.served, self.work = spark, served, work

    def run(self, checkpoint: str = "checkpoint", **options: str) -> None:
        source = self.spark.readStream.format("gateway").options(
            endpoint=self.served.url, topics="in", startingOffsets="earliest", maxRecordsPerTrigger="40"
        )
        run_to_the_end(
            lambda: (
                source.load()
                .select("value", "key")
                .writeStream.format("gateway")
                .options(endpoint=self.served.url, topic="out", **options)
                .option("checkpointLocation", str(self.work / checkpoint))
                .trigger(availableNow=True)
                .start()
            )
        )


def test_a_micro_batch_that_is_written_again_is_there_once(spark: Any, served: Gateway, tmp_path: Path) -> None:
    frame = spark.range(100).select(spark_sql.col("id").cast("string").alias("value"))
    write(frame.coalesce(1), served, topic="in")
    flow = Flow(spark, served, tmp_path)
    flow.run()
    assert [int(one.value) for one in stored(served, "out")] == list(range(100))
    # as after a driver that died behind the last write: the micro-batch is known to have begun, not to have ended
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    write(frame.coalesce(1), served, topic="in")
    flow.run()
    assert [int(one.value) for one in stored(served, "out")] == list(range(100)) * 2


VALUE = {"value": pa.array(["a"])}


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"value": pa.array([1])}, {"topic": "t"}, "the column value has to be binary or string, not int64"),
        (
            {"payload": pa.array(["a"])},
            {"topic": "t"},
            "the column value is needed, the message's payload; there are payload",
        ),
        (VALUE, {}, "give the option topic, or a column topic"),
        ({**VALUE, "size": pa.array([1])}, {"topic": "t"}, "a message has no column size"),
        ({**VALUE, "expires": pa.array([1])}, {"topic": "t"}, "the column expires has to be timestamp"),
        ({"value": pa.array([None], pa.string())}, {"topic": "t"}, "a value is null"),
        ({**VALUE, "topic": pa.array([None], pa.string())}, {}, "a row has no topic"),
        (VALUE, {"topic": "__secret"}, "__secret"),
        (VALUE, {"topic": "t", "path": "/x"}, "written by its gateway alone"),
        (VALUE, {"topic": "t", "endpoint": ""}, "the option endpoint is needed"),
        (VALUE, {"topic": "t", "nope": "1"}, "unknown option nope"),
        (VALUE, {"topic": "t", "protocol": "felix"}, "no listener felix"),
        (VALUE, {"topic": "t", "token": "guessed"}, "asks for another token"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, columns: dict[str, Any], options: dict[str, str], said: str) -> None:
    batch = pa.record_batch(columns)

    def attempt(given: dict[str, str]) -> None:
        GatewayDataSource(given).writer(from_arrow_schema(batch.schema), overwrite=False)
        publish(WriteOptions.parse(given), iter([batch]), "p/0", 0)

    with gateway(tmp_path / "sink", token="s3cret") as served, pytest.raises(GatewayError, match=said):
        attempt({"endpoint": served.url, "token": "s3cret", **options})


def test_a_full_disk_is_named_and_a_rerun_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [pa.record_batch({"value": [b"%d" % n]}) for n in range(4)]
    free = [1 << 40]
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(1 << 40, 0, free[0]))
    monkeypatch.setattr("gateway.store.writer._CHECK_SECONDS", 0.0)
    with gateway(tmp_path / "sink") as served:
        options = WriteOptions.parse({"endpoint": served.url, "topic": "t"})
        options = attrs.evolve(options, endpoint=attrs.evolve(options.endpoint, patience=0.2))

        def filling() -> Iterator[pa.RecordBatch]:
            yield from batches[:2]
            deadline = time.monotonic() + 60
            while sum(one.end for one in served.store.topics["t"].partitions) < 2:  # the second is still under way
                assert time.monotonic() < deadline
                threading.Event().wait(0.01)
            free[0] = 0
            yield from batches[2:]

        with pytest.raises(GatewayError, match="0 MiB free on the disk of the store"):
            publish(options, filling(), "p/0", 0)
        free[0] = 1 << 40
        patient = attrs.evolve(options, endpoint=attrs.evolve(options.endpoint, patience=30.0))
        assert publish(patient, iter(batches), "p/0", 0).repeated == 2
        assert [one.value for one in stored(served, "t")] == [b"0", b"1", b"2", b"3"]


def test_nothing_is_sent_behind_what_was_refused(tmp_path: Path) -> None:
    """What comes next is ready while an append is under way; it is not stored before that is, and not at all if that fails."""
    made: list[int] = []
    batches = [pa.record_batch({"value": [b"%d" % n], "topic": [to]}) for n, to in enumerate(("t", "__stats", "t"))]

    def counted() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            made.append(number)
            yield batch

    with gateway(tmp_path / "sink") as served:
        with pytest.raises(GatewayError, match="__stats"):
            publish(WriteOptions.parse({"endpoint": served.url}), counted(), "p/0", 0)
        assert made == [0, 1, 2]
        assert [one.value for one in stored(served, "t")] == [b"0"]


def test_a_mistake_inside_a_task_reaches_the_user(spark: Any, served: Gateway) -> None:
    with pytest.raises(PySparkException, match="a value is null"):
        write(spark.range(1).selectExpr("string(null) as value"), served, topic="t")


def test_a_log_is_not_overwritten(spark: Any, served: Gateway) -> None:
    with pytest.raises(PySparkException, match="only added to"):
        spark.range(1).selectExpr("'a' as value").write.format("gateway").mode("overwrite").options(
            endpoint=served.url, topic="t"
        ).save()


def test_the_partition_is_kept_where_that_is_asked(spark: Any, served: Gateway) -> None:
    async def create() -> None:
        from gateway.requests import CreateTopic
        from tests.unit.broker.house import Client

        await Client(served.house).ask(CreateTopic(0, "three", 3))

    served.inside(create)
    frame = spark.range(30).selectExpr("string(id) as value", "int(id % 3) as partition").coalesce(1)
    write(frame, served, topic="three", keepPartitions="true")
    assert {(one.partition, int(one.value) % 3) for one in stored(served, "three")} == {(0, 0), (1, 1), (2, 2)}
