"""What a pulse costs: nothing while nobody looks, and the same whatever there is of topics and traffic."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import trio

from gateway.admin.pulse import Pulses
from gateway.app import Gateway
from tests.unit.admin.api import serving_api
from tests.unit.admin.test_api import publish

MOST_CALLS = 1_500


OURS = str(Path("gateway").resolve())


async def calls_of(pulses: Pulses) -> int:
    """Calls of ours for one of them."""
    count = 0

    def counted(frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(counted)
    try:
        await pulses._take()
    finally:
        sys.setprofile(None)
    return count


def pulses_of(served: Gateway) -> Pulses:
    (found,) = [one for one in gc.get_objects() if isinstance(one, Pulses) and one._inside.recorder is served.recorder]
    return found


async def test_a_pulse_costs_the_same_with_a_thousand_topics(tmp_path: Path) -> None:
    async with serving_api(tmp_path) as (served, client):
        await client("pulse")
        pulses = pulses_of(served)
        with trio.fail_after(60):
            while pulses.followed:  # noqa: ASYNC110  # until whoever asked has gone
                await trio.sleep(0.02)
        await publish(served, "first", b"x")
        few = min([await calls_of(pulses) for _ in range(6)])
        for number in range(0, 1000, 50):
            for each in range(50):
                await publish(served, f"many.{number + each}", b"x")
        many = min([await calls_of(pulses) for _ in range(6)])
        assert abs(many - few) < 20
        assert many < MOST_CALLS
