"""Every option of a read, by both data sources; Spark's Kafka source has most of them by the same names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from gateway.pipeline.options import NAMES
from tests.pipeline.places import FORMATS, Place, place
from tests.pipeline.stored import Log
from tests.store.kit import START_MS

PAGE = Path("gateway/docs/pipeline.md")
pytestmark = pytest.mark.spark

ELSEWHERE = {"kafkaReader", "path", "history", "endpoint", "token", "tokenFile", "ca", "fingerprint", "insecure", "retryPatience",
             "compression", "kafka", "kafkaPrefix", "kafkaSettings",
             "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "failOnDataLoss", "maxRecordsPerTrigger"}  # fmt: skip
"""Tested where places, tokens, certificates, patience, loss, streams and history are."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    async def orders(log: Log) -> None:
        await log.create("orders.eu", partitions=2)
        await log.create("orders.us")
        await log.create("a*b")
        for number in range(10):
            await log.append("orders.eu", [b"a%d" % number, b"b"], 0)
            await log.append("orders.eu", [b"c%d" % number], 1)
            log.clock.ms += 1000
        await log.append("orders.us", [b"us"])
        await log.append("a*b", [b"star"])

    with place(tmp_path_factory.mktemp("options") / "store", "path", orders) as made:
        yield made


EU0, EU1, US, STAR = ("orders.eu", 0), ("orders.eu", 1), ("orders.us", 0), ("a*b", 0)
ALL = {EU0: range(20), EU1: range(10), US: range(1), STAR: range(1)}
EU = {EU0: range(20), EU1: range(10)}

CASES: list[tuple[dict[str, str], dict[tuple[str, int], range]]] = [
    ({}, ALL),
    ({"topics": "orders.*"}, {**EU, US: range(1)}),
    ({"subscribe": "orders.us, orders.eu"}, {**EU, US: range(1)}),
    ({"subscribe": "a*b"}, {STAR: range(1)}),
    ({"subscribePattern": r"orders\.[e-f].*"}, EU),
    ({"assign": '{"orders.eu": [1], "a*b": [0]}'}, {EU1: range(10), STAR: range(1)}),
    ({"subscribe": "orders.eu", "startingOffsets": '{"orders.eu": {"0": 18, "1": -1}}'}, {EU0: range(18, 20)}),
    ({"subscribe": "orders.eu", "endingOffsets": '{"orders.eu": {"0": 1, "1": -2}}'}, {EU0: range(1)}),
    ({"subscribe": "orders.us", "startingOffsets": "earliest", "endingOffsets": "latest"}, {US: range(1)}),
    ({"subscribe": "orders.eu", "startingTimestamp": str(START_MS + 8000)}, {EU0: range(16, 20), EU1: range(8, 10)}),
    ({"subscribe": "orders.eu", "endingTimestamp": str(START_MS + 2000)}, {EU0: range(4), EU1: range(2)}),
    (
        {"assign": '{"orders.eu": [0]}', "startingTimestamp": "2023-11-14T22:13:28.5", "endingTimestamp": "2099-01-01"},
        {EU0: range(18, 20)},
    ),
    (
        {"subscribe": "orders.eu", "startingOffsetsByTimestamp": json.dumps({"orders.eu": {"0": START_MS + 9000}})},
        {EU0: range(18, 20), EU1: range(10)},
    ),
    (
        {"subscribe": "orders.eu", "endingOffsetsByTimestamp": json.dumps({"orders.eu": {"1": START_MS + 1000, "0": 0}})},
        {EU1: range(1)},
    ),
    ({"subscribe": "orders.us", "startingTimestamp": "2099-01-01"}, {}),
    ({"subscribe": "orders.us", "startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "error"}, {US: range(1)}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), CASES, ids=[" ".join(options) or "none" for options, _ in CASES])
def test_which_records_are_read(
    spark: Any, store: Place, options: dict[str, str], expected: dict[tuple[str, int], range]
) -> None:
    for form in FORMATS:
        frame = spark.read.format(form).options(**store.options, **options).load()
        found: dict[tuple[str, int], list[int]] = {}
        for topic, partition, offset in frame.select("topic", "partition", "offset").collect():
            found.setdefault((topic, partition), []).append(offset)
        assert {place: sorted(offsets) for place, offsets in found.items()} == {
            place: list(offsets) for place, offsets in expected.items()
        }, form


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "none"}, "there is no topic none in"),
        ({"topics": "a", "subscribe": "a"}, "topics and subscribe exclude each other"),
        ({"topics": ","}, "topics: at least one name or glob"),
        ({"subscribePattern": "("}, "subscribePattern: "),
        ({"assign": '{"orders.us": [1]}'}, "assign: orders.us has partitions 0 to 0, not 1"),
        ({"assign": '{"orders.us": []}'}, "assign: JSON like"),
        ({"assign": "orders"}, "assign is not JSON"),
        ({"startingOffsets": "first"}, "startingOffsets: earliest, latest, or JSON like"),
        ({"startingOffsets": '{"orders.eu": {"0": 99}}'}, "startingOffsets: orders.eu/0 ends at 20, before 99"),
        ({"startingOffsets": '{"orders.eu": {"7": 0}}'}, "startingOffsets: orders.eu has partitions 0 to 1, not 7"),
        ({"startingOffsets": '{"orders.eu": {"0": "1"}}'}, "orders.eu has '0': '1'"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "startingOffsets and startingTimestamp exclude each other"),
        ({"startingTimestamp": "soon"}, "not a time: 'soon'"),
        ({"startingOffsetsByTimestamp": '{"orders.eu": {"0": -1}}'}, "startingOffsetsByTimestamp: JSON like"),
        ({"startingTimestamp": "2099-01-01", "startingOffsetsByTimestampStrategy": "error"}, "has nothing from 4070908800000 ms on"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "error or latest, not 'first'"),
        ({"maxRecordsPerTrigger": "0"}, "maxRecordsPerTrigger: a number from 1 on, not '0'"),
        ({"maxRecordsPerTrigger": "1", "maxOffsetsPerTrigger": "1"}, "maxRecordsPerTrigger and maxOffsetsPerTrigger exclude"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "1"}, "minOffsetsPerTrigger is more than"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: a time like 30s or 15m, not 'soon'"),
        ({"minPartitions": "x"}, "minPartitions: a number from 1 on, not 'x'"),
        ({"includeHeaders": "maybe"}, "includeHeaders: true or false, not 'maybe'"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: true or false, not 'maybe'"),
        ({"history": "x", "startingOffsets": "latest"}, "history and startingOffsets exclude each other"),
        ({"history": "/none"}, "there is no archive at /none"),
        ({"kafka.bootstrap.servers": "a:9092"}, "unknown option kafka.bootstrap.servers; there are path, endpoint"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(spark: Any, store: Place, options: dict[str, str], said: str) -> None:
    for form in FORMATS:
        with pytest.raises(PySparkException, match=re.escape(said)):
            spark.read.format(form).options(**store.options, **options).load().where("length(value) > 0").collect()


def test_how_many_tasks(spark: Any, store: Place) -> None:
    for form in FORMATS:
        read = spark.read.format(form).options(**store.options, subscribe="orders.eu")
        assert read.load().rdd.getNumPartitions() == 2
        assert read.option("maxRecordsPerPartition", "8").load().rdd.getNumPartitions() == 5
        several = spark.read.format(form).options(**store.options, subscribe="orders.eu", minPartitions="10").load()
        assert several.rdd.getNumPartitions() >= 10
        assert several.count() == 30


def test_without_headers(spark: Any, store: Place) -> None:
    for form in FORMATS:
        frame = spark.read.format(form).options(**store.options, includeHeaders="false").load()
        assert "headers" not in frame.columns
        assert frame.count() == 32


def test_a_stream_with_a_least_and_a_most(spark: Any, store: Place, tmp_path: Path) -> None:
    for form in FORMATS:
        counts: list[int] = []
        options = {"subscribe": "orders.eu", "startingOffsets": "earliest"}
        limits = {"maxOffsetsPerTrigger": "12", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
        frame = spark.readStream.format(form).options(**store.options, **options, **limits).load()
        query = (
            frame.writeStream.foreachBatch(lambda batch, _id, counts=counts: counts.append(batch.count()))
            .option("checkpointLocation", str(tmp_path / form))
            .start()
        )
        try:
            while len(counts) < 2:
                query.processAllAvailable()
            query.processAllAvailable()
            assert counts == [12, 12]  # six are left: too few for an hour
        finally:
            query.stop()


def test_a_query_says_how_far_behind_it_is(spark: Any, store: Place, tmp_path: Path) -> None:
    options = {"subscribe": "orders.eu", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "3", **store.options}
    frame = spark.readStream.format("gateway").options(**options).load()
    query = (
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    first, last = (json.loads(query.recentProgress[at].json)["sources"][0]["metrics"] for at in (0, -1))
    assert (first["recordsBehind"], first["maxOffsetsBehindLatest"], first["minOffsetsBehindLatest"]) == (
        "27",
        "18",
        "9",
    )
    assert (first["lag.orders.eu/0"], first["avgOffsetsBehindLatest"]) == ("18", "13.5")
    assert first["oldestUnread"] == "2023-11-14T22:13:21Z"
    assert int(first["bytesBehind"]) > 0
    assert (last["recordsBehind"], last["bytesBehind"]) == ("0", "0")
    assert "oldestUnread" not in last


def test_the_page_has_every_option_and_each_is_tested(spark: Any) -> None:
    table = PAGE.read_text().split("| option |")[1].split("\n\n")[0]
    rows = [re.findall(r"`([\w.]+)`", line.split("|")[1]) for line in table.splitlines()[2:]]
    assert sorted(name for row in rows for name in row) == sorted(NAMES)
    tested = {name for options, _ in CASES for name in options} | ELSEWHERE
    tested |= set(re.findall(r"\w+(?:\.\w+)?", Path(__file__).read_text().split("def test_how_many_tasks")[1]))
    assert set(NAMES) <= tested
    for form in FORMATS:
        with pytest.raises(PySparkException, match="unknown option nothing") as raised:
            spark.read.format(form).options(path="x", nothing="1").load()
        assert re.findall(r"[\w.]+", str(raised.value).split("there are ")[-1].split("\n")[0])[: len(NAMES)] == list(
            NAMES
        )
