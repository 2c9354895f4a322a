"""Reading chunks and table rows from the database, for the store and for readers in other processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from gateway.envelope import Run
from gateway.errors import CorruptChunk, StoreError
from gateway.store.catalogue import row_id
from gateway.store.chunk import decode
from gateway.store.cut import alive, value_bytes
from gateway.store.database import MAX_OFFSET

READ_BYTES = 32 << 20
"""One read takes no more chunks than this, whatever its limits say: a read transaction is to be short."""

CHUNKS = """
SELECT id, count, size, data FROM chunks
WHERE id >= coalesce((SELECT max(id) FROM chunks WHERE id <= :at AND id >= :low), :at) AND id < :high ORDER BY id
"""
_BEFORE = "SELECT id, count, first_ms, last_ms FROM chunks WHERE id <= ? AND id >= ? ORDER BY id DESC LIMIT 1"
DAMAGE = frozenset({"SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CORRUPT_VTAB", "SQLITE_CORRUPT_INDEX"})
"""Names of SQLite's errors that mean that the file itself is damaged."""


class Place:
    """Which stretch of which partition to read, and what to call it in an error."""

    __slots__ = ("end", "partition", "slot", "topic")

    def __init__(self, topic: str, partition: int, slot: int, end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.slot = slot
        self.end = end
        """What lies behind it is not visible yet."""


def read_runs(
    connection: sqlite3.Connection,
    place: Place,
    offset: int,
    max_messages: int,
    max_bytes: int,
    now_ms: int,
    more: bool = False,
) -> list[Run]:
    """The chunks from the one that holds `offset` on, until the limits are reached. Empty when it is not there.

    Raises CorruptChunk when what is there is damaged or has a hole; what is good before that is returned first, and what
    the caller has already counts as such (`more`).
    """
    runs: list[Run] = []
    expected, messages, size, taken = offset, 0, 0, 0
    low, high = row_id(place.slot, 0), row_id(place.slot, place.end)
    cursor = connection.cursor()
    try:
        cursor.execute(CHUNKS, {"at": row_id(place.slot, offset), "low": low, "high": high})
        while messages < max_messages and (size < max_bytes or not runs) and taken < READ_BYTES:
            row = cursor.fetchone()
            if row is None:
                break
            base, count = row[0] & MAX_OFFSET, row[1]
            if base + count <= offset and not runs:
                continue  # the log begins behind the offset
            if base > expected and not runs:
                break
            if runs and base != expected:
                raise CorruptChunk(place.topic, place.partition, expected, base)
            run = decode(row[3], place.topic, place.partition, base, count)
            runs.append(run.slice(0, place.end - base) if base + count > place.end else run)
            expected = base + count
            skipped = max(offset - base, 0)
            for begin, end in alive(run.columns.expires, skipped, count, now_ms):
                messages += end - begin
                size += value_bytes(run.columns, begin, end)
            taken += row[2]
    except CorruptChunk:
        if not (runs or more):
            raise
    except sqlite3.DatabaseError as error:
        if not (runs or more):
            raise translated(error, place, offset) from error
    finally:
        cursor.close()  # ends the read transaction
    return runs


def translated(error: sqlite3.Error, place: Place, offset: int) -> StoreError:
    """What a failed read means."""
    if getattr(error, "sqlite_errorname", "") in DAMAGE:
        return CorruptChunk(place.topic, place.partition, offset, place.end)
    return StoreError(f"reading {place.topic}/{place.partition} at {offset}: {error}")


def hole(connection: sqlite3.Connection, place: Place, offset: int) -> int:
    """Where the records begin that follow an offset which is not there."""
    row = connection.execute(
        "SELECT min(id) FROM chunks WHERE id > ? AND id < ?",
        (row_id(place.slot, offset), row_id(place.slot, place.end)),
    ).fetchone()
    return place.end if row[0] is None else row[0] & MAX_OFFSET


def offset_for_time(connection: sqlite3.Connection, place: Place, start: int, timestamp_ms: int) -> int:
    """The first offset stored at or after a time; the end if there is none.

    Store time never goes back within a partition, so the chunks themselves are the index: a bisection over offsets,
    each step one descent of the tree.
    """
    bottom = row_id(place.slot, 0)
    low, high = start, place.end
    found: tuple[int, int, int, int] | None = None
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(_BEFORE, (row_id(place.slot, middle), bottom)).fetchone()
        if row is None:
            low = middle + 1
            continue
        base = row[0] & MAX_OFFSET
        if row[3] < timestamp_ms:
            low = max(base + row[1], low + 1)
        else:
            found = (base, row[1], row[2], row[3])
            high = min(base, middle)
    if found is None:
        return place.end
    base, count, first_ms, _last_ms = found
    if first_ms >= timestamp_ms:
        return max(base, start)
    (blob,) = connection.execute("SELECT data FROM chunks WHERE id = ?", (row_id(place.slot, base),)).fetchone()
    times = decode(blob, place.topic, place.partition, base, count).times
    return max(start, base + next(index for index, time in enumerate(times) if time >= timestamp_ms))


def get_row(connection: sqlite3.Connection, table: str, key: bytes) -> bytes | None:
    """One row of a table."""
    row = connection.execute("SELECT value FROM rows WHERE name = ? AND key = ?", (table, key)).fetchone()
    return None if row is None else row[0]


def scan_rows(connection: sqlite3.Connection, table: str, first: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
    """Rows of a table in key order."""
    return connection.execute(
        "SELECT key, value FROM rows WHERE name = ? AND key >= ? ORDER BY key LIMIT ?", (table, first, limit)
    ).fetchall()
