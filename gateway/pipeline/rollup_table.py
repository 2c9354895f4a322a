"""A roll-up on disk: one SQLite table, which Grafana reads, and the same as Parquet for each day.

The table is the truth: what a run or a micro-batch found goes into it in one transaction, and a row that is there already
is replaced, so doing it twice changes nothing. Parquet files are written from it, each put in place whole.

Apart from the roll-up: this is the format that dashboards read, and stays when the counting changes.
"""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.errors import StoreDamaged, StoreError

NAME = "rollup.sqlite"
DAY = 86_400
SCHEMA = pa.schema(
    [
        pa.field("minute", pa.timestamp("s", tz="UTC")),
        pa.field("route", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("protocol", pa.string()),
        pa.field("messages", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("keys", pa.int64()),
        pa.field("size_p50", pa.int64()),
        pa.field("size_p95", pa.int64()),
        pa.field("size_p99", pa.int64()),
        pa.field("size_max", pa.int64()),
        pa.field("dead_letters", pa.int64()),
        pa.field("dead_letter_rate", pa.float64()),
        pa.field("delivered", pa.int64()),
        pa.field("latency_p50", pa.float64()),
        pa.field("latency_p95", pa.float64()),
        pa.field("latency_p99", pa.float64()),
    ]
)
"""`minute` is its beginning, in the table as seconds since the epoch. Sizes are of values in bytes, null where no
messages. `dead_letters` are those that were made in this minute of messages of this topic, whenever those came. `delivered`
are messages that were handed out in this minute, `protocol` being the one they went out by; the latencies are in
milliseconds from when they were stored. All four are null where none were, or where nobody knows."""

IDENTITY = ("minute", "route", "topic", "protocol")
DELIVERED = ("delivered", "latency_p50", "latency_p95", "latency_p99")
COUNTED = tuple(name for name in SCHEMA.names if name not in DELIVERED)
_TABLE = f"""
CREATE TABLE IF NOT EXISTS rollup (
    minute INTEGER NOT NULL, route TEXT NOT NULL, topic TEXT NOT NULL, protocol TEXT NOT NULL,
    messages INTEGER NOT NULL, bytes INTEGER NOT NULL, keys INTEGER NOT NULL,
    size_p50 INTEGER, size_p95 INTEGER, size_p99 INTEGER, size_max INTEGER,
    dead_letters INTEGER NOT NULL, dead_letter_rate REAL,
    delivered INTEGER, latency_p50 REAL, latency_p95 REAL, latency_p99 REAL,
    PRIMARY KEY ({", ".join(IDENTITY)})
) WITHOUT ROWID
"""
# a minute of which retention has taken a part since must not replace the whole one
_PUT = f"""
INSERT INTO rollup ({", ".join(COUNTED)}) VALUES ({", ".join("?" * len(COUNTED))})
ON CONFLICT ({", ".join(IDENTITY)}) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in COUNTED if name not in IDENTITY)}
WHERE excluded.messages + excluded.dead_letters >= rollup.messages + rollup.dead_letters
"""  # noqa: S608  # of our own names
_PUT_DELIVERED = f"""
INSERT INTO rollup ({", ".join(IDENTITY)}, messages, bytes, keys, dead_letters, {", ".join(DELIVERED)})
VALUES ({", ".join("?" * len(IDENTITY))}, 0, 0, 0, 0, {", ".join("?" * len(DELIVERED))})
ON CONFLICT ({", ".join(IDENTITY)}) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in DELIVERED)}
WHERE excluded.delivered >= coalesce(rollup.delivered, 0)
"""  # noqa: S608  # of our own names


class RollupTable:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(directory / NAME, isolation_level=None, timeout=30.0)
        try:
            self._connection.execute(_TABLE)
            known = {row[1] for row in self._connection.execute("PRAGMA table_info(rollup)")}
            for name in DELIVERED:  # a table of before there were these
                if name not in known:
                    kind = "INTEGER" if name == "delivered" else "REAL"
                    self._connection.execute(f"ALTER TABLE rollup ADD COLUMN {name} {kind}")
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise StoreDamaged(f"{directory / NAME}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._connection.close()

    def put(self, rows: Iterable[Sequence[Any]], delivered: Iterable[Sequence[Any]] = ()) -> int:
        """Add rows of what came and of what was delivered (`COUNTED`, and identity with `DELIVERED`), or replace those there
        are, then the Parquet files of their days. How many rows of the table were given.
        """
        counted = [tuple(row) for row in rows]
        handed = [tuple(row) for row in delivered]
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(_PUT, counted)
                self._connection.executemany(_PUT_DELIVERED, handed)
        except sqlite3.Error as error:  # nothing of it is in the table
            raise StoreError(f"{self.directory / NAME}: {error}") from error
        given = {row[: len(IDENTITY)] for row in (*counted, *handed)}
        for day in sorted({row[0] // DAY for row in given}):
            self._export(day)
        return len(given)

    def _export(self, day: int) -> None:
        rows = self._connection.execute(
            f"SELECT {', '.join(SCHEMA.names)} FROM rollup WHERE minute >= ? AND minute < ? "  # noqa: S608  # of our own names
            "ORDER BY minute, route, topic, protocol",
            (day * DAY, (day + 1) * DAY),
        ).fetchall()
        name = dt.datetime.fromtimestamp(day * DAY, dt.UTC).date().isoformat()
        path = self.directory / f"day={name}" / "rollup.parquet"
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_name(f"_{path.name}.{os.getpid()}")
        arrays = [
            pa.array([row[index] for row in rows], pa.int64() if field.name == "minute" else field.type).cast(
                field.type
            )
            for index, field in enumerate(SCHEMA)
        ]
        pq.write_table(pa.table(arrays, schema=SCHEMA), fresh, compression="zstd")
        fresh.rename(path)
