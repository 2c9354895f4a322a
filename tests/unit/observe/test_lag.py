"""What holds the event loop shows in its histogram, by a clock that only the test moves."""

from __future__ import annotations

import trio
import trio.testing

from gateway.observe.lag import EVERY, watching_lag
from gateway.observe.prometheus import PrometheusRecorder
from tests.unit.observe.test_prometheus import value


async def test_what_holds_the_loop_is_counted_where_its_length_belongs(mock_clock: trio.testing.MockClock) -> None:
    recorder = PrometheusRecorder()
    assert value(recorder, "gateway_loop_lag_seconds_count") == 0
    async with watching_lag(recorder.lagged):
        await trio.testing.wait_all_tasks_blocked()
        for held in (0.0, 0.0, 0.7):
            mock_clock.jump(EVERY + held)  # as if somebody had computed for so long
            await trio.testing.wait_all_tasks_blocked()
    assert value(recorder, "gateway_loop_lag_seconds_count") == 3
    assert value(recorder, "gateway_loop_lag_seconds_bucket", le="0.05") == 2
    assert value(recorder, "gateway_loop_lag_seconds_bucket", le="0.5") == 2
    assert value(recorder, "gateway_loop_lag_seconds_bucket", le="1.0") == 3
