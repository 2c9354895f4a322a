"""When messages of a replay are due, with a clock that the test moves."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.errors import InvalidRequest
from gateway.pipeline.pacing import Pacer
from gateway.pipeline.replay import speed_of

TIMES = np.array([1000.0, 1000.0, 1500.0, 3000.0])


def test_as_far_apart_as_they_were() -> None:
    pacer = Pacer(speed=1.0)
    assert pacer.ready(TIMES, 50.0) == 2
    assert pacer.pause(1500.0, 50.0) == pytest.approx(0.5)
    assert pacer.ready(TIMES[2:], 50.25) == 0
    assert pacer.ready(TIMES[2:], 50.5) == 1
    assert pacer.pause(3000.0, 51.0) == pytest.approx(1.0)
    assert pacer.ready(TIMES[3:], 60.0) == 1  # late is late, the next are not put off for it


def test_ten_times_as_fast_and_as_fast_as_it_goes() -> None:
    pacer = Pacer(speed=10.0)
    assert pacer.ready(TIMES, 0.0) == 2
    assert pacer.pause(3000.0, 0.0) == pytest.approx(0.2)
    assert pacer.ready(TIMES[2:], 0.2) == 2
    assert Pacer().ready(TIMES, 0.0) == 4
    assert Pacer().pause(9e9, 0.0) == 0.0


def test_a_rate_is_never_passed() -> None:
    pacer = Pacer(rate=100.0)
    times = np.zeros(1000)
    now, sent = 10.0, 0
    while sent < 1000:
        ready = pacer.ready(times[sent:], now)
        sent += ready
        pacer.sent(ready)
        assert sent <= 100 * (now - 10.0) + 10
        if sent < 1000 and not ready:
            now += pacer.pause(0.0, now) + 1e-9
    assert 9.0 < now - 10.0 < 11.0
    now += 100.0  # a pause saves nothing up
    assert pacer.ready(times, now) == 10


def test_a_rate_and_a_speed_together() -> None:
    pacer = Pacer(speed=1.0, rate=10.0)
    assert pacer.ready(TIMES, 5.0) == 1
    pacer.sent(1)
    assert pacer.ready(TIMES[1:], 5.0) == 0
    assert pacer.pause(1000.0, 5.0) == pytest.approx(0.1)


@pytest.mark.parametrize(("text", "speed"), [("1x", 1.0), ("10x", 10.0), ("0.5x", 0.5), ("max", None)])
def test_speeds(text: str, speed: float | None) -> None:
    assert speed_of(text) == speed


@pytest.mark.parametrize("text", ["0x", "-1x", "fast", "2", "x", "infx", "nanx"])
def test_what_is_no_speed(text: str) -> None:
    with pytest.raises(InvalidRequest, match="a speed is like 1x"):
        speed_of(text)
