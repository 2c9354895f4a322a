"""Where a durable subscription is at home, among several gateways on one log: its cursors are in the memory of one of them.

Whoever is asked for one that is at home elsewhere takes it: he writes its row, on the condition that it is as he saw it, reads
where its cursors are, and goes on there. The other one hears of it and lets it go; what he still wanted to write requires his
own row, and so does not apply. What was handed out there and not settled is handed out again. Where one process writes alone,
all are at home here, and there are no such rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from gateway.broker.ownership import Owners
from gateway.errors import GatewayError
from gateway.store.interface import Put, Require, Store, Ticket, Unit

HOMES = "subscription_homes"
NAMES = "subscription_names"
"""A table: the number of what has a name."""
_ID = struct.Struct(">Q")


class Homes:
    def __init__(self, store: Store, owners: Owners, lost: Callable[[int], None]) -> None:
        """`lost` hears of those that another gateway has taken."""
        self._store = store
        self._name = owners.name
        self._lost = lost
        self.shared = not store.capabilities.single_writer
        if self.shared:
            store.on_rows(HOMES, self._written_elsewhere)

    def guard(self, number: int) -> Sequence[Require]:
        """What a unit requires that is written for it."""
        return (Require(HOMES, _ID.pack(number), self._name),) if self.shared else ()

    def made(self, number: int, topic: str, name: str) -> tuple[list[Put], list[Require]]:
        """What is written, and required, when it is new."""
        if not self.shared:
            return [], []
        puts, requires = [Put(HOMES, _ID.pack(number), self._name)], []
        if name:
            key = name_key(topic, name)
            puts.append(Put(NAMES, key, _ID.pack(number)))
            requires.append(Require(NAMES, key, None))
        return puts, requires

    def removed(self, number: int, topic: str, name: str) -> list[Put]:
        if not self.shared:
            return []
        puts = [Put(HOMES, _ID.pack(number), None)]
        return [*puts, Put(NAMES, name_key(topic, name), None)] if name else puts

    def named(self, topic: str, name: str) -> int | None:
        kept = self._store.table(NAMES).get(name_key(topic, name)) if self.shared and name else None
        return _ID.unpack(kept)[0] if kept is not None else None

    def is_elsewhere(self, number: int) -> bool:
        return self.shared and self._store.table(HOMES).get(_ID.pack(number), self._name) != self._name

    def take(self, number: int, then: Callable[[GatewayError | None], None]) -> None:
        """Bring it home; `then` hears why not."""
        key = _ID.pack(number)
        seen = self._store.table(HOMES).get(key)
        unit = Unit(puts=[Put(HOMES, key, self._name)], requires=[Require(HOMES, key, seen)])

        def done(ticket: Ticket) -> None:
            then(ticket.error)

        self._store.submit(unit).on_done(done)

    def _written_elsewhere(self, rows: Mapping[bytes, bytes | None]) -> None:
        for key, home in rows.items():
            if home != self._name:
                self._lost(_ID.unpack(key)[0])


def name_key(topic: str, name: str) -> bytes:
    return topic.encode() + b"\0" + name.encode()
