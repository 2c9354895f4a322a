"""Durable subscriptions in the store: written a moment after they moved, read back at start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gateway.broker.cursors import StoredSubscription, cursor_row, load_subscriptions, stored, subscription_row
from gateway.broker.service import Clock
from gateway.broker.subscription import Cursor, Subscription, Tally
from gateway.broker.timers import Pump
from gateway.recorder import Recorder
from gateway.store.ack_window import AckWindow
from gateway.store.interface import Put, Store, TopicState, Unit

WRITE_BEHIND = 0.05
"""Cursors are written this long after they moved: at-least-once may repeat what a crash forgets in between."""
TAGS_AFTER_RESTART = 1 << 32
"""Tags given out shortly before a crash may be unknown to the stored row: no new one may be equal to them."""


def rows_of(subscription: Subscription) -> list[Put]:
    """Everything that is kept of a subscription."""
    row = stored(
        subscription.request, subscription.topic, subscription.epoch, subscription.listener, subscription.next_tag
    )
    rows = [subscription_row(subscription.number, row)]
    rows += [
        cursor_row(subscription.number, cursor.partition, cursor.window.to_bytes()) for cursor in subscription.cursors
    ]
    return rows


class Keeper:
    """Writes what changed, all subscriptions together."""

    def __init__(self, store: Store, pump: Pump, clock: Clock, subscriptions: Mapping[int, Subscription]) -> None:
        self._store = store
        self._pump = pump
        self._clock = clock
        self._subscriptions = subscriptions
        self._cancel: Callable[[], None] | None = None

    def soon(self) -> None:
        """Something changed: write in a moment."""
        if self._cancel is None:
            self._cancel = self._pump.call_at(self._clock.now() + WRITE_BEHIND, self._write)

    def forget(self, subscription: Subscription) -> None:
        """A subscription is gone."""
        rows = [subscription_row(subscription.number, None)]
        rows += [cursor_row(subscription.number, cursor.partition, None) for cursor in subscription.cursors]
        self._store.submit(Unit(puts=rows, synced=False))

    async def close(self) -> None:
        """Write everything that changed, synced."""
        rows = self._changed()
        if rows:
            await self._store.submit(Unit(puts=rows, synced=True)).wait()

    def restore(self, recorder: Recorder) -> Iterator[Subscription]:
        """The subscriptions of earlier processes, at the places they had reached."""
        for number, (row, windows) in load_subscriptions(self._store).items():
            state = self._store.topics.get(row.topic)
            if state is None:
                self._store.submit(Unit(puts=[subscription_row(number, None)], synced=False))
            else:
                if row.epoch != state.epoch:
                    recorder.dropped("", "epoch_changed", 1)
                yield _restored(number, row, windows, state)

    def _write(self) -> None:
        self._cancel = None
        rows = self._changed()
        if rows:
            self._store.submit(Unit(puts=rows, synced=False))

    def _changed(self) -> list[Put]:
        rows: list[Put] = []
        for subscription in self._subscriptions.values():
            if subscription.changed:
                subscription.changed = False
                if subscription.durable:
                    rows += rows_of(subscription)
        return rows


def _restored(number: int, row: StoredSubscription, windows: Mapping[int, bytes], state: TopicState) -> Subscription:
    """A topic that was made again is another one: its subscriptions begin at its start."""
    subscription = Subscription(number, row.request(), state, row.listener)
    subscription.next_tag = row.next_tag + TAGS_AFTER_RESTART
    for partition, bounds in enumerate(state.partitions):
        kept = windows.get(partition)
        fresh = kept is None or row.epoch != state.epoch
        window = AckWindow(bounds.start) if kept is None or fresh else AckWindow.from_bytes(kept)
        tally = Tally(window.low, acknowledged=window.settled_above)
        subscription.cursors.append(
            Cursor(partition, window.low, window, tally, settled_until=window.low + window.span)
        )
    return subscription
