"""What is kept of a durable subscription, and its numbers, which are never used twice."""

from __future__ import annotations

import contextlib
import random
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import attrs
import msgspec

from gateway.errors import ConditionFailed, RowLost, StoreReadOnly
from gateway.requests import Redelivery, Subscribe
from gateway.store.interface import Put, Require, Store, Ticket, Unit

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
    return Put(CURSORS, cursor_key(number, partition), window)


def removed_rows(number: int, partitions: Iterable[int]) -> list[Put]:
    return [subscription_row(number, None), *(cursor_row(number, partition, None) for partition in partitions)]


def cursor_key(number: int, partition: int) -> bytes:
    return _CURSOR_KEY.pack(number, partition)


def read_subscription(subscriptions: Mapping[bytes, bytes], number: int) -> StoredSubscription | None:
    row = subscriptions.get(_ID.pack(number)) if 0 <= number < 1 << 64 else None
    return msgspec.msgpack.decode(row, type=StoredSubscription) if row is not None else None


def check_lost(store: Store, number: int) -> None:
    """For a subscription that is not there. Raises RowLost if it may have been."""
    store.lost.check(SUBSCRIPTIONS, _ID.pack(number), f"subscription {number}")


def lost_cursor(store: Store, number: int, partitions: Iterable[int], epoch: int) -> RowLost | None:
    """For partitions without a cursor: what to say if there may have been one."""
    what, keys = f"the place of subscription {number}", [cursor_key(number, partition) for partition in partitions]
    return next((lost for key in keys if (lost := store.lost.found(CURSORS, key, what, epoch)) is not None), None)


def read_subscriptions(
    subscriptions: Mapping[bytes, bytes],
    cursors: Mapping[bytes, bytes],
    wanted: Callable[[int], bool] = lambda _number: True,
) -> Iterator[tuple[int, StoredSubscription, dict[int, bytes]]]:
    """Every stored subscription that is wanted, with its cursors by partition, from the rows of both tables: each when it is come
    to.
    """
    rows = {number: row for key, row in subscriptions.items() if wanted(number := _ID.unpack(key)[0])}
    windows: dict[int, dict[int, bytes]] = {}
    for key, value in cursors.items():
        number, partition = _CURSOR_KEY.unpack(key)
        if number in rows:
            windows.setdefault(number, {})[partition] = value
    for number, row in rows.items():
        yield number, msgspec.msgpack.decode(row, type=StoredSubscription), windows.get(number, {})


@attrs.define(eq=False)
class Numbers:
    """Subscription numbers from 2 upwards, reserved in blocks so that a restart never gives one out again."""

    store: Store
    _blocks: deque[tuple[int, int]] = attrs.Factory(deque)
    """What is reserved and not given out: from, up to."""
    _reserving: Ticket | None = None

    def __attrs_post_init__(self) -> None:
        self._reserve()

    def take(self) -> int:
        if not self._blocks:
            self._reserve()
            raise StoreReadOnly("subscription numbers cannot be reserved: the store does not take writes")
        number, upto = self._blocks.popleft()
        if number + 1 < upto:
            self._blocks.appendleft((number + 1, upto))
        if not self.plenty:
            self._reserve()
        return number

    @property
    def plenty(self) -> bool:
        """Whether who need not have just any may look for another."""
        return sum(end - begin for begin, end in self._blocks) >= BLOCK // 2

    async def wait(self) -> None:
        """Until the first block is reserved. Raises the store's error if it cannot be."""
        while self._reserving is not None:
            with contextlib.suppress(ConditionFailed):
                await self._reserving.wait()

    def _reserve(self) -> None:
        if self._reserving is not None:
            return
        kept = self.store.table(COUNTERS).get(_COUNTER)
        begin = _ID.unpack(kept)[0] if kept is not None else self._first()
        upto = begin + BLOCK
        reserve = Unit([], [Put(COUNTERS, _COUNTER, _ID.pack(upto))], [Require(COUNTERS, _COUNTER, kept)])
        self._reserving = self.store.submit(reserve)

        def done(ticket: Ticket) -> None:
            self._reserving = None
            if isinstance(ticket.error, ConditionFailed):  # another gateway was quicker: the next block then
                self._reserve()
            elif ticket.error is None:
                self._blocks.append((begin, upto))

        self._reserving.on_done(done)

    def _first(self) -> int:
        if not self.store.lost.touches(COUNTERS):
            return FIRST_NUMBER
        # far from all that were given out, the ones of subscriptions that are long gone as well
        return (1 + random.getrandbits(20)) << 32
