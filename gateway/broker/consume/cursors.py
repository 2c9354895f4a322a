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
    """A row of the subscriptions table."""

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
        return Subscribe(
            id=0,
            address=self.address,
            name=self.name,
            acknowledge=self.acknowledge,
            redelivery=Redelivery(*self.redelivery, self.unanswered) if self.redelivery is not None else None,
            durable_grace=self.grace,
            max_in_flight=self.max_in_flight,
            largest_value=self.largest_value,
            smallest_value=self.smallest_value,
        )


def stored(request: Subscribe, topic: str, epoch: int, listener: str, owner: str, next_tag: int) -> StoredSubscription:
    """The row for a subscription."""
    redelivery = request.redelivery
    return StoredSubscription(
        topic=topic,
        epoch=epoch,
        address=request.address,
        name=request.name,
        listener=listener,
        owner=owner,
        acknowledge=request.acknowledge,
        grace=request.durable_grace,
        max_in_flight=request.max_in_flight,
        largest_value=request.largest_value,
        smallest_value=request.smallest_value,
        redelivery=(redelivery.max_deliveries, redelivery.first_delay, redelivery.longest_delay)
        if redelivery
        else None,
        next_tag=next_tag,
        unanswered=redelivery is None or redelivery.unanswered,
    )


def subscription_row(number: int, row: StoredSubscription | None) -> Put:
    """Write or delete a subscription."""
    return Put(SUBSCRIPTIONS, _ID.pack(number), msgspec.msgpack.encode(row) if row is not None else None)


def cursor_row(number: int, partition: int, window: bytes | None) -> Put:
    """Write or delete one partition's cursor."""
    return Put(CURSORS, _CURSOR_KEY.pack(number, partition), window)


def removed_rows(number: int, partitions: Iterable[int]) -> list[Put]:
    """What deletes a subscription."""
    return [subscription_row(number, None), *(cursor_row(number, partition, None) for partition in partitions)]


def load_subscriptions(store: Store) -> dict[int, tuple[StoredSubscription, dict[int, bytes]]]:
    """Every stored subscription with its cursors by partition."""
    return read_subscriptions(store.table(SUBSCRIPTIONS), store.table(CURSORS))


def read_subscriptions(
    subscriptions: Mapping[bytes, bytes], cursors: Mapping[bytes, bytes]
) -> dict[int, tuple[StoredSubscription, dict[int, bytes]]]:
    """The same, from the rows of both tables."""
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
        """The next number."""
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
