"""What the data source plans and reads, asked of it directly: no Java is needed to see which offsets it would take."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructType

from gateway.arrow.schema import SCHEMA, chosen
from gateway.errors import (
    GatewayError,
    InvalidRequest,
    NotAStore,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from gateway.pipeline.datasource import GatewayDataSource
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.ranges import Damaged, HistoryGone
from tests.pipeline.places import MODES, Place, place
from tests.pipeline.stored import Log, filled
from tests.store.kit import START_MS


@pytest.fixture(params=MODES)
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    with place(tmp_path / "store", request.param, orders) as opened:
        yield opened


async def orders(log: Log) -> None:
    await log.create("orders.eu", partitions=2)
    await log.create("other")
    for _ in range(10):
        await log.append("orders.eu", [b"a", b"b"], 0)
        await log.append("orders.eu", [b"c"], 1)
        log.clock.ms += 1000
    await log.append("other", [b"x"])


def reader(store: Place, **options: str) -> Any:
    return GatewayDataSource({**store.options, **options}).reader(from_arrow_schema(SCHEMA))


def stream(store: Place, **options: str) -> Any:
    return GatewayDataSource({**store.options, **options}).streamReader(from_arrow_schema(chosen(["offset"])))


def planned(parts: Sequence[Any]) -> list[str]:
    return [str(one.value) for one in parts]


def test_an_input_partition_for_each_partition_and_range(store: Place) -> None:
    assert planned(reader(store).partitions()) == ["orders.eu/0 [0, 20)", "orders.eu/1 [0, 10)", "other/0 [0, 1)"]
    made = reader(store, topics="orders.*", maxRecordsPerPartition="8")
    parts = made.partitions()
    assert planned(parts)[:3] == ["orders.eu/0 [0, 8)", "orders.eu/0 [8, 16)", "orders.eu/0 [16, 20)"]
    (batch,) = made.read(parts[1])
    assert batch.schema == SCHEMA
    assert batch.column("offset").to_pylist() == list(range(8, 16))


def test_where_nothing_was_planned_nothing_is_read(store: Place) -> None:
    made = reader(store, startingOffsets="latest")
    assert made.partitions() == []
    assert list(made.read(None)) == []  # how Spark asks then


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"topics": "other"}, ["other/0 [0, 1)"]),
        ({"topics": "orders.*", "startingOffsets": "latest"}, []),
        ({"startingOffsets": '{"orders.eu": {"0": 18, "1": -1}}', "topics": "orders.eu"}, ["orders.eu/0 [18, 20)"]),
        ({"endingOffsets": '{"orders.eu": {"0": 1, "1": -2}}', "topics": '["orders.eu"]'}, ["orders.eu/0 [0, 1)"]),
        (
            {"startingTimestamp": str(START_MS + 8500), "topics": "orders.**"},
            ["orders.eu/0 [18, 20)", "orders.eu/1 [9, 10)"],
        ),
        (
            {"startingTimestamp": "2023-11-14T22:13:29", "topics": "orders.**"},
            ["orders.eu/0 [18, 20)", "orders.eu/1 [9, 10)"],
        ),
    ],
)
def test_options_choose_offsets(store: Place, options: dict[str, str], expected: list[str]) -> None:
    assert planned(reader(store, **options).partitions()) == expected


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"topics": "nothing"}, UnknownTopic, "there is no topic nothing"),
        ({"topics": ","}, InvalidRequest, "at least one"),
        ({"startingOffsets": '{"orders.eu": {"0": 99}}'}, OffsetOutOfRange, "ends at 20, before 99"),
        ({"startingOffsets": '{"orders.eu": {"7": 0}}'}, UnknownPartition, "has partitions 0 to 1, not 7"),
        ({"startingOffsets": '{"orders.eu": {"0": "1"}}'}, InvalidRequest, "orders.eu has '0': '1'"),
        ({"startingOffsets": "first"}, InvalidRequest, "earliest, latest, or JSON like"),
        (
            {"startingOffset": "earliest"},
            InvalidRequest,
            "unknown option startingoffset; there are path, endpoint, token",
        ),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, InvalidRequest, "exclude each other"),
        ({"maxRecordsPerTrigger": "0"}, InvalidRequest, "a number from 1 on"),
        ({"startingTimestamp": "soon"}, InvalidRequest, "not a time: 'soon'"),
        ({"failOnDataLoss": "maybe"}, InvalidRequest, "true or false"),
    ],
)
def test_options_that_make_no_sense(
    store: Place, options: dict[str, str], error: type[GatewayError], said: str
) -> None:
    with pytest.raises(error, match=said):
        reader(store, **options).partitions()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, InvalidRequest, r"path is needed \(the directory of a store\), or endpoint"),
        ({"path": ""}, InvalidRequest, "path is needed"),
        ({"path": "/nowhere"}, NotAStore, "there is no store at /nowhere"),
        ({"path": "http://b:9600"}, InvalidRequest, "a running gateway is the option endpoint"),
        ({"path": "/a", "endpoint": "http://b"}, InvalidRequest, "path and endpoint exclude each other"),
        ({"path": "/a", "token": "t"}, InvalidRequest, "token: about an endpoint"),
        ({"endpoint": "gateway:9600"}, InvalidRequest, "like http://127.0.0.1:9600, not 'gateway:9600'"),
        ({"endpoint": "https://b", "insecure": "maybe"}, InvalidRequest, "insecure: true or false"),
    ],
)
def test_a_source_that_makes_no_sense(options: dict[str, str], error: type[GatewayError], said: str) -> None:
    with pytest.raises(error, match=said):
        GatewayDataSource(options).reader(from_arrow_schema(SCHEMA)).partitions()


def test_a_schema_of_ones_own_may_only_leave_out(store: Place) -> None:
    source = GatewayDataSource(store.options)
    with pytest.raises(InvalidRequest, match="the column offset is bigint"):
        source.reader(StructType().add("offset", StringType()))
    with pytest.raises(InvalidRequest, match="no column size"):
        source.reader(StructType().add("size", StringType()))


def test_globs_and_our_own_topics() -> None:
    names = ["__stats", "a", "a.b", "a.b.c", "a/b"]
    assert TopicSelection.parse("a.*").among(names) == ["a.b"]
    assert TopicSelection.parse("**").among(names) == ["a", "a.b", "a.b.c", "a/b"]
    assert TopicSelection.parse("__stats, a").among(names) == ["__stats", "a"]
    assert TopicSelection.parse("__*").among(names) == []


def test_a_stream_shares_its_limit_among_partitions(store: Place) -> None:
    one = stream(store, startingOffsets="earliest", maxRecordsPerTrigger="12", topics="orders.*")
    at = one.initialOffset()
    taken = []
    while (end := one.latestOffset(at, one.getDefaultReadLimit())) != at:
        ranges = [part.value for part in one.partitions(at, end)]
        taken.append(sum(part.count for part in ranges))
        assert all(len({part.start, part.end}) == 2 for part in ranges)
        at = end
    assert taken == [12, 12, 6]
    assert one.reportLatestOffset() == at
    assert stream(store, topics="orders.*").initialOffset() == at  # a stream begins at the end by default


def test_available_now_ends_where_it_was_asked(store: Place) -> None:
    one = stream(store, startingOffsets="earliest")
    one.prepareForTriggerAvailableNow()

    async def more(log: Log) -> None:
        await log.append("other", [b"later"])

    store.fill(more)
    end = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    assert end["other"]["0"] == 1
    assert stream(store).initialOffset()["other"]["0"] == 2


def test_a_topic_deleted_and_made_again_is_history_gone(store: Place) -> None:
    from gateway.store.interface import DropTopic, Unit

    before = stream(store).initialOffset()

    async def again(log: Log) -> None:
        await log.store.submit(Unit(deletes=[DropTopic("other"), DropTopic("orders.eu")])).wait()
        await log.create("other")
        await log.append("other", [b"1", b"2", b"3"])

    store.fill(again)
    with pytest.raises(HistoryGone, match=r"orders.eu was deleted; the topic other was deleted and made again"):
        stream(store).latestOffset(before, ReadAllAvailable())
    tolerant = stream(store, failOnDataLoss="false")
    end = tolerant.latestOffset(before, ReadAllAvailable())
    assert planned(tolerant.partitions(before, end)) == ["other/0 [0, 3)"]
    old = reader(store, failOnDataLoss="false").partitions()
    assert planned(old) == ["other/0 [0, 3)"]


@pytest.mark.parametrize("mode", MODES)
def test_a_damaged_chunk_is_named_with_the_way_around_it(tmp_path: Path, mode: str) -> None:
    with place(tmp_path / "store", mode, orders) as damaged:
        database = sqlite3.connect(tmp_path / "store" / "log.sqlite")
        with database:
            ((row, data),) = database.execute("SELECT id, data FROM chunks ORDER BY id LIMIT 1 OFFSET 3")
            database.execute("UPDATE chunks SET data = ? WHERE id = ?", (data[:-1] + b"\0", row))
        database.close()
        made = reader(damaged, topics="orders.eu")
        first = made.partitions()[0]
        said = r"damaged chunk: topic=orders.eu partition=0 offsets=\[6, 8\).*from offset 8 on can be read, by endingOffsets"
        with pytest.raises(Damaged, match=said):
            list(made.read(first))
        around = reader(damaged, topics="orders.eu", startingOffsets='{"orders.eu": {"0": 8}}')
        assert sum(batch.num_rows for batch in around.read(around.partitions()[0])) == 12


async def further(log: Log) -> None:
    await log.append("orders.eu", [b"d", b"e"], 0)


@pytest.mark.parametrize(
    "options", [{}, {"startingOffsets": "latest"}, {"startingOffsets": '{"orders.eu": {"0": -1}}'}]
)
def test_where_a_stream_from_the_latest_begins_is_in_its_checkpoint_before_it_reads(
    tmp_path: Path, options: dict[str, str]
) -> None:
    """Spark writes down where a micro-batch ends; the first one's beginning is asked for anew by whoever repeats it."""
    filled(tmp_path / "store", orders)
    source = {"path": str(tmp_path / "store"), "topics": "orders.eu", **options}

    def made() -> Any:
        return GatewayDataSource(source).streamReader(from_arrow_schema(chosen(["offset"])))

    first = made()
    begin = first.initialOffset()
    filled(tmp_path / "store", further)
    end = first.latestOffset(begin, ReadAllAvailable())
    assert first.partitions(begin, end) == []  # all that comes is of the second micro-batch
    filled(tmp_path / "store", further)
    # the driver dies in the first micro-batch, and what comes after it repeats it
    again = made()
    assert again.partitions(again.initialOffset(), end) == []
    last = again.latestOffset(end, ReadAllAvailable())
    read = planned(again.partitions(end, last))
    assert "orders.eu/0 [20, 24)" in read
    # and whose driver lives goes on
    assert planned(first.partitions(end, first.latestOffset(end, ReadAllAvailable()))) == read
