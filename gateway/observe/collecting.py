"""What lives is looked through for cycles once, and not again and again.

A full collection looks at everything there is: with 48 000 subscriptions it held the event loop for half a second, however
little was new. So what has outlived one is frozen, which is out of every later collection's sight, and a pause is in proportion
to what came since. The price is that what was frozen alive and dies in a cycle is not found any more. What ends here leaves no
cycles (a test opens and closes it all with the collector off); for what libraries leave there is a thorough collection, of
everything, when nobody waits for it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import trio

YOUNG, MIDDLE, OLD = 10_000, 2, 1
"""So many objects more than were let go of are looked through. Python's 700 are those of a hundred messages: what comes and
stays, in the caches of the log, would be looked at again and again. What outlives three such looks is looked at once more, and
what outlives two of those is frozen: a pause is about some ninety thousand objects at most, and takes twenty milliseconds.
"""
EVERY = 10.0
"""Seconds between two looks whether a thorough collection is due."""
ENOUGH = 1_000
"""Connections that have closed since the last one are worth one; so is anything that was frozen since."""
IDLE = 0.05
"""A process that used less of its time than this, from one look to the next, has nobody waiting for it."""
PER_OBJECT = 300e-9
"""Seconds, as long as it was not measured."""
MOST = 0.05
"""What it may take while somebody is connected: he might ask just then."""


class Collector:
    """Whose policy it is for the whole process."""

    def __init__(
        self,
        observe: Callable[[str, float], None],
        connections: Callable[[], tuple[int, int]],
        used: Callable[[], float] = time.process_time,
    ) -> None:
        """`observe`: hears of each pause, by its kind. `connections`: how many there are, and have closed so far. `used`:
        processor time.
        """
        self._observe = observe
        self._connections = connections
        self._used = used
        self._began = 0.0
        self._per_object = PER_OBJECT
        self._frozen = False
        """Something was, since the last thorough collection."""
        self._closed = 0
        """Connections that had closed by then."""
        self._thorough = self._unheard = False

    def noted(self, phase: str, info: Mapping[str, int]) -> None:
        # called by the collector itself, in whichever thread has made the object that was too many
        if self._unheard:
            return
        if phase == "start":
            self._began = time.perf_counter()
            return
        full = info["generation"] == 2
        if full:
            gc.freeze()
            self._frozen = True
        kind = "thorough" if self._thorough else "full" if full else "young"
        self._observe(kind, time.perf_counter() - self._began)

    def look(self, idle: bool) -> None:
        """Do what is due."""
        there, closed = self._connections()
        if not idle or not (self._frozen or closed - self._closed >= ENOUGH):
            return
        # counted one by one, so not before all the rest is known
        if not there or gc.get_freeze_count() * self._per_object <= MOST:
            self._collect_all()
            self._frozen, self._closed = False, closed

    def _collect_all(self) -> None:
        gc.unfreeze()
        self._thorough, began = True, time.perf_counter()
        try:
            gc.collect()
        finally:
            self._thorough = False
        self._per_object = (time.perf_counter() - began) / max(1, gc.get_freeze_count())
        self._unheard = True
        _forget_how_many_there_are()
        self._unheard = False

    async def run(self) -> None:
        while True:
            before = self._used()
            await trio.sleep(EVERY)
            self.look(self._used() - before <= IDLE * EVERY)


def _forget_how_many_there_are() -> None:
    # A full collection comes no sooner than when a quarter of what the last one has left is new, and would be about as much. When
    # all is frozen one more is about nothing, and leaves nothing.
    gc.collect()


@contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """Freeze what there is, which is what the start has made, and go by this policy for as long as the block lasts.

    What is frozen stays so: the process ends, and to look through it all once more would only be in the way.
    """
    before = gc.get_threshold()
    gc.freeze()
    _forget_how_many_there_are()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.callbacks.append(collector.noted)
    try:
        yield
    finally:
        gc.callbacks.remove(collector.noted)
        gc.set_threshold(*before)
