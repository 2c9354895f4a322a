"""Minutes by route, topic and protocol: once, again, continuously over a restart, and what comes late."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from gateway.errors import InvalidRequest, StoreDamaged, StoreError
from gateway.pipeline.archive import archive
from gateway.pipeline.deliveries import DeliveryRows
from gateway.pipeline.frames import messages_at
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.rollup import follow, rollup
from gateway.pipeline.rollup_table import SCHEMA, rollup_table
from gateway.store.stats import Deliveries as Delivered
from gateway.store.stats import encode
from tests.pipeline.stored import Log, filled
from tests.store.kit import START_MS

MINUTE = START_MS // 60_000 * 60


async def shop(log: Log) -> None:
    await log.create("orders", partitions=2)
    await log.create("orders.dlq")
    for number in range(10):
        await log.append("orders", [b"x" * number], 0, [b"k%d" % (number % 3)])
    await log.append("orders", [b"y" * 100], 1)
    log.clock.ms += 60_000
    await log.append("orders", [b"z"], 0)
    origin = (("x-dead-letter-topic", b"orders"),)
    await log.append("orders.dlq", [b"z", b"by hand"], 0, headers=[origin, ()])


def rows(directory: Path) -> list[tuple[Any, ...]]:
    found = sqlite3.connect(directory / "rollup.sqlite")
    try:
        return found.execute("SELECT * FROM rollup ORDER BY minute, topic, protocol").fetchall()
    finally:
        found.close()


NOT_DELIVERED = (None,) * 4
MEANT = TopicSelection(("orders", "orders.dlq"))
EXPECTED = [
    (MINUTE, "orders", "orders", "flymq", 11, 145, 3, 5, 100, 100, 100, 0, 0.0, *NOT_DELIVERED),
    (MINUTE + 60, "orders", "orders", "flymq", 1, 1, 0, 1, 1, 1, 1, 1, 1.0, *NOT_DELIVERED),
    (MINUTE + 60, "orders", "orders.dlq", "flymq", 1, 7, 0, 7, 7, 7, 7, 0, 0.0, *NOT_DELIVERED),
]


async def handed_out(log: Log) -> None:
    """As the gateway writes it: the second minute in two records, for it was restarted in its midst."""
    await log.create("__stats")
    of = functools.partial(Delivered, route="orders", topic="orders")
    said = [
        of(minute=MINUTE, protocol="flymq", counts={1: 50, 21: 50}),  # 1 to 1.4 ms, and 1.024 to 1.448 s
        of(minute=MINUTE + 60, protocol="felix", counts={3: 1}),
        of(minute=MINUTE + 60, protocol="felix", counts={3: 3}),
        Delivered(MINUTE, "orders", "elsewhere", "felix", {0: 1}),
    ]
    for one in said:
        await log.append("__stats", [encode(one)])


@pytest.mark.spark
def test_once_and_again(spark: Any, tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    filled(store, shop)
    archive(str(store), tmp_path / "archive")
    assert rollup(spark, messages_at(str(tmp_path / "archive")), out).rows == 3
    assert rows(out) == EXPECTED
    table = pq.read_table(out / "day=2023-11-14", partitioning=None)
    assert [row["messages"] for row in table.to_pylist()] == [11, 1, 1]
    assert table["minute"].to_pylist()[0].timestamp() == MINUTE
    assert rollup(spark, messages_at(str(store)), out, from_ms=(MINUTE + 61) * 1000).rows == 2
    assert rows(out) == EXPECTED


@pytest.mark.spark
def test_continuously_each_minute_once_and_late_ones_counted(spark: Any, tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    filled(store, shop)
    messages = messages_at(str(store))
    # nothing is older than the watermark yet but the first minute
    assert follow(spark, messages, out, watermark="1 seconds", interval=None).late == 0
    assert [row[:6] for row in rows(out)] == [EXPECTED[0][:6]]

    async def later(log: Log) -> None:
        log.clock.ms = START_MS + 120_000
        await log.append("orders", [b"now"], 1)

    filled(store, later)
    follow(spark, messages, out, watermark="1 seconds", interval=None)
    assert [row[:6] for row in rows(out)] == [row[:6] for row in EXPECTED]

    async def slow(log: Log) -> None:
        await log.create("slow")  # a topic with a clock of its own: the store's went back
        log.clock.ms = START_MS
        await log.append("slow", [b"late"] * 5)

    filled(store, slow)
    done = follow(spark, messages, out, watermark="1 seconds", interval=None)
    assert done.late == 1
    assert [row[:6] for row in rows(out)] == [row[:6] for row in EXPECTED]
    archive(str(store), tmp_path / "archive")
    with pytest.raises(InvalidRequest, match="an archive cannot be followed"):
        follow(spark, messages_at(str(tmp_path / "archive")), out)


@pytest.mark.spark
def test_latencies_from_the_gateways_own_topic_where_it_is_found(spark: Any, tmp_path: Path) -> None:
    store, out, latency = tmp_path / "store", tmp_path / "out", slice(13, None)

    async def both(log: Log) -> None:
        await shop(log)
        await handed_out(log)

    filled(store, both)
    assert rollup(spark, messages_at(str(store)), out, topics=MEANT).rows == 4
    first, felix, second, letter = sorted(rows(out), key=lambda row: (row[0], row[2], row[3]))
    assert [first[:13], second[:13], letter[:13]] == [row[:13] for row in EXPECTED]
    assert first[13] == 100
    assert 1 <= first[14] <= 2**0.5
    assert 1024 <= first[15] <= first[16] <= 1024 * 2**0.5
    assert felix[:13] == (MINUTE + 60, "orders", "orders", "felix", 0, 0, 0, None, None, None, None, 0, None)
    assert felix[13:] == (4, *(pytest.approx(2 + (8**0.5 - 2) * share) for share in (0.5, 0.95, 0.99)))
    assert [second[latency], letter[latency]] == [NOT_DELIVERED] * 2
    assert pq.read_table(out / "day=2023-11-14", partitioning=None)["delivered"].to_pylist() == [100, 4, None, None]
    # an archive has them if it was told to; continuously they come with the minutes, and what comes later at the end
    archive(str(store), tmp_path / "archive", topics=TopicSelection((*MEANT.patterns, "__stats")))
    rollup(spark, messages_at(str(tmp_path / "archive")), tmp_path / "again", topics=MEANT)
    assert rows(tmp_path / "again") == rows(out)
    follow(spark, messages_at(str(store)), tmp_path / "followed", watermark="1 seconds", interval=None)
    followed = rows(tmp_path / "followed")
    assert {row[latency] for row in followed} == {(1, 0.5, 0.95, 0.99), first[latency], felix[latency]}


def test_deliveries_asked_again_are_those_of_the_minutes_with_something_new(tmp_path: Path) -> None:
    filled(tmp_path, handed_out)
    deliveries = DeliveryRows(messages_at(str(tmp_path)), TopicSelection(("**",)), (MINUTE + 1) * 1000)
    assert [row[2:5] for row in deliveries.rows()] == [
        ("elsewhere", "felix", 1),
        ("orders", "flymq", 100),
        ("orders", "felix", 4),
    ]
    assert deliveries.rows() == []

    async def more(log: Log) -> None:
        await log.append("__stats", [encode(Delivered(MINUTE + 60, "orders", "orders", "felix", {3: 2}))])

    filled(tmp_path, more)
    assert [row[2:5] for row in deliveries.rows()] == [("orders", "felix", 6)]

    async def foreign(log: Log) -> None:
        await log.append("__stats", [b"{}"])

    filled(tmp_path, foreign)
    with pytest.raises(StoreError, match="__stats"):
        deliveries.rows()


def test_a_row_is_replaced_but_never_by_less(tmp_path: Path) -> None:
    row = [MINUTE, "r", "t", "p", 10, 100, 3, 1, 2, 3, 4, 0, 0.0]
    identity = row[:4]
    with rollup_table(tmp_path) as table:
        assert table.put([row]) == 1
        table.put([[*row[:4], 9, *row[5:]]])  # retention has taken one since
        assert rows(tmp_path) == [(*row, *NOT_DELIVERED)]
        table.put((), [[*identity, 5, 1.0, 2.0, 3.0]])
        table.put([row], [[*identity, 4, 9.0, 9.0, 9.0]])  # neither takes the other away, nor less what is more
        assert rows(tmp_path) == [(*row, 5, 1.0, 2.0, 3.0)]
        table.put([[*row[:4], 11, *row[5:]]])
        assert rows(tmp_path)[0][4] == 11
        with pytest.raises(StoreError, match="NOT NULL constraint failed"):
            table.put([[*row[:4], 12, *row[5:]], [None] * 13])
        assert rows(tmp_path)[0][4] == 11  # all of it or nothing
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rollup.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(StoreDamaged, match=r"rollup.sqlite: file is not a database"):
        rollup_table(tmp_path / "other")


BOARD = json.loads(Path("grafana/pipeline/rollup.json").read_text())


def queries() -> Iterator[tuple[str, str, bool]]:
    """(panel or variable, query, whether it is drawn over time)"""
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            assert target["queryText"] == target["rawQueryText"]
            yield f"{panel['title']} {target['refId']}", target["queryText"], target["queryType"] == "time series"
    for variable in BOARD["templating"]["list"]:
        yield f"${variable['name']}", variable["query"], False


def test_every_query_of_the_dashboard_returns_data_of_the_table(tmp_path: Path) -> None:
    with rollup_table(tmp_path) as table:
        row = [MINUTE, "r", "it's", "flymq", 10, 100, 3, 1, 2, 3, 4, 1, 0.1]
        other = [MINUTE, "__other__", "t", "felix", 0, 0, 0, None, None, None, None, 2, None]
        table.put([row, other], [[*row[:4], 5, 1.0, 2.0, 3.0]])
    # as Grafana fills them in: everything is chosen, an hour is shown
    given = {
        "$__from": str((MINUTE - 60) * 1000),
        "$__to": str((MINUTE + 3540) * 1000),
        "${route:sqlstring}": "'r','__other__'",
        "${topic:sqlstring}": "'it''s','t'",
    }
    with contextlib.closing(sqlite3.connect(f"file:{tmp_path / 'rollup.sqlite'}?mode=ro", uri=True)) as opened:
        for name, query, over_time in queries():
            for variable, value in given.items():
                query = query.replace(variable, value)
            assert "$" not in query, name
            found = opened.execute(query)
            columns = [column[0] for column in found.description]
            assert (columns[0] == "time") == over_time, name
            seen = found.fetchall()
            assert seen, name
            assert all(any(one[index] is not None for one in seen) for index in range(len(columns))), name
            if over_time:
                assert {one[0] for one in seen} == {MINUTE}, name
    assert set(SCHEMA.names) <= set(re.findall(r"\w+", " ".join(query for _, query, _ in queries())))


def test_the_dashboard_is_provisioned_with_the_table_it_reads() -> None:
    grafana = Path("grafana/provisioning")
    (source,) = yaml.safe_load((grafana / "datasources/rollup.yaml").read_text())["datasources"]
    own = {"type": source["type"], "uid": source["uid"]}
    for one in (*BOARD["panels"], *BOARD["templating"]["list"], *(t for p in BOARD["panels"] for t in p["targets"])):
        assert one["datasource"] == own
    service = yaml.safe_load(Path("deploy/compose.yaml").read_text())["services"]["grafana"]
    mounted = {re.sub(":ro$", "", volume).rsplit(":", 1)[1] for volume in service["volumes"]}
    assert str(Path(source["jsonData"]["path"]).parent) in mounted
    providers = yaml.safe_load((grafana / "dashboards/gateway.yaml").read_text())["providers"]
    assert {provider["options"]["path"] for provider in providers} <= mounted
    assert service["environment"]["GF_PLUGINS_PREINSTALL"] == source["type"]
