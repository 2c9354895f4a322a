"""Work that would hold up the event loop, or has to wait: hashing a password, compiling a schema, reading from disk.

Handlers are synchronous; they hand such work over here and answer from the callback. How much may wait is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import trio

from gateway.errors import GatewayError, ShuttingDown, Throttled

T = TypeVar("T")


class Offload(Protocol):
    """Where handlers leave work. The callback runs in the event loop with the result, or with the refusal."""

    def thread(self, work: Callable[[], T], done: Callable[[T | GatewayError], None]) -> None:
        """Do it in a worker thread. Anything but a GatewayError that `work` raises is a bug and ends the program."""
        ...

    def task(self, job: Callable[[], Awaitable[T]], done: Callable[[T | GatewayError], None]) -> None:
        """Do it in a task of the event loop."""
        ...


class NurseryOffload:
    """Offload on trio: a nursery that the app keeps open with `run`, and few threads."""

    def __init__(self, threads: int = 2, pending: int = 256) -> None:
        self._limiter = trio.CapacityLimiter(threads)
        self._pending = pending
        self._under_way = 0
        self._nursery: trio.Nursery | None = None

    @property
    def under_way(self) -> int:
        return self._under_way

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep(math.inf)
            finally:
                self._nursery = None

    def thread(self, work: Callable[[], T], done: Callable[[T | GatewayError], None]) -> None:
        """Do it in a worker thread; Throttled when too much waits already."""

        async def job() -> T:
            return await trio.to_thread.run_sync(work, limiter=self._limiter)

        self.task(job, done)

    def task(self, job: Callable[[], Awaitable[T]], done: Callable[[T | GatewayError], None]) -> None:
        """Do it in a task; Throttled when too much waits already."""
        if self._nursery is None:
            done(ShuttingDown())
        elif self._under_way >= self._pending:
            done(Throttled("too many such requests are under way"))
        else:
            self._under_way += 1
            self._nursery.start_soon(self._run, job, done)

    async def _run(self, job: Callable[[], Awaitable[Any]], done: Callable[[Any], None]) -> None:
        try:
            result = await job()
        except GatewayError as refusal:
            result = refusal
        finally:
            self._under_way -= 1
        done(result)
