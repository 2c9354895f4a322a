"""The tables, as the log of the state says: every gateway reads the same records in the same order, so all have the same rows.

A record's key is the table's name, a zero byte and the row's key; without a value the row is gone. Beside rows the log has who
stands in line to decide something by them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs

Change = tuple[str, bytes, bytes | None]


def record_key(table: str, key: bytes) -> bytes:
    return table.encode() + b"\0" + key


MARK = record_key("mark", b"")
"""A record of the state's log that is no row: whether writes are taken."""
_PLACES = record_key("turns", b"")


def place_key(member: bytes) -> bytes:
    """The key of a record that is no row either: with a value a gateway stands in line with it, without one it has left."""
    return _PLACES + member


@attrs.frozen
class PlaceInLine:
    """Where a gateway stands in line."""

    member: bytes
    offset: int
    """Of the record that said so."""


class WaitingLine:
    """Who waits for a transaction of his own that touches the log of the state, and in which order, as that log says."""

    def __init__(self) -> None:
        self._places: dict[bytes, PlaceInLine] = {}

    def take(self, offset: int, member: bytes, value: bytes | None) -> None:
        """A record of the log, in its order. Who stands already keeps his place."""
        if value is None:
            self._places.pop(member, None)
        else:
            self._places.setdefault(member, PlaceInLine(member, offset))

    @property
    def first(self) -> PlaceInLine | None:
        return next(iter(self._places.values()), None)

    def before(self, member: bytes) -> int:
        """How many stand before this one, or would if it came now."""
        return list(self._places).index(member) if member in self._places else len(self._places)

    def __contains__(self, member: bytes) -> bool:
        return member in self._places


@attrs.define(eq=False)
class _OwnWrites:
    """What this gateway has under way for one row."""

    under_way: int = 0
    offset: int = -1
    """Where the last of them is that is known to be in the log."""
    read: int = -1
    """Where the last record of the row is that was read meanwhile, whoever has written it."""


class Tables:
    """All rows there are, and who stands in line to write some."""

    def __init__(self) -> None:
        self.line = WaitingLine()
        self._rows: dict[str, dict[bytes, bytes]] = {}
        self._sorted: dict[str, list[bytes]] = {}
        """The keys in order, of tables that somebody has asked for so."""
        self._ahead: dict[tuple[str, bytes], int] = {}
        """Rows that this gateway has written and not yet read back, and where they are in the log."""
        self._own: dict[tuple[str, bytes], _OwnWrites] = {}
        self._position = 0
        """What is before it in the log was read."""

    def names(self) -> Sequence[str]:
        """The tables that have rows."""
        return sorted(name for name, rows in self._rows.items() if rows)

    def table(self, name: str) -> Mapping[bytes, bytes]:
        return MappingProxyType(self._rows.setdefault(name, {}))

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._rows.get(table, {}).get(key)

    def scan(self, table: str, first: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        rows = self._rows.get(table)
        if not rows:
            return []
        keys = self._sorted.get(table)
        if keys is None:
            keys = self._sorted[table] = sorted(rows)
        begin = bisect_left(keys, first)
        return [(key, rows[key]) for key in keys[begin : begin + limit]]

    def writing(self, table: str, key: bytes) -> None:
        """A row of this gateway's own is on its way: until whoever writes it has heard how that ended (`wrote`), nobody is told
        what is read of this row, for that may be his own, or behind it.
        """
        own = self._own.get((table, key))
        if own is None:
            own = self._own[table, key] = _OwnWrites()
        own.under_way += 1

    def written(self, offset: int, table: str, key: bytes, value: bytes | None) -> None:
        """A row of this gateway's own, as soon as it is known to be in the log."""
        own = self._own.get((table, key))
        if own is not None:
            own.offset = max(own.offset, offset)
        if offset < self._position:
            return  # it was read meanwhile, and what came behind it perhaps
        if offset > self._ahead.get((table, key), -1):
            self._ahead[table, key] = offset
            self._set(table, key, value)

    def wrote(self, table: str, key: bytes) -> Change | None:
        """Whoever writes it has heard how that ended; returns what is to be told now: what others have written behind it."""
        own = self._own[table, key]
        own.under_way -= 1
        if own.under_way:
            return None
        del self._own[table, key]
        return (table, key, self.get(table, key)) if own.read > own.offset else None

    def fill(self, messages: Iterable[Any]) -> None:
        """The same before this gateway has written any, and when nobody is told: a start may have a million to read."""
        last, rows, message = b"", {}, None
        for message in messages:
            name = message.key()
            if name is None or name == MARK:  # none: it is no row, but the news that the log ends here
                continue
            if name.startswith(_PLACES):
                self.line.take(message.offset(), name[len(_PLACES) :], message.value())
                continue
            told, _zero, key = name.partition(b"\0")
            if told != last:
                last, rows = told, self._rows.setdefault(told.decode(), {})
            value = message.value()
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        if message is not None:
            self._position = max(self._position, message.offset())

    def take_in(self, messages: Iterable[Any]) -> list[Change]:
        """What Kafka has delivered of the log, in its order; returns what has changed by others and is to be told now."""
        rows: list[tuple[int, bytes, bytes | None]] = []
        for message in messages:
            if message.error() is None:
                key = message.key()
                if key is None or key == MARK:
                    continue
                if key.startswith(_PLACES):
                    self.line.take(message.offset(), key[len(_PLACES) :], message.value())
                else:
                    rows.append((message.offset(), key, message.value()))
        return self.read(rows)

    def read(self, records: Iterable[tuple[int, bytes, bytes | None]]) -> list[Change]:
        """Records of the log, in its order; returns what has changed by others and is to be told now."""
        changes: list[Change] = []
        ahead, under_way = self._ahead, self._own
        last, table, offset = b"", "", -1
        rows: dict[bytes, bytes] = {}
        keys: list[bytes] | None = None
        for offset, name, value in records:
            told, _zero, key = name.partition(b"\0")
            if told != last:
                last, table = told, told.decode()
                rows, keys = self._rows.setdefault(table, {}), self._sorted.get(table)
            if ahead:
                row = table, key
                own = ahead.get(row)
                if own is not None:
                    if own <= offset:
                        del ahead[row]
                    if own >= offset:
                        continue
            if keys is not None:
                self._set(table, key, value)
            elif value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
            if under_way and (own_writes := under_way.get((table, key))) is not None:
                own_writes.read = offset
            else:
                changes.append((table, key, value))
        self._position = max(self._position, offset + 1)
        return changes

    def _set(self, table: str, key: bytes, value: bytes | None) -> None:
        rows = self._rows.get(table)
        if rows is None:
            rows = self._rows[table] = {}
        keys = self._sorted.get(table)
        if value is None:
            if rows.pop(key, None) is not None and keys is not None:
                del keys[bisect_left(keys, key)]
        else:
            if keys is not None and key not in rows:
                insort(keys, key)
            rows[key] = value
