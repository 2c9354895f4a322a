"""Who reads as a consumer group at the other gateways of one log: each writes down for which groups it has readers.

    the first reader joins ─► a row: this gateway has so many ─► only then he is told     the last one goes ─► no row
    a gateway dies ─► the store counts it to those that serve no more ─► its rows count for nothing, and are taken away

Where one process writes alone, nobody is elsewhere, and there are no such rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TypeAlias

from gateway.broker.consume.group_offsets import decode_names, encode_names
from gateway.broker.ownership import Owners
from gateway.broker.presence import GoneGateways
from gateway.broker.service import Clock, StartJob, Timers
from gateway.store.interface import Put, Require, Store, Ticket, Unit

TABLE = "group_readers"
WRITE_AGAIN = 1.0
_COUNT = struct.Struct(">I")

GroupKey: TypeAlias = tuple[str, str]
"""A topic and a group."""


class GroupReaders:
    """Those of this gateway, as the others are to know them, and those of the others."""

    def __init__(
        self,
        store: Store,
        owners: Owners,
        clock: Clock,
        timers: Timers,
        start_soon: StartJob,
    ) -> None:
        self._store = store
        self._owners = owners
        self._clock = clock
        self._timers = timers
        self.changed: Callable[[GroupKey], None] = lambda _group: None
        """Hears of groups whose readers elsewhere came or went."""
        self._shared = not store.capabilities.single_writer
        self._elsewhere: dict[GroupKey, dict[bytes, int]] = {}
        self._here: dict[GroupKey, int] = {}
        self._written: dict[GroupKey, int] = {}
        self._writing: dict[GroupKey, int] = {}
        """What is on its way to the log."""
        self._waiting: dict[GroupKey, list[Callable[[], None]]] = {}
        """Who is told as soon as the others can know of him."""
        if self._shared:
            self._gone = GoneGateways(store, owners, clock, timers, start_soon, TABLE, self._rows_of_others, self._told)
            self._told(store.table(TABLE))
            store.on_rows(TABLE, self._told)

    # --- here ---

    def have(self, group: GroupKey, readers: int, then: Callable[[], None] | None = None) -> None:
        """This gateway has so many of a group now; `then` is called when the others know that it has some, or cannot be told."""
        if not self._shared:
            if then is not None:
                then()
            return
        if readers:
            self._here[group] = readers
        else:
            self._here.pop(group, None)
        if then is not None:
            if self._written.get(group) and self._writing.get(group, 1):
                then()
            else:
                self._waiting.setdefault(group, []).append(then)
        self._write(group)

    def _write(self, group: GroupKey) -> None:
        # one at a time for each group, with what is true when its turn comes
        readers = self._here.get(group, 0)
        if group in self._writing:
            return
        if readers == self._written.get(group, 0):
            self._answer(group)
            return
        self._writing[group] = readers
        put = Put(TABLE, _key(group, self._owners.name), _COUNT.pack(readers) if readers else None)

        def done(ticket: Ticket) -> None:
            del self._writing[group]
            if ticket.error is not None:
                # nobody can be put elsewhere either while nothing can be written
                self._answer(group)
                self._timers.call_at(self._clock.now() + WRITE_AGAIN, lambda: self._write(group))
                return
            if readers:
                self._written[group] = readers
            else:
                self._written.pop(group, None)
            self._write(group)

        self._store.submit(Unit(puts=[put])).on_done(done)

    def _answer(self, group: GroupKey) -> None:
        for then in self._waiting.pop(group, ()):
            then()

    # --- elsewhere ---

    def groups(self) -> Iterable[GroupKey]:
        """Of which there are readers elsewhere."""
        return self._elsewhere

    def elsewhere(self, group: GroupKey) -> int:
        """How many read as it at other gateways, as far as is known here."""
        return sum(self._elsewhere.get(group, {}).values())

    async def reading_elsewhere(self, group: GroupKey) -> int:
        """How many read as it at other gateways that live, whoever was told before this call among them."""
        if not self._shared:
            return 0
        # what a condition is decided by has all that was acknowledged before
        await self._store.submit(Unit(requires=[Require(TABLE, b"", None)])).wait()
        found = self._elsewhere.get(group)
        if not found:
            return 0
        serving = await self._gone.serving()
        return sum(readers for gateway, readers in found.items() if gateway in serving)

    def _told(self, rows: Mapping[bytes, bytes | None]) -> None:
        for key, value in rows.items():
            (topic, group), gateway = decode_names(key, 2)
            known = topic, group
            if gateway == self._owners.name:
                # taken away by somebody who took this gateway for dead
                self._written.pop(known, None)
                self._write(known)
                continue
            readers = self._elsewhere.setdefault(known, {})
            if value is not None:
                readers[gateway] = _COUNT.unpack(value)[0]
                self._gone.heard(gateway)
            else:
                readers.pop(gateway, None)
            if not readers:
                del self._elsewhere[known]
            self.changed(known)

    def _rows_of_others(self, serving: Container[bytes]) -> list[Put]:
        return [
            Put(TABLE, _key(group, gateway), None)
            for group, readers in self._elsewhere.items()
            for gateway in readers
            if gateway not in serving
        ]


def _key(group: GroupKey, gateway: bytes) -> bytes:
    return encode_names(*group) + gateway
