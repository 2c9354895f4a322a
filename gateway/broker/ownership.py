"""Who does what only one gateway may do at a time: send what a forward sends, pull what an ingest pulls, fire what is delayed.

    the store hands a slot to this gateway ─► its row is taken (only while it is as it was seen) ─► its jobs are this gateway's
    the store hands it to another, or another has written the row ─► they are not

A job belongs to a slot by its name. Whatever is written for a job requires that the slot's row is this gateway's: one that was
frozen, lost its slots and wakes up writes nothing. Where one process writes alone all jobs are its own.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence

from gateway.broker.service import Clock, Timers
from gateway.store.interface import Put, Require, Store, Ticket, Unit

TABLE = "owners"
CLAIM_AGAIN = 1.0
"""Seconds until a slot is asked for again that another had taken meanwhile."""


class Owners:
    """This gateway's jobs."""

    def __init__(self, store: Store, clock: Clock, timers: Timers) -> None:
        self._store = store
        self._clock = clock
        self._timers = timers
        self._alone = store.capabilities.single_writer
        self.name = secrets.token_bytes(16)
        """What this gateway writes into rows that say whose something is."""
        self._assigned: frozenset[int] = frozenset()
        self._held: set[int] = set()
        self._claiming = False
        self._callbacks: list[Callable[[], None]] = []
        if not self._alone:
            store.on_rows(TABLE, self._taken_elsewhere)
            store.on_slots(self._hand_out, self.name)

    def owns(self, job: str) -> bool:
        return self._alone or self._slot(job) in self._held

    def guard(self, job: str) -> Sequence[Require]:
        """What a unit requires that is written for this job."""
        return () if self._alone else (Require(TABLE, _key(self._slot(job)), self.name),)

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when jobs have come or gone, until what this returns is called."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    @property
    def held(self) -> int:
        return len(self._held)

    def _slot(self, job: str) -> int:
        return zlib.crc32(job.encode()) % self._store.slots

    def _hand_out(self, slots: frozenset[int]) -> None:
        self._assigned = slots
        gone = self._held - slots
        self._held -= gone
        if gone:
            self._changed()
        self._claim()

    def _claim(self) -> None:
        wanted = sorted(self._assigned - self._held)
        if self._claiming or not wanted:
            return
        self._claiming = True
        table = self._store.table(TABLE)
        unit = Unit(
            puts=[Put(TABLE, _key(slot), self.name) for slot in wanted],
            requires=[Require(TABLE, _key(slot), table.get(_key(slot))) for slot in wanted],
        )

        def done(ticket: Ticket) -> None:
            self._claiming = False
            if ticket.error is None:
                self._held |= self._assigned & set(wanted)
                self._changed()
                self._claim()
            else:
                self._claim_later()

        self._store.submit(unit).on_done(done)

    def _taken_elsewhere(self, rows: Mapping[bytes, bytes | None]) -> None:
        gone = {slot for slot in self._held if rows.get(_key(slot), self.name) != self.name}
        if gone:
            self._held -= gone
            self._changed()
            self._claim_later()  # if it is still handed out to this one

    def _claim_later(self) -> None:
        self._timers.call_at(self._clock.now() + CLAIM_AGAIN, self._claim)

    def _changed(self) -> None:
        for callback in list(self._callbacks):
            callback()


def _key(slot: int) -> bytes:
    return slot.to_bytes(2, "big")
