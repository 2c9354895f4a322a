"""The message whose way the architecture page describes, traced: the calls of the page's table, in this order."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import trio

from gateway import docs
from tests.integration.flymq_raw import flymq, produce
from tests.integration.inside import gateway

CONFIG = """
version: 1
listeners: {{flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}}}
storage: {{path: "{}", durability: {{interval: 5ms}}, free_space_floor: 1}}
"""
HOUSE = Path("gateway").resolve().parent


def described() -> list[tuple[str, str]]:
    """(module, call) of each row of the page's table."""
    section = docs.text("architecture").split("## One message")[1].split("\n## ")[0]
    return re.findall(r"^\| `(gateway/[\w/]+\.py)` \| `([\w.]+)` \|", section, re.MULTILINE)


async def test_a_produce_goes_the_way_that_is_described(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(HOUSE / "gateway"):
            seen.append((path.relative_to(HOUSE).as_posix(), frame.f_code.co_qualname))

    with trio.fail_after(60):
        async with gateway(CONFIG.format(tmp_path)) as house, flymq(house.ports["flymq"]) as client:
            await client.ask(1, produce("orders", b"the topic is there now, and the way to it is known"))
            sys.setprofile(note)
            try:
                await client.ask(1, produce("orders", b"traced"))
            finally:
                sys.setprofile(None)
    steps = described()
    assert len(steps) > 15
    calls = iter(seen)
    for step in steps:
        assert step in calls, f"{step} is not called, or not where the page says"
