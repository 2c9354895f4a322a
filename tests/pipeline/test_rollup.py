"""Minutes by route, topic and protocol: once, again, continuously over a restart, and what comes late."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gateway.errors import InvalidRequest, StoreDamaged, StoreError
from gateway.pipeline.archive import archive
from gateway.pipeline.frames import messages_at
from gateway.pipeline.rollup import follow, rollup
from gateway.pipeline.rollup_table import RollupTable
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
        return found.execute("SELECT * FROM rollup ORDER BY minute, topic").fetchall()
    finally:
        found.close()


EXPECTED = [
    (MINUTE, "orders", "orders", "flymq", 11, 145, 3, 5, 100, 100, 100, 0, 0.0),
    (MINUTE + 60, "orders", "orders", "flymq", 1, 1, 0, 1, 1, 1, 1, 1, 1.0),
    (MINUTE + 60, "orders", "orders.dlq", "flymq", 1, 7, 0, 7, 7, 7, 7, 0, 0.0),
]


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


def test_a_row_is_replaced_but_never_by_less(tmp_path: Path) -> None:
    row = [MINUTE, "r", "t", "p", 10, 100, 3, 1, 2, 3, 4, 0, 0.0]
    with RollupTable(tmp_path) as table:
        assert table.put([row]) == 1
        table.put([[*row[:4], 9, *row[5:]]])  # retention has taken one since
        assert rows(tmp_path) == [tuple(row)]
        table.put([[*row[:4], 11, *row[5:]]])
        assert rows(tmp_path)[0][4] == 11
        with pytest.raises(StoreError, match="NOT NULL constraint failed"):
            table.put([[*row[:4], 12, *row[5:]], [None] * 13])
        assert rows(tmp_path)[0][4] == 11  # all of it or nothing
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rollup.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(StoreDamaged, match=r"rollup.sqlite: file is not a database"):
        RollupTable(tmp_path / "other")
