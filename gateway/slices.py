"""What there may be tens of thousands of is gone through in slices, and others have the event loop in between."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import islice
from typing import TypeVar

import trio

T = TypeVar("T")
AT_ONCE = 500
"""What takes some microseconds for each is done with so many in a few milliseconds."""


async def slices(every: Iterable[T]) -> AsyncGenerator[Sequence[T]]:
    """All of them, so many at a time. They are asked for as they are come to: what is gone by then need not be among them."""
    left = iter(every)
    while some := tuple(islice(left, AT_ONCE)):
        yield some
        await trio.lowlevel.checkpoint()
