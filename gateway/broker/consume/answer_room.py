"""Room for what is on its way to those who read, taken before it is there.

    Fetch ──► from memory, as much as there is room for ──────────────────────────────────────► the answer
      └─────► its turn, of few at a time ──► room in the budget ──► the read ──────────────────────┘
    Take ───► as much of what was read ahead as there is room for; without any it waits ──► what is handed out
                                                 │                                     └──► what is left: counted, or dropped
                                                 └──► until it is acknowledged: counted; of much, those wait who have of it

Where an answer waits to be sent it is charged by the connection. Without this nothing would be charged before that: of a thousand
who ask at once each would have megabytes read.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import islice
from typing import Protocol

import trio

from gateway.broker.lane import Lane
from gateway.broker.service import Clock
from gateway.broker.timers import Alarm, Pump
from gateway.recorder import Recorder

AT_A_TIME = 4
"""Reads that are under way together: one more than the disk is read by, so that none of these waits for the event loop."""
SHORT = 128 << 10
"""Bytes of an answer while answers hold as much as they may. One message is found all the same, however large."""
MUCH = 16 << 10
"""What is less is not counted on its way from here to the connection, which takes no longer than this pass."""
LIMIT = "budget"
AHEAD = 8
"""So much of the memory, as a fraction, is for what was read ahead and nobody has asked for."""
UNACKNOWLEDGED = 4
"""So much of it is for what subscriptions have handed out and nobody has acknowledged."""
NOT_ACKNOWLEDGED = "unacknowledged"
"""The limit that is hit then."""
DROPPED_AT_ONCE = 64
"""Of those who have read ahead."""
LOOK_AGAIN = 1.0
"""Seconds between two looks for who holds answers and takes nothing of them: of all connections that do."""


class AnswerMemory(Protocol):
    """What connections hold, of all that they may."""

    limit: int
    full: int
    """What it may come to by short answers."""
    used: int
    unsent: int
    """Of that, answers."""
    most_unsent: int
    """Before they are short ones."""

    def wait_while_full(self, key: object, wake: Callable[[], None]) -> None: ...

    def forget(self, key: object) -> None: ...

    def relieve_readers(self, now: float) -> bool:
        """Cut who holds most and takes nothing of it, if somebody waits for that. Whether somebody still waits."""
        ...

    def change(self, amount: int, unsent: int = 0) -> None: ...


class ReadsAhead(Protocol):
    """What reads more than it was asked for."""

    def drop_ahead(self) -> bool:
        """Have nothing of that any more, and read it again when it is asked for. False if somebody waits for it."""
        ...


class AnswerRoom:
    def __init__(self, memory: AnswerMemory, pump: Pump, clock: Clock, lane: Lane, recorder: Recorder) -> None:
        self._memory = memory
        self._pump = pump
        self._clock = clock
        self._lane = lane
        self._recorder = recorder
        self._turns = trio.CapacityLimiter(AT_A_TIME)
        self._ahead: dict[ReadsAhead, int] = {}
        """What each has read ahead, the oldest first."""
        self._in_ahead = 0
        self.crowded = False
        """As much is unacknowledged as may be: a subscription has more only while it holds less than `SHORT` of it."""
        self._unacknowledged = 0
        self._held_back: dict[object, Callable[[], None]] = {}
        """Who waits until that is over, the oldest first."""
        self._one_goes_on = False
        self._relief = Alarm(pump, self._relieve)
        self._looked_at = -math.inf

    def most(self, wanted: int) -> int:
        """How many bytes an answer may have now, of so many; 0 if it has to wait."""
        memory = self._memory
        if memory.used >= memory.full:
            return 0
        scarce = memory.unsent >= memory.most_unsent or memory.used >= memory.limit
        return max(min(wanted, SHORT) if scarce else wanted, 1)

    def when_there_is_some(self, listener: str, key: object, call: Callable[[], None]) -> None:
        """Call, in a turn with others. It may find that they have taken it all."""
        self._wait(listener, key, partial(self._lane.add, key, call, SHORT))

    @asynccontextmanager
    async def turn(self, listener: str, wanted: int, *, whole: bool = False) -> AsyncIterator[int]:
        """Inside the block so many bytes may be read. `whole`: not fewer than wanted."""
        async with self._turns:
            while not (most := self.most(wanted)):
                await self._some(listener)
            size = wanted if whole else most
            with self.holding(size):
                yield size

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """So much of an answer is there. It is given inside the block, and given back when the connection has it."""
        self._memory.change(0, size)
        try:
            yield
        finally:
            self._pump.later(object(), partial(self._memory.change, 0, -size))

    def given(self, size: int) -> None:
        """So much was handed out just now."""
        if size >= MUCH:
            self._memory.change(0, size)
            self._pump.later(object(), partial(self._memory.change, 0, -size))

    def ahead(self, of: ReadsAhead, size: int) -> None:
        """So much of what it has read is left. Nobody waits for it, so the oldest is dropped when there is much."""
        before = self._ahead.pop(of, 0)
        if size:
            self._ahead[of] = size
        self._in_ahead += size - before
        self._memory.change(0, size - before)
        if self._in_ahead > self._memory.limit // AHEAD and size > before:
            self._drop_ahead(self._memory.limit // AHEAD)

    def _drop_ahead(self, most: int) -> None:
        for of in list(islice(self._ahead, DROPPED_AT_ONCE)):
            if self._in_ahead <= most:
                return
            if of.drop_ahead():
                self.ahead(of, 0)
            else:  # others are looked at before it is again
                self._ahead[of] = self._ahead.pop(of)

    def unacknowledged(self, change: int) -> None:
        """So much more was handed out and is to be acknowledged, or so much less is."""
        share = self._memory.limit // UNACKNOWLEDGED
        before, self._unacknowledged = self._unacknowledged, self._unacknowledged + change
        self.crowded = self._unacknowledged >= share
        # No more than the share is charged: what each subscription has beside it is freed by its client alone, and must not come
        # to so much that nobody is given anything.
        self._memory.change(0, min(self._unacknowledged, share) - min(before, share))
        self._let_one_go_on()

    def hold_back(self, listener: str, key: object, call: Callable[[], None]) -> None:
        """Call once it is not `crowded`, in a turn with others. It may find that they have taken it all."""
        if key not in self._held_back:
            self._recorder.limit_hit(listener, NOT_ACKNOWLEDGED)
            self._held_back[key] = call

    def forget(self, key: object) -> None:
        """Do not call back any more."""
        self._held_back.pop(key, None)

    def _let_one_go_on(self) -> None:
        if self._held_back and not self.crowded and not self._one_goes_on:
            self._one_goes_on = True
            self._lane.add(self, self._go_on, SHORT)

    def _go_on(self) -> None:
        self._one_goes_on = False
        if self._held_back and not self.crowded:
            self._held_back.pop(next(iter(self._held_back)))()
            self._let_one_go_on()  # it may have nobody to give it to any more

    async def _some(self, listener: str) -> None:
        there = trio.Event()
        self._wait(listener, there, there.set)
        try:
            await there.wait()
        finally:
            self._memory.forget(there)

    def _wait(self, listener: str, key: object, wake: Callable[[], None]) -> None:
        self._recorder.limit_hit(listener, LIMIT)
        self._memory.wait_while_full(key, wake)
        self._drop_ahead(0)
        # not from here: who is to be cut may be the one who asks
        if not self._relief.is_set:
            self._relief.set(max(self._clock.now(), self._looked_at + LOOK_AGAIN))

    def _relieve(self) -> None:
        self._looked_at = now = self._clock.now()
        if self._memory.relieve_readers(now):
            self._relief.set(now + LOOK_AGAIN)
