"""One task for everything the broker does later: timers, and handing completions to their connections."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable

import trio

MOMENT = 0.01
"""Seconds between two looks."""


class SystemClock:
    """The clocks of the machine: trio's for waiting, the wall clock for what is kept."""

    now = staticmethod(trio.current_time)
    """Seconds on the clock of the event loop."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Pump:
    """Runs callbacks at a time or soon, in one task, without a task each.

    `soon` is how replies leave the broker: whatever became known in one pass of the event loop (one commit, one batch of
    a neighbour) is handed over together, and never from deep inside somebody else's call.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._cancelled: set[int] = set()
        self._numbers = itertools.count()
        self._soon: dict[object, Callable[[], None]] = {}
        self._later: dict[object, Callable[[], None]] = {}
        self._held = False
        self._turning = False
        """Callbacks are being called: what they lead to is called after them, not from inside them."""
        self._scope: trio.CancelScope | None = None
        self._parked: trio.lowlevel.Task | None = None

    def call_at(self, when: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back at a time; returns a function that cancels it."""
        number = self.arm(when, callback)
        done = False

        def cancel() -> None:
            nonlocal done
            if not done:
                done = True
                self.disarm(number)

        return cancel

    def arm(self, when: float, callback: Callable[[], None]) -> int:
        """The same, for who may be one of tens of thousands: the number by which to `disarm` it, once, before it is called."""
        number = next(self._numbers)
        heapq.heappush(self._heap, (when, number, callback))
        if self._scope is not None and when < self._scope.deadline:
            self._scope.deadline = when
        return number

    def disarm(self, number: int) -> None:
        self._cancelled.add(number)
        self._compact()

    async def moment(self) -> None:
        """A little while, for who waits for what nobody announces."""
        passed = trio.Event()
        self.call_at(self._now() + MOMENT, passed.set)
        await passed.wait()

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for what nobody announces, for so long at most; whether it holds."""
        deadline = self._now() + seconds
        while not (holds := condition()) and self._now() < deadline:
            await self.moment()
        return holds

    def soon(self, key: object, callback: Callable[[], None]) -> None:
        """Call back in the next pass, once per key."""
        self._soon[key] = callback
        self._come_round()

    def later(self, key: object, callback: Callable[[], None]) -> None:
        """The same, once everything that is to be done `soon` is: whoever has an answer coming goes before whoever only waits
        for news, of whom there may be thousands.
        """
        self._later[key] = callback
        self._come_round()

    def _come_round(self) -> None:
        parked = self._parked
        if parked is not None and not (self._held or self._turning):
            self._parked = None
            trio.lowlevel.reschedule(parked)

    def hold(self) -> None:
        """A commit begins to finish its tickets, or an upstream's answers are gone through: what that leads to is kept until
        `release`, and needs no other pass.
        """
        self._held = True

    def release(self) -> None:
        """What `hold` was for has ended: hand everything over, unless that is under way."""
        self._held = False
        if not self._turning:
            self._hand_over()

    def turn(self) -> None:
        """Everything that is due now. `run` does this; tests without a task call it themselves."""
        self._turning = True
        try:
            self._fire(self._now())
        finally:
            self._turning = False
        self._hand_over()

    def _fire(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            _when, number, callback = heapq.heappop(self._heap)
            if number in self._cancelled:
                self._cancelled.discard(number)
            else:
                callback()

    def _hand_over(self) -> None:
        self._turning = True
        try:
            while self._soon or self._later:
                if self._soon:
                    due, self._soon = self._soon, {}
                else:
                    due, self._later = self._later, {}
                for callback in due.values():
                    callback()
        finally:
            self._turning = False
            if self._soon or self._later:  # somebody has made a mistake, which is not that of the others
                self._come_round()

    async def run(self) -> None:
        while True:
            with trio.CancelScope() as scope:  # one for many turns: it is left only when a timer is due
                self._scope = scope
                try:
                    while True:
                        self.turn()
                        deadline = self._heap[0][0] if self._heap else math.inf
                        if deadline != scope.deadline:
                            scope.deadline = deadline
                        await self._park()
                finally:
                    self._scope = None

    async def _park(self) -> None:
        # Until `soon` wakes us. Being rescheduled costs a tenth of being cancelled, and this is done for every commit.
        if self._soon or self._later:
            await trio.lowlevel.checkpoint()
            return
        self._parked = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._unpark)

    def _unpark(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._parked = None  # it is woken already, and must not be so twice
        return trio.lowlevel.Abort.SUCCEEDED

    def _compact(self) -> None:
        # what was to come next and is called off wakes nobody; cancelled timers far in the future would pile up: rebuild
        # once they are the majority
        while self._heap and self._heap[0][1] in self._cancelled:
            self._cancelled.discard(heapq.heappop(self._heap)[1])
        if len(self._cancelled) > 1024 and len(self._cancelled) * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[1] not in self._cancelled]
            heapq.heapify(self._heap)
            self._cancelled.clear()


class Alarm:
    """One call at a time, which can be moved and called off."""

    __slots__ = ("_armed", "_callback", "_number", "_pump", "_when")

    def __init__(self, pump: Pump, callback: Callable[[], None]) -> None:
        self._pump = pump
        self._callback = callback
        self._when: float | None = None
        self._armed = 0.0
        """When the pump calls: what was put off since stays where it is until then, since it is put off for every message."""
        self._number: int | None = None

    @property
    def is_set(self) -> bool:
        return self._when is not None

    def set(self, when: float | None) -> None:
        """Call at this time and at no other; None: not at all."""
        if when == self._when:
            return
        self._when = when
        if self._number is not None:
            if when is not None and when >= self._armed:
                return
            self._pump.disarm(self._number)
            self._number = None
        if when is not None:
            self._arm(when)

    def _arm(self, when: float) -> None:
        self._armed = when
        self._number = self._pump.arm(when, self._ring)

    def _ring(self) -> None:
        self._number = None
        when = self._when
        if when is not None and when > self._armed:
            self._arm(when)
            return
        self._when = None
        self._callback()
