"""How late the event loop comes round: what a reply, a timer or a new connection waits for before anybody looks at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

EVERY = 0.1
"""Seconds between two looks: whatever holds the loop for longer is seen, and ten wakes a second cost nothing."""


@asynccontextmanager
async def watching_lag(observe: Callable[[float], None]) -> AsyncIterator[None]:
    """Tell, for as long as the block lasts, how late each look was."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, observe)
        yield
        nursery.cancel_scope.cancel()


async def _watch(observe: Callable[[float], None]) -> None:
    while True:
        due = trio.current_time() + EVERY
        await trio.sleep_until(due)
        observe(trio.current_time() - due)
