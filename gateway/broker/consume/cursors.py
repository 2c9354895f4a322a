"""What is kept of a durable subscription, and its numbers, which are never used twice."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import attrs
import msgspec

from gateway.errors import StoreReadOnly
from gateway.requests import Redelivery, Subscribe
from gateway.store.interface import Put, Store, Ticket, Unit

SUBSCRIPTIONS = "subscriptions"
CURSORS = "cursors"
COUNTERS = "counters"
_ID = struct.Struct(">Q")
_CURSOR_KEY = struct.Struct(">QI")
_COUNTER = b"subscription"
FIRST_NUMBER = 2
BLOCK = 1_000


class StoredSubscription(msgspec.Struct, frozen=True):
    topic: str
    epoch: int
    address: str
    name: str
    listener: str
    acknowledge: bool
    grace: float | None
    max_in_flight: int
    largest_value: int | None
    smallest_value: int
    redelivery: tuple[int, float, float] | None
    next_tag: int
    unanswered: bool = True
    owner: str = ""
    """Whose it is: nobody else takes from it or settles."""

    def request(self) -> Subscribe:
        """The Subscribe that made it."""
        redelivery = Redelivery(*self.redelivery, self.unanswered) if self.redelivery is not None else None
        alike = {name: getattr(self, name) for name in _ALIKE}
        return Subscribe(id=0, redelivery=redelivery, durable_grace=self.grace, **alike)


_ALIKE = ("address", "name", "acknowledge", "max_in_flight", "largest_value", "smallest_value")
"""What is called the same in a Subscribe."""


def stored(request: Subscribe, topic: str, epoch: int, listener: str, owner: str, next_tag: int) -> StoredSubscription:
    redelivery = request.redelivery
    return StoredSubscription(
        topic=topic,
        epoch=epoch,
        listener=listener,
        owner=owner,
        next_tag=next_tag,
        grace=request.durable_grace,
        redelivery=msgspec.structs.astuple(redelivery)[:3] if redelivery else None,
        unanswered=redelivery is None or redelivery.unanswered,
        **{name: getattr(request, name) for name in _ALIKE},
    )


def subscription_row(number: int, row: StoredSubscription | None) -> Put:
    return Put(SUBSCRIPTIONS, _ID.pack(number), msgspec.msgpack.encode(row) if row is not None else None)


def cursor_row(number: int, partition: int, window: bytes | None) -> Put:
    return Put(CURSORS, _CURSOR_KEY.pack(number, partition), window)


def removed_rows(number: int, partitions: Iterable[int]) -> list[Put]:
    return [subscription_row(number, None), *(cursor_row(number, partition, None) for partition in partitions)]


def read_subscriptions(
    subscriptions: Mapping[bytes, bytes], cursors: Mapping[bytes, bytes]
) -> dict[int, tuple[StoredSubscription, dict[int, bytes]]]:
    """Every stored subscription with its cursors by partition, from the rows of both tables."""
    found: dict[int, tuple[StoredSubscription, dict[int, bytes]]] = {}
    for key, value in subscriptions.items():
        found[_ID.unpack(key)[0]] = (msgspec.msgpack.decode(value, type=StoredSubscription), {})
    for key, value in cursors.items():
        number, partition = _CURSOR_KEY.unpack(key)
        if number in found:
            found[number][1][partition] = value
    return found


@attrs.define(eq=False)
class Numbers:
    """Subscription numbers from 2 upwards, reserved in blocks so that a restart never gives one out again."""

    store: Store
    _next: int = FIRST_NUMBER
    _reserved: int = FIRST_NUMBER
    _reserving: Ticket | None = None

    def __attrs_post_init__(self) -> None:
        kept = self.store.table(COUNTERS).get(_COUNTER)
        if kept is not None:
            self._next = self._reserved = _ID.unpack(kept)[0]
        self._reserve()

    def take(self) -> int:
        if self._next >= self._reserved:
            self._reserve()
            raise StoreReadOnly("subscription numbers cannot be reserved: the store does not take writes")
        number = self._next
        self._next += 1
        if self._reserved - self._next < BLOCK // 2:
            self._reserve()
        return number

    async def wait(self) -> None:
        """Until the first block is reserved. Raises the store's error if it cannot be."""
        if self._reserving is not None:
            await self._reserving.wait()

    def _reserve(self) -> None:
        if self._reserving is not None:
            return
        upto = self._reserved + BLOCK
        self._reserving = self.store.submit(Unit(puts=[Put(COUNTERS, _COUNTER, _ID.pack(upto))]))

        def done(ticket: Ticket) -> None:
            self._reserving = None
            if ticket.error is None:
                self._reserved = upto

        self._reserving.on_done(done)
