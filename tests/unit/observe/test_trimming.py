"""What was held in a flood goes back to the system, and is asked back only then."""

from __future__ import annotations

import ctypes
import sys

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.observe.trimming import EVERY, WORTH, giving_back_after_floods
from gateway.transport.limits import Budget

HELD = """
import re
from gateway.observe.trimming import give_back
def resident():
    return int(re.findall(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[0])
blocks = [bytes(60_000) for _ in range(3_000)]
last = bytes(60_000)
del blocks
before = resident()
give_back()
print(before - resident())
"""


async def test_the_allocator_is_asked_once_after_each_flood(mock_clock: MockClock):
    budget, asked = Budget(1 << 30), []

    async def looked(times: int) -> None:
        """Two looks later it was asked so often in all."""
        for _ in range(2):
            await wait_all_tasks_blocked()
            mock_clock.jump(EVERY)
            while len(asked) < times:
                mock_clock.jump(EVERY)  # who still asks in its thread was not asleep when the time passed
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
        assert len(asked) == times

    async with giving_back_after_floods(budget.peak, lambda: budget.used, lambda: asked.append(budget.used)):
        for held, times in (
            (WORTH - 1, 0),  # not worth it
            (4 * WORTH, 1),
            (0, 1),
            (2 * WORTH, 2),
        ):
            budget.change(held)  # comes and goes between two looks
            budget.change(-held)
            await looked(times)
        budget.change(4 * WORTH)  # and while it lasts nobody asks
        await looked(2)
        budget.change(-3 * WORTH)
        await looked(3)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="an allocator that cannot be asked (musl)")
async def test_what_lies_below_a_block_in_use_goes_back():
    done = await trio.run_process([sys.executable, "-c", HELD], capture_stdout=True)
    assert int(done.stdout) > 100_000, "of 180 MB, in kB"
