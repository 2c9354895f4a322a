"""A roll-up on disk: one SQLite table, which Grafana reads, and the same as Parquet for each day.

The table is the truth: what a run or a micro-batch found goes into it in one transaction, and a row that is there already
is replaced, so doing it twice changes nothing. Parquet files are written from it, each put in place whole.
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
    ]
)
"""`minute` is its beginning, in the table as seconds since the epoch. Sizes are of values in bytes, null where there were
only dead letters. `dead_letters` are those that were made in this minute of messages of this topic, whenever those came."""

IDENTITY = ("minute", "route", "topic", "protocol")
_TABLE = f"""
CREATE TABLE IF NOT EXISTS rollup (
    minute INTEGER NOT NULL, route TEXT NOT NULL, topic TEXT NOT NULL, protocol TEXT NOT NULL,
    messages INTEGER NOT NULL, bytes INTEGER NOT NULL, keys INTEGER NOT NULL,
    size_p50 INTEGER, size_p95 INTEGER, size_p99 INTEGER, size_max INTEGER,
    dead_letters INTEGER NOT NULL, dead_letter_rate REAL,
    PRIMARY KEY ({", ".join(IDENTITY)})
) WITHOUT ROWID
"""
# a minute of which retention has taken a part since must not replace the whole one
_PUT = f"""
INSERT INTO rollup VALUES ({", ".join("?" * len(SCHEMA.names))})
ON CONFLICT ({", ".join(IDENTITY)}) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in SCHEMA.names if name not in IDENTITY)}
WHERE excluded.messages + excluded.dead_letters >= rollup.messages + rollup.dead_letters
"""  # noqa: S608  # of our own names


class RollupTable:
    """The directory of a roll-up. A context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(directory / NAME, isolation_level=None, timeout=30.0)
        try:
            self._connection.execute(_TABLE)
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise StoreDamaged(f"{directory / NAME}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._connection.close()

    def put(self, rows: Iterable[Sequence[Any]]) -> int:
        """Add rows, or replace those there are, then the Parquet files of their days. How many rows were given."""
        kept = [tuple(row) for row in rows]
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(_PUT, kept)
        except sqlite3.Error as error:  # nothing of it is in the table
            raise StoreError(f"{self.directory / NAME}: {error}") from error
        for day in sorted({row[0] // DAY for row in kept}):
            self._export(day)
        return len(kept)

    def _export(self, day: int) -> None:
        rows = self._connection.execute(
            "SELECT * FROM rollup WHERE minute >= ? AND minute < ? ORDER BY minute, route, topic, protocol",
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
