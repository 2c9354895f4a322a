"""The sync of what `interval` topics have promised, in a thread that keeps the time itself.

Neither its beginning nor its end is a matter of the event loop, which hears of it only when something is wrong: to be woken for
both costs more than the sync, and there are hundreds in a second.
"""

from __future__ import annotations

import _thread
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import outcome
import trio

SYNC_MARGIN = 0.002
"""Seconds. A sync begins this much before it is due: it takes a while itself, and has to be over then."""


class Syncer:
    """Calls `sync` within the time that is asked for, and `failed` in the event loop with anything but None."""

    def __init__(self, sync: Callable[[], object], failed: Callable[[outcome.Outcome[object]], None]) -> None:
        self._sync = sync
        self._failed = failed
        self._due = math.inf
        self._within = math.inf
        """The shortest interval that was asked for since the last sync began: a longer one is kept with it."""
        self._stopped: Callable[[], None] | None = None
        self._token = trio.lowlevel.current_trio_token()
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        self._thread = threading.Thread(target=self._loop, name="store-sync")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop(lambda: None)
        self._thread.join()

    def ask(self, interval: float) -> None:
        """What is written by now is to be synced within so many seconds."""
        if interval >= self._within:
            return
        self._within = interval
        self._due = min(self._due, time.monotonic() + max(interval - SYNC_MARGIN, interval / 2))
        self._look()

    def stop(self, stopped: Callable[[], None]) -> None:
        """Begin no further sync; call back in the event loop when none is under way."""
        if self._stopped is None:
            self._stopped = stopped
            self._look()

    def _look(self) -> None:
        with suppress(RuntimeError):  # it is about to look anyway
            self._wake.release()

    def _loop(self) -> None:
        while self._stopped is None:
            if self._due == math.inf:
                self._wake.acquire()
                continue
            left = self._due - time.monotonic()
            if left > 0:
                self._wake.acquire(timeout=min(left, threading.TIMEOUT_MAX))
                continue
            # in this order: who asks between the two has written before this sync begins
            self._due = math.inf
            self._within = math.inf
            result = outcome.capture(self._sync)
            if result != _DONE:
                self._token.run_sync_soon(self._failed, result)
        self._token.run_sync_soon(self._stopped)


_DONE = outcome.Value(None)
