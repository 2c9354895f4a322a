"""How far an ingest is with a remote address, as far as that is written down here: rows that are committed together with what
was stored, so that what comes again after a crash is known.

    delivered ──fresh──► to be stored ──along──► the unit that stores it has the row, on the condition that it is as it was
                └ stored before ──────────────────────────────────────────────────► settled with the others

A broker that keeps nothing of us is asked for the offset of the row. One that numbers its messages and remembers our group
(FlyMQ, RustLog, Kafka) delivers from where it has been told, which is behind where we are if that did not get there. What one
that does not number them delivers again cannot be told from what was published twice.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs

from gateway.broker.service import Along, Guard
from gateway.errors import StoreDamaged
from gateway.protocols.registry import ReaderPosition
from gateway.requests import Delivered, Start
from gateway.store.interface import Put, Require, Store, Ticket, Unit

TABLE = "ingests"
_NUMBER = struct.Struct(">Q")
_PLACE = struct.Struct(">QQ")


class Bookmark:
    """The one number of a remote address and a group: the next offset to ask for, or, for a broker that keeps subscriptions under
    numbers of its own, that number.
    """

    def __init__(self, store: Store, upstream: str, group: str, address: str, guard: Guard) -> None:
        self._store = store
        self._guard = guard
        self._key = row_key(upstream, group, address)
        kept = store.table(TABLE).get(self._key)
        if kept is not None and len(kept) != _NUMBER.size:
            raise StoreDamaged("the place of an ingest cannot be read")
        lost = store.lost.found(TABLE, self._key, f"the place of the ingest of {address}") if kept is None else None
        self.lost = lost.message if lost is not None else ""
        """Why nobody knows how far it was."""
        self.number: int | None = _NUMBER.unpack(kept)[0] if kept is not None else None

    def start(self, position: ReaderPosition) -> Start | int:
        """Where to begin: what the remote keeps under our name counts there; nothing that it has is left out otherwise."""
        if position is ReaderPosition.OWN and self.number is not None:
            return self.number
        return Start.LATEST if position is ReaderPosition.NUMBERED else Start.EARLIEST

    def read_again(self) -> None:
        """What was written by a unit of which nobody knew what became."""
        kept = self._store.table(TABLE).get(self._key)
        self.number = _NUMBER.unpack(kept)[0] if kept is not None else None

    def along(self, deliveries: Sequence[Delivered]) -> Along:
        """What is written with them."""
        value = _NUMBER.pack(deliveries[-1].run.next_offset)
        return Along(
            [Put(TABLE, self._key, value)], [Require(TABLE, self._key, self._store.table(TABLE).get(self._key))]
        )

    def move(self, number: int | None, *, synced: bool = False) -> Ticket:
        """Remember another number (None: forget it). Unsynced it may be lost by a power cut, and then more is repeated."""
        self.number = number
        value = _NUMBER.pack(number) if number is not None else None
        return self._store.submit(Unit(puts=[Put(TABLE, self._key, value)], requires=self._guard(), synced=synced))


@attrs.define(eq=False)
class _Place:
    told: int
    """The remote knows that everything before is stored."""
    stored: int
    """Everything before is stored."""


class Places:
    """Where each partition is of a remote address that numbers its messages and remembers our group.

    What lies between the two offsets of a place may come again, and is left out then. What comes from before the first is no
    repetition, since the remote knew better: the topic was made again, or somebody has put the group back.
    """

    def __init__(self, store: Store, upstream: str, group: str, address: str, guard: Guard) -> None:
        self._store = store
        self._guard = guard
        self._names = upstream, group, address
        self._places: dict[int, _Place] = {}

    def fresh(self, deliveries: Sequence[Delivered]) -> list[Delivered]:
        """What of them is not stored yet."""
        found: list[Delivered] = []
        for one in deliveries:
            run = one.run
            place = self._place(run.partition)
            if place is None or run.base_offset < place.told:
                place = self._places[run.partition] = _Place(run.base_offset, run.base_offset)
            known = min(max(place.stored - run.base_offset, 0), run.count)
            if not known:
                found.append(one)
            elif known < run.count:
                tag = one.first_tag + known
                found.append(Delivered(run.slice(known, run.count), tag, one.attempt))
        return found

    def along(self, deliveries: Sequence[Delivered]) -> Along:
        """What is written with them."""
        ends = {one.run.partition: one.run.next_offset for one in deliveries}
        return self._rows({number: _Place(self._places[number].told, end) for number, end in ends.items()})

    def stored(self, deliveries: Sequence[Delivered]) -> None:
        for one in deliveries:
            place = self._places[one.run.partition]
            place.stored = max(place.stored, one.run.next_offset)

    def settled(self, deliveries: Sequence[Delivered]) -> None:
        """The remote has said that it knows."""
        for one in deliveries:
            place = self._places.get(one.run.partition)
            if place is not None:
                place.told = max(place.told, min(one.run.next_offset, place.stored))

    def read_again(self) -> None:
        """What was written by a unit of which nobody knew what became."""
        self._places.clear()

    def note(self) -> Ticket | None:
        """Write down what the remote was told, of which no unit has been since: without it what comes when the topic was made
        again would be taken for known.
        """
        table = self._store.table(TABLE)
        changed = {
            number: place
            for number, place in self._places.items()
            if (row := table.get(self._key(number))) is not None and row != _packed(place)
        }
        if not changed:
            return None
        rows = self._rows(changed)
        return self._store.submit(Unit(puts=rows.puts, requires=[*self._guard(), *rows.requires], synced=False))

    def _rows(self, places: dict[int, _Place]) -> Along:
        table = self._store.table(TABLE)
        keys = {number: self._key(number) for number in places}
        return Along(
            [Put(TABLE, keys[number], _packed(place)) for number, place in places.items()],
            [Require(TABLE, key, table.get(key)) for key in keys.values()],
        )

    def _key(self, partition: int) -> bytes:
        return row_key(*self._names, str(partition))

    def _place(self, partition: int) -> _Place | None:
        if partition not in self._places:
            kept = self._store.table(TABLE).get(self._key(partition))
            if kept is None or len(kept) != _PLACE.size:
                return None
            self._places[partition] = _Place(*_PLACE.unpack(kept))
        return self._places[partition]


def row_key(*names: str) -> bytes:
    return b"\0".join(name.encode() for name in names)


def _packed(place: _Place) -> bytes:
    return _PLACE.pack(place.told, place.stored)
