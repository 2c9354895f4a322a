"""Reading chunks as they are stored, for those who take many of them apart at once or pass them on."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from gateway.errors import CorruptChunk
from gateway.store.catalogue import row_id
from gateway.store.database import MAX_OFFSET, forget_pages
from gateway.store.interface import Stored
from gateway.store.rows import CHUNKS, RowsPlace, hole, last_before_damage


def read_stored(
    connection: sqlite3.Connection, place: RowsPlace, offset: int, records: int, size: int
) -> Sequence[Stored]:
    """The chunks from the one that holds `offset` on, without a gap, until there are so many records or bytes.

    Empty when `offset` is not there. Raises CorruptChunk when the database is damaged there; what is good before such a
    place, or before a gap, is returned first.
    """
    chunks: list[Stored] = []
    expected, enough, left = offset, offset + records, size
    low, high = row_id(place.slot, 0), row_id(place.slot, place.end)
    cursor = connection.cursor()
    try:
        for row, count, length, data in cursor.execute(
            CHUNKS, {"at": row_id(place.slot, offset), "low": low, "high": high}
        ):
            if not low <= row < high:
                break  # out of a page that has another one's rows
            base = row & MAX_OFFSET
            if type(count) is not int or type(length) is not int or type(data) is not bytes:
                if chunks:
                    break
                raise CorruptChunk(place.topic, place.partition, *hole(connection, place, base))
            if base + count <= offset and not chunks:
                continue  # the log begins behind the offset
            if base > expected or (chunks and base != expected):
                break
            chunks.append((base, count, data))
            expected = base + count
            left -= length
            if expected >= enough or left <= 0:
                break
    except sqlite3.DatabaseError as error:
        forget_pages(connection)
        if not chunks:
            row, count, _size, data = last_before_damage(connection, error, place, offset)
            chunks.append((row & MAX_OFFSET, count, data))
    finally:
        cursor.close()  # ends the read transaction
    return chunks
