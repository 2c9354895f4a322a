"""The writer's thread. One thread for one job at a time, so it needs none of the bookkeeping of `trio.to_thread`: a hop
there and back costs a quarter, which is what a producer that sends one record at a time waits for beside the disk.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

import outcome
import trio

T = TypeVar("T")


class WriterThread:
    """Runs functions one after the other; who gives it one sees to it that the one before is done."""

    def __init__(self, name: str) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._work: Callable[[], Any] | None = None
        self._done: Callable[[outcome.Outcome[Any]], None] = lambda _result: None
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        self._thread = threading.Thread(target=self._loop, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._work = None
        self._wake.release()
        self._thread.join()

    def start(self, work: Callable[[], T], done: Callable[[outcome.Outcome[T]], None]) -> None:
        """Call `work` in the thread, and `done` with what became of it in the event loop. `done` must not raise."""
        self._work, self._done = work, done
        self._wake.release()

    def _loop(self) -> None:
        while True:
            self._wake.acquire()
            work = self._work
            if work is None:
                return
            self._token.run_sync_soon(self._done, outcome.capture(work))
            del work  # what it was about may be large, and the next job may be long in coming
