"""Between the library's threads and the event loop: what ended in a thread is told there in one hop, however much it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Hop(Generic[T]):
    """What threads put in comes out in the event loop, in order; one wake-up for all that came meanwhile."""

    def __init__(self, arrived: Callable[[Sequence[T]], None]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._arrived = arrived
        self._lock = threading.Lock()
        self._waiting: list[T] = []
        self.closed = False

    def put(self, items: Sequence[T]) -> None:
        # from any thread
        if not items:
            return
        with self._lock:
            first = not self._waiting
            self._waiting.extend(items)
        if first:
            try:
                self._token.run_sync_soon(self._take)
            except trio.RunFinishedError:
                self.closed = True

    def _take(self) -> None:
        with self._lock:
            items, self._waiting = self._waiting, []
        if not self.closed:
            self._arrived(items)
