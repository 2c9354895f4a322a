"""Rows that nobody reads before the next start, as they were last written.

A unit with such rows can go the short way: they are in its frame of the journal, and in the database later. What it requires is
looked up here, as the database may be at work then, or lack what the journal has. A unit that requires what is not at hand, or
writes any other row, is a transaction of the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import EllipsisType

import msgspec

from gateway.errors import StoreDamaged

MOST = 1024
"""Beyond those that the database lacks. Whoever needs one that is not at hand takes the long way, and has it at hand then."""
RowKey = tuple[str, bytes]
"""A table and the key of a row."""
Written = Mapping[RowKey, bytes | None]
_Packed = list[tuple[str, bytes, bytes | None]]


def pack_rows(rows: Written) -> bytes:
    """Rows as they stand in the journal."""
    return msgspec.msgpack.encode([(table, key, value) for (table, key), value in rows.items()])


def unpack_rows(data: bytes) -> dict[RowKey, bytes | None]:
    try:
        return {(table, key): value for table, key, value in msgspec.msgpack.decode(data, type=_Packed)}
    except msgspec.DecodeError as error:
        raise StoreDamaged("rows in the journal cannot be read") from error


class RowsAtHand:
    def __init__(self) -> None:
        self._rows: dict[RowKey, tuple[bytes | None, int]] = {}
        """The value of each and the commit that wrote it, in the order in which they were written."""

    def find(self, table: str, key: bytes) -> bytes | EllipsisType | None:
        """What a row is, None if it is not there; an ellipsis: that is to be asked of the database."""
        found = self._rows.get((table, key))
        return ... if found is None else found[0]

    def wrote(self, rows: Written, kept: Iterable[RowKey], number: int, stored: int) -> None:
        """A commit is through that wrote these, of which some are `kept` here. `stored`: up to which the database has all."""
        mine = self._rows
        for key in rows:
            mine.pop(key, None)
        for key in kept:
            mine[key] = rows[key], number
        while len(mine) > MOST:
            oldest = next(iter(mine))
            if mine[oldest][1] > stored:
                break
            del mine[oldest]
