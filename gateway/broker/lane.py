"""What takes long takes turns: so much of it in each pass of the event loop, everybody else's work between.

Listing a hundred thousand groups is done page by page; asking for each page again takes a place at the end of the lane. What is
fetched for all connections together is counted here too, and what is more than a pass may have waits for the next one: to put
together and send a megabyte takes as long as a few hundred small publishes, and forty readers may be due at once.
Connections take turns, so that who asks for much does not keep the others from theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

Call = Callable[[], None]
PASS_BYTES = 512 << 10
"""What one pass may have: about half a millisecond."""


class Lane:
    """Calls that are made as long as a pass has room for them, one at least. A task runs them; tests without one call `turn`
    themselves.
    """

    def __init__(self) -> None:
        self.busy = False
        """This pass has nothing left, or somebody waits for it."""
        self._room = PASS_BYTES
        """What this pass has left."""
        self._calls: dict[object, deque[tuple[Call, int]]] = {}
        """Calls that wait, and what each takes, by connection; that of the first connection is made next."""
        self._parked: trio.lowlevel.Task | None = None

    def spend(self, size: int) -> None:
        """So much was done outside of the lane, or by a call of it."""
        self._room -= size
        if self._room <= 0:
            self._come_round()

    def add(self, connection: object, call: Call, size: int = PASS_BYTES) -> None:
        """Make this call in its turn. `size`: what it takes, beside what it will say by `spend`."""
        self._calls.setdefault(connection, deque()).append((call, size))
        self._come_round()

    def turn(self) -> None:
        """A pass."""
        self._room = PASS_BYTES
        while self._calls and self._room > 0:
            connection = next(iter(self._calls))
            calls = self._calls.pop(connection)
            call, size = calls.popleft()
            if calls:
                self._calls[connection] = calls
            self._room -= size
            self.busy = bool(self._calls) or self._room <= 0
            call()
        self.busy = bool(self._calls) or self._room <= 0

    async def run(self) -> None:
        while True:
            while self.busy:
                self.turn()
                await trio.lowlevel.checkpoint()
            await self._park()

    def _come_round(self) -> None:
        self.busy = True
        parked, self._parked = self._parked, None
        if parked is not None:
            trio.lowlevel.reschedule(parked)

    async def _park(self) -> None:
        self._parked = trio.lowlevel.current_task()

        def abandon(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._parked = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abandon)
