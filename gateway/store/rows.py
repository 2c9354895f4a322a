"""Reading chunks and table rows from the database, for the store and for readers in other processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gateway.envelope import Run
from gateway.errors import CorruptChunk, StoreDamaged, StoreError
from gateway.store.catalogue import row_id, unreadable
from gateway.store.chunk import decode
from gateway.store.cut import alive, value_bytes
from gateway.store.database import DAMAGE, MAX_OFFSET, WAY_ON, forget_pages

READ_BYTES = 32 << 20
"""One read takes no more chunks than this, whatever its limits say: a read transaction is to be short."""

CHUNKS = """
SELECT id, count, size, data FROM chunks
WHERE id >= coalesce((SELECT max(id) FROM chunks WHERE id <= :at AND id >= :low), :at) AND id < :high ORDER BY id
"""
_HOLDING = """
SELECT id, count, size, data FROM chunks WHERE id = (SELECT max(id) FROM chunks WHERE id <= ? AND id >= ?)
"""
_BEHIND = "SELECT min(id) FROM chunks WHERE id >= ? AND id < ?"
_START = "SELECT start FROM partitions WHERE slot = ?"
_BEFORE = "SELECT id, count, first_ms, last_ms FROM chunks WHERE id <= ? AND id >= ? ORDER BY id DESC LIMIT 1"


class RowsPlace:
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
    place: RowsPlace,
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
            if not low <= row[0] < high:
                break  # out of a page that has another one's rows
            base, count = row[0] & MAX_OFFSET, row[1]
            if type(count) is not int or type(row[2]) is not int or type(row[3]) is not bytes:
                raise CorruptChunk(place.topic, place.partition, *hole(connection, place, base))
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
        forget_pages(connection)
        if not (runs or more):
            row = last_before_damage(connection, error, place, offset)
            run = decode(row[3], place.topic, place.partition, row[0] & MAX_OFFSET, row[1])
            runs.append(run.slice(0, place.end - run.base_offset))
    finally:
        cursor.close()  # ends the read transaction
    return runs


def numbers(row: Sequence[object]) -> None:
    """Raises StoreDamaged unless all of them are."""
    if any(type(value) is not int for value in row):
        raise StoreDamaged(f"a row of the table of records is damaged: {row}. {WAY_ON}")


def last_before_damage(
    connection: sqlite3.Connection, error: sqlite3.Error, place: RowsPlace, offset: int
) -> tuple[int, int, int, bytes]:
    """The chunk that holds an offset, asked for by itself: who reads several steps to the next one before he is given the first,
    and so loses the last one before damage. Raises what the `error` means if that is not to be had either.
    """
    try:
        row = connection.execute(_HOLDING, (row_id(place.slot, offset), row_id(place.slot, 0))).fetchone()
    except sqlite3.DatabaseError:
        forget_pages(connection)
        row = None
    if (
        row is None
        or offset >= place.end
        or type(row[1]) is not int
        or type(row[3]) is not bytes
        or not row[0] <= row_id(place.slot, offset) < row[0] + row[1]
    ):
        raise translated(connection, error, place, offset) from error
    found: tuple[int, int, int, bytes] = row
    return found


def translated(connection: sqlite3.Connection, error: sqlite3.Error, place: RowsPlace, offset: int) -> StoreError:
    if getattr(error, "sqlite_errorname", "") in DAMAGE:
        lost = unreadable(connection, row_id(place.slot, offset))
        return CorruptChunk(place.topic, place.partition, *_between(connection, place, *lost, may_fail=True))
    return StoreError(f"reading {place.topic}/{place.partition} at {offset}: {error}")


def hole(connection: sqlite3.Connection, place: RowsPlace, offset: int) -> tuple[int, int]:
    """The offsets around one that is not there: from the end of the last chunk before it to the first one behind it that can be
    read. Always the same for all of them, so that a hole has one name.
    """
    key = row_id(place.slot, offset)
    try:
        first, next_offset = _between(connection, place, key, key)
    except sqlite3.DatabaseError:
        first, next_offset = _between(connection, place, *unreadable(connection, key), may_fail=True)
    return min(first, offset), max(next_offset, offset + 1)


def _between(
    connection: sqlite3.Connection, place: RowsPlace, low: int, high: int, *, may_fail: bool = False
) -> tuple[int, int]:
    # The offsets between the last chunk that begins up to key `low` and the first one behind key `high`. Where they cannot
    # be read either, the keys themselves have to do.
    bottom, top = row_id(place.slot, 0), row_id(place.slot, place.end)
    low, high = max(low, bottom - 1), min(high, top - 1)
    first, next_offset = (low + 1) & MAX_OFFSET, (high + 1) & MAX_OFFSET
    try:
        before = connection.execute(_BEFORE, (low, bottom)).fetchone()
        if before is not None:
            first = (before[0] & MAX_OFFSET) + (before[1] if type(before[1]) is int else 0)
        elif (start := connection.execute(_START, (place.slot,)).fetchone()) is not None:
            (first,) = start
    except sqlite3.DatabaseError:
        forget_pages(connection)
        if not may_fail:
            raise
    try:
        (after,) = connection.execute(_BEHIND, (high + 1, top)).fetchone()
        next_offset = place.end if after is None else after & MAX_OFFSET
    except sqlite3.DatabaseError:
        forget_pages(connection)
        if not may_fail:
            raise
    return first, max(next_offset, first + 1)


def offset_for_time(connection: sqlite3.Connection, place: RowsPlace, start: int, timestamp_ms: int) -> int:
    """The first offset stored at or after a time; the end if there is none.

    Store time never goes back within a partition, so the chunks themselves are the index: a bisection over offsets,
    each step one descent of the tree.
    """
    bottom = row_id(place.slot, 0)
    low, high = start, place.end
    found: tuple[int, int, int, int] | None = None
    while low < high:
        middle = (low + high) // 2
        try:
            row = connection.execute(_BEFORE, (row_id(place.slot, middle), bottom)).fetchone()
        except sqlite3.DatabaseError as error:
            forget_pages(connection)
            raise translated(connection, error, place, middle) from error
        if row is None:
            low = middle + 1
            continue
        numbers(row)
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
    try:
        (blob,) = connection.execute("SELECT data FROM chunks WHERE id = ?", (row_id(place.slot, base),)).fetchone()
    except sqlite3.DatabaseError as error:
        forget_pages(connection)
        raise translated(connection, error, place, base) from error
    times = decode(blob, place.topic, place.partition, base, count).times
    return max(start, base + next(index for index, time in enumerate(times) if time >= timestamp_ms))


@contextmanager
def naming(connection: sqlite3.Connection, table: str) -> Iterator[None]:
    """Say which table is damaged. Raises StoreDamaged."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") not in DAMAGE:
            raise
        forget_pages(connection)
        raise StoreDamaged(f"the table {table} of the store cannot be read ({error}). {WAY_ON}") from error


def get_row(connection: sqlite3.Connection, table: str, key: bytes) -> bytes | None:
    with naming(connection, table):
        row = connection.execute("SELECT value FROM rows WHERE name = ? AND key = ?", (table, key)).fetchone()
    return None if row is None else row[0]


def scan_rows(connection: sqlite3.Connection, table: str, first: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
    with naming(connection, table):
        return connection.execute(
            "SELECT key, value FROM rows WHERE name = ? AND key >= ? ORDER BY key LIMIT ?", (table, first, limit)
        ).fetchall()


def table_names(connection: sqlite3.Connection) -> Sequence[str]:
    with naming(connection, "rows"):
        return [name for (name,) in connection.execute("SELECT DISTINCT name FROM rows ORDER BY name")]


def all_rows(connection: sqlite3.Connection, table: str) -> dict[bytes, bytes]:
    with naming(connection, table):
        return dict(connection.execute("SELECT key, value FROM rows WHERE name = ?", (table,)))
