"""A roll-up on disk: one SQLite table, which Grafana reads, and the same as Parquet for each day.

The table is the truth: what a run or a micro-batch found goes into it in one transaction, and a row that is there already
is replaced, so doing it twice changes nothing. Parquet files are written from it, each put in place whole. In an object store
there is no such table: the file of each day is read, changed by the same rules, and put if nobody has put another one meanwhile.

Apart from the roll-up: this is the format that dashboards read, and stays when the counting changes.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.errors import StoreDamaged, StoreError, StoreInUse
from gateway.files import write_whole
from gateway.pipeline.shelves import ObjectShelf, is_remote, shelf_at

Row = tuple[Any, ...]
TRIES = 8
"""How often a day is read and put again when others put it meanwhile."""
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


class _Rows:
    """The rows of a roll-up in SQLite, which knows what replaces what."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._connection = sqlite3.connect(name, isolation_level=None, timeout=30.0)
        try:
            self._connection.execute(_TABLE)
            known = {row[1] for row in self._connection.execute("PRAGMA table_info(rollup)")}
            for one in DELIVERED:  # a table of before there were these
                if one not in known:
                    kind = "INTEGER" if one == "delivered" else "REAL"
                    self._connection.execute(f"ALTER TABLE rollup ADD COLUMN {one} {kind}")
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise StoreDamaged(f"{name}: {error}") from error

    def close(self) -> None:
        self._connection.close()

    def put(self, counted: Sequence[Row], handed: Sequence[Row]) -> None:
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(_PUT, counted)
                self._connection.executemany(_PUT_DELIVERED, handed)
        except sqlite3.Error as error:  # nothing of it is in the table
            raise StoreError(f"{self._name}: {error}") from error

    def fill(self, rows: pa.Table) -> None:
        """Put the rows of a day's Parquet file into the table."""
        minutes = rows["minute"].cast(SCHEMA.field("minute").type).cast(pa.int64())  # Parquet knows no seconds
        cells = (
            rows.set_column(rows.schema.get_field_index("minute"), "minute", minutes).select(SCHEMA.names).to_pydict()
        )
        marks = ", ".join("?" * len(SCHEMA))
        self._connection.executemany(
            f"INSERT INTO rollup ({', '.join(SCHEMA.names)}) VALUES ({marks})",  # noqa: S608  # of our own names
            zip(*cells.values(), strict=True),
        )

    def day(self, day: int) -> bytes:
        """The rows of a day, as a Parquet file."""
        rows = self._connection.execute(
            f"SELECT {', '.join(SCHEMA.names)} FROM rollup WHERE minute >= ? AND minute < ? "  # noqa: S608  # of our own names
            "ORDER BY minute, route, topic, protocol",
            (day * DAY, (day + 1) * DAY),
        ).fetchall()
        arrays = [
            pa.array([row[index] for row in rows], pa.int64() if field.name == "minute" else field.type).cast(
                field.type
            )
            for index, field in enumerate(SCHEMA)
        ]
        out = io.BytesIO()
        pq.write_table(pa.table(arrays, schema=SCHEMA), out, compression="zstd")
        return out.getvalue()


class RollupTable(Protocol):
    """Where a roll-up is: use it as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_exc: object) -> None: ...

    def put(self, rows: Iterable[Row], delivered: Iterable[Row] = ()) -> int:
        """Add rows of what came and of what was delivered (`COUNTED`, and identity with `DELIVERED`), or replace those there
        are, then the Parquet files of their days. How many rows of the table were given.
        """
        ...


def rollup_table(place: Path | str) -> RollupTable:
    """Of a directory, or of a place in an object store."""
    return RollupInStore(str(place)) if is_remote(place) else RollupInDirectory(Path(place))


class RollupInDirectory:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._rows = _Rows(str(directory / NAME))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._rows.close()

    def put(self, rows: Iterable[Row], delivered: Iterable[Row] = ()) -> int:
        counted, handed = list(map(tuple, rows)), list(map(tuple, delivered))
        self._rows.put(counted, handed)
        for day in _days(counted, handed):
            path = self.directory / _file(day)
            path.parent.mkdir(exist_ok=True)
            write_whole(path, self._rows.day(day), synced=False)
        return len(_identities(counted, handed))


class RollupInStore:
    def __init__(self, place: str) -> None:
        shelf = shelf_at(place)
        assert isinstance(shelf, ObjectShelf)
        self._shelf = shelf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def put(self, rows: Iterable[Row], delivered: Iterable[Row] = ()) -> int:
        counted, handed = list(map(tuple, rows)), list(map(tuple, delivered))
        for day in _days(counted, handed):
            of_day = [[row for row in some if row[0] // DAY == day] for some in (counted, handed)]
            if not any(self._changed(day, *of_day) for _ in range(TRIES)):
                raise StoreInUse(f"other processes keep writing {self._shelf.place}/{_file(day)}")
        return len(_identities(counted, handed))

    def _changed(self, day: int, counted: Sequence[Row], handed: Sequence[Row]) -> bool:
        name = _file(day)
        with contextlib.closing(_Rows(":memory:")) as rows:
            try:
                data, mark = self._shelf.marked(name)
            except FileNotFoundError:
                mark = ""
            else:
                try:
                    rows.fill(pq.read_table(pa.BufferReader(data)))
                except (pa.ArrowException, KeyError) as error:
                    raise StoreDamaged(f"{self._shelf.place}/{name}: {error}") from error
            rows.put(counted, handed)
            fresh = rows.day(day)
        return self._shelf.swap(name, fresh, mark) if mark else self._shelf.create(name, fresh)


def _identities(counted: Sequence[Row], handed: Sequence[Row]) -> set[Row]:
    return {row[: len(IDENTITY)] for row in (*counted, *handed)}


def _days(counted: Sequence[Row], handed: Sequence[Row]) -> list[int]:
    return sorted({row[0] // DAY for row in (*counted, *handed)})


def _file(day: int) -> str:
    return f"day={dt.datetime.fromtimestamp(day * DAY, dt.UTC).date().isoformat()}/rollup.parquet"
