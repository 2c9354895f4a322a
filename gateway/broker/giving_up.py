"""What a subscription cannot deliver goes to the dead letters; that it is settled is written in the same commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.broker.cursors import cursor_row
from gateway.broker.subscription import Outstanding, Subscription
from gateway.envelope import Run
from gateway.recorder import Recorder
from gateway.store.interface import Append, CreateTopic, Store, Unit

SIZE = "size"
"""The subscriber's protocol cannot carry it."""
MAX_DELIVERIES = "max_deliveries"
"""Nobody acknowledged it, however often it was handed out."""


class DeadLetterMaker(Protocol):
    """What is needed of the dead-letter service."""

    def dead_letter_append(
        self, run: Run, index: int, *, reason: str, attempts: int, first_error: str, last_error: str
    ) -> tuple[Sequence[CreateTopic], Append]:
        """The operations that put one message into its topic's dead letters."""
        ...


class GivingUp:
    """Makes and writes dead letters for subscriptions."""

    def __init__(self, store: Store, recorder: Recorder, maker: DeadLetterMaker) -> None:
        self._store = store
        self._recorder = recorder
        self._maker = maker

    def refuse(self, subscription: Subscription, refused: Sequence[tuple[Run, int]]) -> None:
        """Messages that were read and cannot be carried."""
        for run, index in refused:
            subscription.cursors[run.partition].window.settle(run.base_offset + index)
            self._write(subscription, run, index, SIZE, 0)

    def exhausted(self, subscription: Subscription, message: Outstanding) -> None:
        """A message, settled already, that was handed out as often as it may be."""
        self._write(subscription, message.run, message.index, MAX_DELIVERIES, message.attempts)

    def _write(self, subscription: Subscription, run: Run, index: int, reason: str, attempts: int) -> None:
        creates, append = self._maker.dead_letter_append(
            run, index, reason=reason, attempts=attempts, first_error=reason, last_error=reason
        )
        cursor = subscription.cursors[run.partition]
        cursor.tally.dead_lettered += 1
        puts = []
        if subscription.durable:
            puts.append(cursor_row(subscription.number, run.partition, cursor.window.to_bytes()))
        meta, _inner = run.meta_of(index)
        self._recorder.dead_lettered(meta.route, reason, 1)
        self._store.submit(Unit(creates=creates, appends=[append], puts=puts))
