"""Memory goes back to the system after a flood.

What a flood took is freed block by block, and the allocator (glibc's) keeps what lies below a block that is still in use: a
gateway that has held 200 MB once would look as if it still did, for weeks. So it is asked to give back whole pages, in a
thread, when much less is held than was, and not more often than it is looked at.
"""

from __future__ import annotations

import ctypes
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

EVERY = 5.0
"""Seconds between two looks."""
WORTH = 16 << 20
"""Bytes given back since the last time that are worth it: to ask takes some milliseconds."""


def give_back() -> None:
    """Ask the allocator for the pages that nothing lies on. Does nothing where it has no such call (musl)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@asynccontextmanager
async def giving_back_after_floods(
    peak: Callable[[], int], used: Callable[[], int], give: Callable[[], None] = give_back
) -> AsyncIterator[None]:
    """For as long as the block lasts. `peak`: the most that was held since it was last asked; `used`: what is held now."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, peak, used, give)
        yield
        nursery.cancel_scope.cancel()


async def _watch(peak: Callable[[], int], used: Callable[[], int], give: Callable[[], None]) -> None:
    most = 0
    while True:
        await trio.sleep(EVERY)
        most = max(most, peak())
        if most - used() >= WORTH:
            await trio.to_thread.run_sync(give)
            most = used()
