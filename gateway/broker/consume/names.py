"""What durable subscriptions are among the gateways of one log: each is a job (`gateway.broker.ownership`) by its number, and a
name has one number. Where one process writes alone all are its own, and there are no such rows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gateway.broker.ownership import Owners
from gateway.errors import ConditionFailed
from gateway.store.interface import Put, Require, Store

NAMES = "subscription_names"
"""A table: the number of what has a name."""
FORMER_HOMES = "subscription_homes"
"""A table of earlier versions, of which rows may be left: nobody looks at them."""
_ID = struct.Struct(">Q")


def job_of(number: int) -> str:
    return f"subscription {number}"


class SubscriptionNames:
    def __init__(self, store: Store, owners: Owners) -> None:
        self._store = store
        self._owners = owners
        self.shared = not store.capabilities.single_writer

    def owned(self, number: int) -> bool:
        return self._owners.owns(job_of(number))

    def guard(self, number: int) -> Sequence[Require]:
        """What a unit requires that is written for it."""
        return self._owners.guard(job_of(number))

    def number_of(self, topic: str, name: str) -> int | None:
        kept = self._store.table(NAMES).get(name_key(topic, name)) if self.shared and name else None
        return _ID.unpack(kept)[0] if kept is not None else None

    def made(self, number: int, topic: str, name: str) -> tuple[list[Put], list[Require]]:
        """What is written, and required, when it is new. Raises ConditionFailed where the name has another number by now."""
        if not self.shared or not name:
            return [], []
        seen = self.number_of(topic, name)
        if seen not in {None, number}:
            raise ConditionFailed
        key = name_key(topic, name)
        return [Put(NAMES, key, _ID.pack(number))], [Require(NAMES, key, None if seen is None else _ID.pack(seen))]

    def removed(self, topic: str, name: str) -> list[Put]:
        return [Put(NAMES, name_key(topic, name), None)] if self.shared and name else []


def name_key(topic: str, name: str) -> bytes:
    return topic.encode() + b"\0" + name.encode()
