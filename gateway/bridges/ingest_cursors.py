"""How far an ingest is, where the broker elsewhere does not remember it: a row beside the log for each remote address.

A row is one number. For a broker that keeps subscriptions under numbers of its own it is that number; for one that keeps
nothing it is the next offset to ask for.
"""

from __future__ import annotations

import struct

from gateway.errors import StoreDamaged
from gateway.protocols.registry import ReaderPosition
from gateway.requests import Start
from gateway.store.interface import Put, Store, Ticket, Unit

TABLE = "ingests"
_NUMBER = struct.Struct(">Q")


class Bookmark:
    """The row of one remote address, for one group."""

    def __init__(self, store: Store, upstream: str, group: str, address: str) -> None:
        self._store = store
        self._key = b"\0".join((upstream.encode(), group.encode(), address.encode()))
        kept = store.table(TABLE).get(self._key)
        if kept is not None and len(kept) != _NUMBER.size:
            raise StoreDamaged("the place of an ingest cannot be read")
        self.number: int | None = _NUMBER.unpack(kept)[0] if kept is not None else None

    def start(self, position: ReaderPosition) -> Start | int:
        """Where to begin: what the remote keeps under our name counts there; nothing that it has is left out otherwise."""
        if position is ReaderPosition.OWN and self.number is not None:
            return self.number
        return Start.LATEST if position is ReaderPosition.NUMBERED else Start.EARLIEST

    def move(self, number: int | None, *, synced: bool = False) -> Ticket:
        """Remember another number (None: forget it). Unsynced it may be lost by a power cut, and then more is repeated."""
        self.number = number
        value = _NUMBER.pack(number) if number is not None else None
        return self._store.submit(Unit(puts=[Put(TABLE, self._key, value)], synced=synced))
