"""The connections to brokers that are not ours, against these brokers: each request is acknowledged, message by message."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

from gateway.bench.figures import Workload
from gateway.bench.loops import Fill, run_round
from tests.bench.yardsticks import YARDSTICKS, NotHere, Yardstick


@pytest.mark.processes
@pytest.mark.parametrize("start", YARDSTICKS, ids=lambda one: str(one.__name__))
async def test_a_broker_acknowledges_what_it_is_sent(
    start: Callable[[Path], AbstractAsyncContextManager[Yardstick]], tmp_path: Path
) -> None:
    plan = Workload(messages=500, size=300, batch=7, window=5, connections=2)
    try:
        async with start(tmp_path) as broker:
            with trio.fail_after(120):
                found = await run_round(broker, plan, [Fill(plan, number) for number in range(plan.connections)])
    except NotHere as missing:
        pytest.skip(str(missing))
    assert (found.messages, found.requests) == (500, plan.requests)
    assert found.processor_us is not None
    assert found.processor_us > 0
