"""The writer's thread. One thread for one task at a time, so it needs none of the bookkeeping of `trio.to_thread`: a hop
there and back costs half as much, which is what a producer that sends one record at a time waits for beside the disk.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar, TypeVarTuple, cast

import outcome
import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class WriterThread:
    """Runs functions for one task, one after the other."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._work: Callable[[], outcome.Outcome[Any]] | None = None
        self._task: trio.lowlevel.Task | None = None
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        self._thread = threading.Thread(target=self._loop, name="store-writer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._work = None
        self._wake.release()
        self._thread.join()

    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call `work` in the thread. Cancelling has no effect: what a commit has begun is to be known."""
        self._task = trio.lowlevel.current_task()
        self._work = lambda: outcome.capture(work, *args)
        self._wake.release()
        return cast("T", await trio.lowlevel.wait_task_rescheduled(lambda _raise: trio.lowlevel.Abort.FAILED))

    def _loop(self) -> None:
        while True:
            self._wake.acquire()
            if self._work is None:
                return
            self._token.run_sync_soon(self._done, self._work())

    def _done(self, result: outcome.Outcome[Any]) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task, result)
