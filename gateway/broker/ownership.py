"""Who does what only one gateway may do at a time: send what a forward sends, pull what an ingest pulls, fire what is delayed.

    the store hands a slot to this gateway ─┬─ nobody's row ───────────────────────────► its row is taken ─► its jobs are ours
                                            └─ another's ─► he gives it up ────────────┘ (only while it is as it was seen)
                                                         └► he is gone: he is fenced ──┘
    the store hands it to another ─► its row is given up ─┬─► its jobs are not ours
    another has written the row ──────────────────────────┘

A job belongs to a slot by its name. Whatever is written for a job requires that the slot's row is this gateway's: one that was
frozen, lost its slots and wakes up writes nothing. Whoever did not give up a slot himself may have begun something, which is
ended before his row is overwritten. Where one process writes alone all jobs are its own.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

import trio

from gateway.broker.service import Clock, Timers
from gateway.errors import GatewayError
from gateway.store.interface import Put, Require, Store, Ticket, Unit

TABLE = "owners"
LOOK_AGAIN = 1.0
"""Seconds until slots are looked at again that could not be taken or given up."""
SLOW = 5.0
"""Seconds that a gateway that lives has to give up what it has been told to, before it is taken for frozen."""


class Owners:
    """This gateway's jobs."""

    def __init__(self, store: Store, clock: Clock, timers: Timers, start_soon: Callable[..., None]) -> None:
        self._store = store
        self._clock = clock
        self._timers = timers
        self._start_soon = start_soon
        self._alone = store.capabilities.single_writer
        self.name = store.member
        """What this gateway writes into rows that say whose something is."""
        self._assigned: frozenset[int] = frozenset()
        self._held: set[int] = set()
        self._writing = self._asking = self._looking = False
        self._awaited: dict[bytes, float] = {}
        """Whose row is in the way, and since when."""
        self._ended: dict[int, bytes] = {}
        """Who was fenced in order to take a slot from him."""
        self._closed: trio.Event | None = None
        self._callbacks: list[Callable[[], None]] = []
        if not self._alone:
            store.on_rows(TABLE, self._written_elsewhere)
            store.on_slots(self._hand_out)

    def owns(self, job: str) -> bool:
        return self._alone or self._slot(job) in self._held

    def guard(self, job: str) -> Sequence[Require]:
        """What a unit requires that is written for this job."""
        return () if self._alone else (Require(TABLE, _key(self._slot(job)), self.name),)

    def owner_of(self, job: str) -> bytes | None:
        """Who has it, as far as is known here; None while nobody does."""
        return self._row(self._slot(job))

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
        self._ended = {slot: owner for slot, owner in self._ended.items() if slot in slots}
        gone = self._held - slots
        self._held -= gone
        if gone:
            self._changed()
        self._step()

    async def close(self) -> None:
        """Give up all: nobody need fence this gateway."""
        self._closed = trio.Event()
        self._hand_out(frozenset())
        if self._writing:
            await self._closed.wait()

    # --- rows ---

    def _row(self, slot: int) -> bytes | None:
        return self._store.table(TABLE).get(_key(slot))

    def _not_to_have(self) -> list[int]:
        # whose rows are this gateway's, though they are not handed out to it
        rows = self._store.table(TABLE)
        return [
            slot
            for slot in range(self._store.slots)
            if slot not in self._assigned and rows.get(_key(slot)) == self.name
        ]

    def _step(self) -> None:
        # one write at a time, with what is true when its turn comes
        if self._alone or self._writing:
            return
        if given_up := self._not_to_have():
            self._write(given_up, None)
            return
        if self._closed is not None:
            return
        wanted = sorted(self._assigned - self._held)
        free = [slot for slot in wanted if self._row(slot) in {None, self.name, self._ended.get(slot)}]
        if free:
            self._write(free, self.name)
            return
        in_the_way = {row for slot in wanted if (row := self._row(slot)) is not None}
        now = self._clock.now()
        self._awaited = {owner: self._awaited.get(owner, now) for owner in in_the_way}
        if in_the_way and not self._asking:
            self._asking = True
            self._start_soon(None, None, self._ask)

    def _write(self, slots: Sequence[int], value: bytes | None) -> None:
        # only while the rows are as they are seen now
        self._writing = True
        unit = Unit(
            puts=[Put(TABLE, _key(slot), value) for slot in slots],
            requires=[Require(TABLE, _key(slot), self._row(slot)) for slot in slots],
        )

        def done(ticket: Ticket) -> None:
            self._writing = False
            if ticket.error is not None:
                self._look_later()
            else:
                if value is not None:
                    self._ended.clear()
                    # it may be another's by now, who has taken this gateway for dead
                    self._held |= {slot for slot in self._assigned.intersection(slots) if self._row(slot) == self.name}
                    self._changed()
                self._step()
            if self._closed is not None and not self._writing:
                self._closed.set()

        self._store.submit(unit).on_done(done)

    async def _ask(self) -> None:
        # Who has not given up what is handed out to this gateway: is he gone? Only he is fenced whose slots are this gateway's by
        # what the store says now, so that two who live never fence each other in turns.
        with suppress(GatewayError):
            serving = await self._store.serving()
            ours = serving.get(self.name, frozenset())
            for owner, since in list(self._awaited.items()):
                slots = [slot for slot in ours & self._assigned if self._row(slot) == owner]
                if slots and (owner not in serving or since + SLOW <= self._clock.now()):
                    await self._store.fence(owner)
                    self._ended.update((slot, owner) for slot in slots if slot in self._assigned)
        self._asking = False
        if self._ended:
            self._step()
        self._look_later()

    def _written_elsewhere(self, rows: Mapping[bytes, bytes | None]) -> None:
        gone = {slot for slot in self._held if rows.get(_key(slot), self.name) != self.name}
        if gone:
            self._held -= gone
            self._changed()
        self._step()

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self._timers.call_at(self._clock.now() + LOOK_AGAIN, self._look)

    def _look(self) -> None:
        self._looking = False
        self._step()

    def _changed(self) -> None:
        for callback in list(self._callbacks):
            callback()


OwnedJob = TypeVar("OwnedJob")


class OwnedJobs(ABC, Generic[OwnedJob]):
    """The jobs of one kind that are this gateway's. Whoever extends this says how one is taken, left and drained.

    a slot comes ──────────────────────────► take ──► begun where it is written to be
    a slot goes, its row is another's ─────► leave ─► does and writes nothing more; another goes on where it was written to be
    this gateway ends, and has them still ─► drain ─► what is under way ends, and is written
    """

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def shared_out(self) -> None:
        """Some are this gateway's from here on, others are not any more."""
        for name, job in list(self.jobs()):
            if not self._owners.owns(name):
                self.leave(job)
        self.take()

    @abstractmethod
    def jobs(self) -> Iterable[tuple[str, OwnedJob]]:
        """All that are under way here, by the names that owners know."""

    @abstractmethod
    def take(self) -> None:
        """Begin those that are this gateway's and are not under way here."""

    @abstractmethod
    def leave(self, job: OwnedJob) -> None:
        """It is another gateway's."""

    @abstractmethod
    async def drain(self) -> None:
        """Begin nothing more, and end what is under way: for good."""


def _key(slot: int) -> bytes:
    return slot.to_bytes(2, "big")
