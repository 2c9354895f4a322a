"""The loops that load a target, and how their rounds take turns.

    closed   each lane: take ─► ask ─► answer ─► take ...                     latency: from the asking
    open     due at begins + n / rate; a lane that is free takes the next one  latency: from when it was due

In an open loop a broker that stalls delays nobody's asking but by having no free lane any more, and what is asked late counts
from when it was due: no stall hides those that would have been asked meanwhile.
"""

from __future__ import annotations

import os
import platform
import sys
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import Protocol

import trio

from gateway.bench.figures import Comparison, Measured, Round, Schedule, Workload, quantiles, turns

SPIN = 0.0015
"""Seconds before a request is due in which a sleep would come too late: a timer of the kernel's has a millisecond."""

Until = Callable[[float], Awaitable[None]]


class BenchLane(Protocol):
    """One connection."""

    async def ask(self, values: Sequence[bytes]) -> int:
        """Publish, and wait for the answer; how many were refused."""
        ...


class BenchTarget(Protocol):
    """Something that messages are sent to."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int | None:
        """Its server's process, where that is here."""
        ...

    @property
    def mark(self) -> bool:
        """Whether it is a bare loop, against which the others are held."""
        ...

    def opened(self) -> AbstractAsyncContextManager[BenchLane]: ...


class BenchFeed(Protocol):
    """The messages of one connection."""

    def take(self) -> Sequence[bytes]:
        """Those of the next request; empty at the end."""
        ...


class Fill:
    """Messages of which nothing is asked but their size."""

    def __init__(self, plan: Workload, number: int) -> None:
        self._left = plan.shares[number]
        self._batch = plan.batch
        self._value = bytes(range(256)) * (plan.size // 256 + 1)
        self._value = self._value[: plan.size]

    def take(self) -> Sequence[bytes]:
        count = min(self._batch, self._left)
        self._left -= count
        return [self._value] * count


async def precisely(when: float) -> None:
    """Sleep until a moment, more exactly than timers are: the last of it is spent looking at the clock."""
    if when - trio.current_time() > SPIN:
        await trio.sleep_until(when - SPIN)
    while trio.current_time() < when:
        await trio.lowlevel.checkpoint()


async def run_round(
    target: BenchTarget, plan: Workload, sources: Sequence[BenchFeed], until: Until = precisely
) -> Round:
    """One run of a workload."""
    latencies = array("d")
    refused = requests = 0

    async def closed(lane: BenchLane, source: BenchFeed) -> None:
        while values := source.take():
            await ask(lane, values, trio.current_time())

    async def opened(lane: BenchLane, source: BenchFeed, schedule: Schedule) -> None:
        while (due := schedule.take()) is not None:
            await until(due)
            # taken when they are sent: what was taken before would be sent in whatever order those who waited wake
            await ask(lane, source.take(), due)

    async def ask(lane: BenchLane, values: Sequence[bytes], since: float) -> None:
        nonlocal refused, requests
        not_taken = await lane.ask(values)
        latencies.append(trio.current_time() - since)
        refused += not_taken  # not in one with the waiting: it would add to what it was before
        requests += 1

    async with AsyncExitStack() as stack:
        lanes = [await stack.enter_async_context(target.opened()) for _ in sources]
        before, began = processor_seconds(target.pid), trio.current_time()
        async with trio.open_nursery() as nursery:
            for number, (lane, source) in enumerate(zip(lanes, sources, strict=True)):
                schedule = Schedule(plan, number, began) if plan.rate is not None else None
                for _ in range(plan.window):
                    if schedule is not None:
                        nursery.start_soon(opened, lane, source, schedule)
                    else:
                        nursery.start_soon(closed, lane, source)
        seconds, after = trio.current_time() - began, processor_seconds(target.pid)
    return Round(
        requests=requests,
        messages=plan.messages - refused,
        seconds=max(seconds, 1e-9),
        milliseconds=quantiles(latencies),
        processor_seconds=after - before if before is not None and after is not None else None,
    )


async def compared(
    workload: str,
    plan: Workload,
    targets: Sequence[BenchTarget],
    rounds: int,
    run: Callable[[BenchTarget, Workload], Awaitable[Round]],
    said: Callable[[str, Round], None] = lambda _name, _round: None,
) -> Comparison:
    """Rounds of all targets, in turns. `run` does one of them."""
    found: list[list[Round]] = [[] for _ in targets]
    for order in turns(len(targets), rounds):
        for place in order:
            one = await run(targets[place], plan)
            found[place].append(one)
            said(targets[place].name, one)
    measured = [
        Measured(name=target.name, mark=target.mark, rounds=each) for target, each in zip(targets, found, strict=True)
    ]
    return Comparison(workload=workload, plan=plan, machine=machine(), targets=measured)


def processor_seconds(pid: int | None) -> float | None:
    """Of all threads that a process has; None where that cannot be seen."""
    if pid is None:
        return None
    total = 0
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return None
    for task in tasks:
        with suppress(OSError):  # it has ended
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def machine() -> Mapping[str, str]:
    """What the figures were made on."""
    load = os.getloadavg()[0]
    return {
        "cores": str(os.cpu_count()),
        "system": platform.system(),
        "python": sys.version.split()[0],
        "load": f"{load:.1f}",
    }
