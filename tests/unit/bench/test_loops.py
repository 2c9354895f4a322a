"""The loops on a mock clock, against servers whose answers take exactly as long as they are said to."""

from __future__ import annotations

import heapq
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.bench.bare import KINDS, bare_target
from gateway.bench.figures import Round, Workload, quantile
from gateway.bench.loops import Fill, compared, processor_seconds, run_round


@attrs.define
class Slow:
    """Every answer takes so long, whatever else is asked; request `number` is answered `stalls(number)` later still."""

    takes: float
    stalls: Callable[[int], float] = lambda _number: 0.0
    name: str = "slow"
    pid: int | None = None
    mark: bool = False
    asked: list[float] = attrs.Factory(list)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Slow]:
        yield self

    async def ask(self, values: Sequence[bytes]) -> int:
        number = len(self.asked)
        self.asked.append(trio.current_time())
        await trio.sleep(self.takes + self.stalls(number))
        return 0


def run(target: Slow, plan: Workload) -> Round:
    async def main() -> Round:
        sources = [Fill(plan, number) for number in range(plan.connections)]
        return await run_round(target, plan, sources, trio.sleep_until)

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def simulated(plan: Workload, takes: float, stalls: Callable[[int], float]) -> list[float]:
    """What an open loop has to find: a request begins when it is due and a lane is free, and counts from when it was due."""
    assert plan.rate is not None
    free = [0.0] * (plan.window * plan.connections)
    found = []
    for number in range(plan.requests):
        due = number / plan.rate
        begins = max(due, heapq.heappop(free))
        ends = begins + takes + stalls(number)
        heapq.heappush(free, ends)
        found.append(ends - due)
    return sorted(found)


def test_an_open_loop_sends_in_order_however_late_it_is() -> None:
    """Many are overdue at once behind a stall: those that wait wake in any order, and the messages go in theirs."""

    class Numbered:
        def __init__(self) -> None:
            self.next = 0

        def take(self) -> Sequence[bytes]:
            self.next += 1
            return [b"%d" % (self.next - 1)] if self.next <= 200 else []

    @attrs.define
    class Kept(Slow):
        seen: list[bytes] = attrs.Factory(list)

        async def ask(self, values: Sequence[bytes]) -> int:
            self.seen += values
            return await super().ask(values)

    kept = Kept(0.001, lambda number: 0.3 if number < 8 else 0.0)
    plan = Workload(messages=200, batch=1, window=8, rate=1000.0)

    async def main() -> Round:
        return await run_round(kept, plan, [Numbered()], trio.sleep_until)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert kept.seen == [b"%d" % number for number in range(200)]


@given(st.integers(1, 60), st.integers(1, 5), st.floats(1.0, 1000.0), st.floats(1e-4, 0.5))
def test_an_open_loop_counts_from_when_a_request_was_due(count: int, lanes: int, rate: float, takes: float) -> None:
    plan = Workload(messages=count, batch=1, window=lanes, rate=rate)
    found = run(Slow(takes), plan)
    expected = simulated(plan, takes, lambda _number: 0.0)
    assert found.milliseconds["max"] == pytest.approx(expected[-1] * 1e3, abs=1e-3)
    assert found.milliseconds["p50"] == pytest.approx(quantile(expected, 0.5) * 1e3, abs=1e-3)
    assert found.requests == count


def test_a_stall_is_seen_by_all_that_were_due_meanwhile() -> None:
    """Coordinated omission: a closed loop, or one that waits before it asks, would find one slow request of a thousand."""

    def stalls(number: int) -> float:
        return 1.0 if number == 500 else 0.0

    plan = Workload(messages=1000, batch=1, window=1, rate=1000.0)
    found = run(Slow(0.0001, stalls), plan)
    assert found.milliseconds["max"] == pytest.approx(1000.1, abs=0.1)
    # half of all were due while nothing was answered: they wait from 1 s down to nothing
    assert found.milliseconds["p90"] > 500
    assert found.milliseconds["p50"] < 1000
    closed = run(Slow(0.0001, stalls), Workload(messages=1000, batch=1, window=1))
    assert closed.milliseconds["p99"] == pytest.approx(0.1, abs=0.01)
    assert closed.milliseconds["max"] == pytest.approx(1000.1, abs=0.1)


def test_an_open_loop_asks_when_it_is_due_whatever_became_of_those_before() -> None:
    slow = Slow(0.5)
    run(slow, Workload(messages=10, batch=1, window=10, rate=100.0))
    assert slow.asked == pytest.approx([number / 100 for number in range(10)])


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 4), st.floats(0.001, 1.0))
def test_a_closed_loop_has_as_many_under_way_as_its_window(
    count: int, window: int, connections: int, takes: float
) -> None:
    plan = Workload(messages=count * connections, batch=1, window=window, connections=connections)
    found = run(Slow(takes), plan)
    assert found.seconds == pytest.approx(takes * -(-count // window))
    assert found.milliseconds["p50"] == found.milliseconds["max"] == pytest.approx(takes * 1e3, abs=1e-3)
    assert (found.requests, found.messages) == (plan.requests, plan.messages)


def test_what_is_refused_of_requests_that_overlap_is_all_counted() -> None:
    class Refusing(Slow):
        async def ask(self, values: Sequence[bytes]) -> int:
            await super().ask(values)
            return 2

    found = run(Refusing(0.01), Workload(messages=100, batch=5, window=4, connections=2))
    assert (found.requests, found.messages) == (20, 60)


def test_a_batch_is_one_request() -> None:
    found = run(Slow(0.01), Workload(messages=105, batch=10, window=2))
    assert (found.requests, found.messages) == (11, 105)


@pytest.mark.processes
async def test_the_bare_loops_answer_everything_in_turns_with_their_processor_time() -> None:
    plan = Workload(messages=600, size=100, batch=3, window=8, connections=2)
    told: list[str] = []
    async with bare_target(KINDS[0]) as echo, bare_target(KINDS[1]) as durable:
        with trio.fail_after(120):
            found = await compared(
                "w", plan, [echo, durable], 2,
                lambda target, plan: run_round(target, plan, [Fill(plan, n) for n in range(plan.connections)]),
                lambda name, _round: told.append(name),
            )  # fmt: skip
        assert processor_seconds(echo.pid) is not None
    assert told == ["bare echo", "bare durable", "bare durable", "bare echo"]
    for one in found.targets:
        assert one.mark
        assert [each.messages for each in one.rounds] == [600, 600]
        assert all(each.processor_us is not None and each.processor_us > 0 for each in one.rounds)
    ratio = found.ratios(found.targets[1])["bare echo"]
    assert ratio.median > 0
    assert processor_seconds(None) is None


def gone(pid: int) -> bool:
    """Or dead, and waiting for whoever has it now."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


@pytest.mark.processes
async def test_a_bare_loop_ends_with_who_started_it() -> None:
    program = """
import sys, trio
from gateway.bench.bare import bare_target
async def main():
    async with bare_target("echo") as echo:
        sys.stdout.write(f"{echo.pid} ")
        sys.stdout.flush()
        await trio.sleep(600)
trio.run(main)
"""
    starter = await trio.lowlevel.open_process([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    said = b""
    with trio.fail_after(120):
        while not said.endswith(b" "):
            said += await starter.stdout.receive_some()
        starter.kill()
        await starter.wait()
        while not gone(int(said)):  # noqa: ASYNC110  # it is nobody's child here
            await trio.sleep(0.02)
