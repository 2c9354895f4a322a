"""Requests whose answers are long take turns: one of them in each pass of the event loop, everybody else's work between.

Listing a hundred thousand groups is done page by page; asking for each page again takes a place at the end of the lane.
Connections take turns too, so that who asks for many lists at once does not keep the others from theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

Call = Callable[[], None]


class Lane:
    """Calls that are made one in a pass. A task runs them; tests without one call `turn` themselves."""

    def __init__(self) -> None:
        self._calls: dict[int, deque[Call]] = {}
        """Calls that wait, by connection; that of the first connection is made next."""
        self._parked: trio.lowlevel.Task | None = None

    def add(self, connection: int, call: Call) -> None:
        self._calls.setdefault(connection, deque()).append(call)
        parked, self._parked = self._parked, None
        if parked is not None:
            trio.lowlevel.reschedule(parked)

    def turn(self) -> None:
        connection = next(iter(self._calls))
        calls = self._calls.pop(connection)
        call = calls.popleft()
        if calls:
            self._calls[connection] = calls
        call()

    async def run(self) -> None:
        while True:
            while self._calls:
                self.turn()
                await trio.lowlevel.checkpoint()
            await self._park()

    async def _park(self) -> None:
        self._parked = trio.lowlevel.current_task()

        def abandon(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._parked = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abandon)
