"""A gateway in a thread of its own, whose event loop is watched: how much processor time it spends without looking up.

Processor time of the thread, not time on the wall: what other processes do to the machine is no part of it.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from gateway.app import Gateway
from gateway.config.load import parse
from gateway.observe.metrics import LOOP_LAG


@attrs.define(eq=False)
class Loop(trio.abc.Instrument):
    """Remembers the longest that one task held the loop."""

    longest: float = 0.0
    by: str = ""
    steps: int = 0
    _began: float = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.thread_time() - self._began
        self.steps += 1
        if took > self.longest:
            self.longest, self.by = took, task.name

    def forget(self) -> None:
        """Begin anew."""
        self.longest, self.by, self.steps = 0.0, "", 0


@attrs.frozen
class Lags:
    """The histogram of the loop's lag: by upper edge, how many looks were at most so late."""

    buckets: Mapping[float, int]

    @property
    def count(self) -> int:
        return self.buckets[math.inf]

    def later_than(self, seconds: float) -> int:
        """Looks that were later than the last edge up to this."""
        return self.count - max([0, *[number for edge, number in self.buckets.items() if edge <= seconds]])


@attrs.define(eq=False)
class Watched:
    """A gateway, and its loop."""

    gateway: Gateway
    loop: Loop
    _token: trio.lowlevel.TrioToken
    held: dict[str, tuple[float, str]] = attrs.Factory(dict)
    """By what was asked: the longest hold, and who it was."""

    def lags(self) -> Lags:
        """What the metric has seen since the start. Of this family alone, which one thread may read while another counts: a
        whole scrape belongs into the gateway's loop, and would hold it up itself.
        """
        metric = self.gateway.recorder._cells[LOOP_LAG.name].collect()
        return Lags({float(one.labels["le"]): int(one.value) for one in metric.samples if "le" in one.labels})

    async def hold(self, seconds: float) -> None:
        """Use so much processor time in the gateway's own loop, as an operation would that never looks up."""
        over = threading.Event()

        def work() -> None:
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
            over.set()

        self._token.run_sync_soon(work)
        await trio.to_thread.run_sync(over.wait)

    async def looked(self, times: int = 1) -> None:
        """Until the metric has had so many looks more."""
        wanted = self.lags().count + times
        while self.lags().count < wanted:  # noqa: ASYNC110  # a scrape is all there is
            await trio.sleep(0.02)

    @property
    def ports(self) -> Mapping[str, int]:
        """The port of each listener."""
        return self.gateway.ports

    async def longest(self, name: str) -> None:
        """Note the longest hold since the last time as that of `name`; what was under way is through by then."""
        for _ in range(3):  # a call is made between two steps, and whatever is ready then has its step before the next
            passed = threading.Event()
            self._token.run_sync_soon(passed.set)
            await trio.to_thread.run_sync(passed.wait)
        self.held[name] = max(self.held.get(name, (0.0, "")), (self.loop.longest, self.loop.by))
        self.loop.forget()


@asynccontextmanager
async def watched(config: str) -> AsyncIterator[Watched]:
    """Serve this configuration beside the test, in another thread; drained at the end of the block."""
    made, loop = Gateway(parse(config)), Loop()
    ready = threading.Event()
    tokens: list[trio.lowlevel.TrioToken] = []
    failed: list[Exception] = []

    async def serve() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run, lambda _line: None)
            ready.set()
            await made.stopped.wait()
            nursery.cancel_scope.cancel()

    def run() -> None:
        try:
            trio.run(serve, instruments=[loop])
        except Exception as error:  # noqa: BLE001  # told where the block ends
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        await trio.to_thread.run_sync(ready.wait)
        gc.collect()
        gc.freeze()  # as `gateway serve` does; and what the tests have made is nothing that a collection has to look at
        yield Watched(made, loop, tokens[0])
    finally:
        if thread.is_alive():
            tokens[0].run_sync_soon(made.drain)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(thread.join)
        gc.unfreeze()
    assert not failed, failed
