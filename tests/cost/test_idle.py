"""What a connection holds that has nothing to say: bytes and blocks that a gateway has asked Python's allocators for. Numbers that no
neighbour on the machine and no allocator's mood can change; what of them is resident is for `python -m tests.bench idle`.

What OpenSSL holds for QUIC is not in it, nor what the kernel does; of QUIC most is aioquic's. Whoever makes a connection dearer changes the table, on purpose; and
whoever makes it cheaper, or else the gain would be the next one's to lose.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest
import trio

from tests.bench.loads_idle import KINDS, Connected
from tests.bench.processes import running
from tests.cost.counting import PATIENCE, SERVED, at_rest
from tests.cost.patience import be_patient

DEARER, CHEAPER = 0.03, 0.05
OVER_TCP, OVER_QUIC = 100, 20
"""Connections: what a table or two of the gateway grows by for them is divided by so many."""
WARM = 5

CONFIG = """
version: 1
listeners:
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  felix:   {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed}}
  fujin:   {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}}
storage: {{path: "{data}", free_space_floor: 1, durability: memory}}
"""


@attrs.frozen
class Held:
    """By one connection: bytes, and blocks of them that are objects."""

    size: int
    blocks: int


@attrs.frozen
class Idle:
    fresh: Held
    """Behind its handshake."""
    used: Held
    """Behind a message that it has published, without what the log has of it."""


TABLE: Mapping[str, Idle] = {
    "blipmq": Idle(Held(6430, 62), Held(6843, 66)),
    "flymq": Idle(Held(6050, 55), Held(6535, 58)),
    "rustlog": Idle(Held(6146, 59), Held(6639, 63)),
    "felix": Idle(Held(45_850, 592), Held(48_300, 619)),
    "fujin": Idle(Held(48_400, 623), Held(48_450, 624)),
}

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="the table is Python 3.11's: objects of other versions have other sizes",
)


class Asked:
    """What a gateway says of itself when it is signalled."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "held"
        self.file.write_bytes(bytes(24))
        with self.file.open("rb") as file:
            self._shared = mmap.mmap(file.fileno(), 24, prot=mmap.PROT_READ)

    def held(self, pid: int) -> tuple[int, int]:
        at_rest(pid)
        asked, deadline = self._number(0), time.monotonic() + PATIENCE
        os.kill(pid, signal.SIGUSR1)
        while self._number(0) == asked:
            assert time.monotonic() < deadline, "never answered"
            os.sched_yield()
        return self._number(1), self._number(2)

    def _number(self, place: int) -> int:
        return int.from_bytes(self._shared[8 * place : 8 * place + 8], sys.byteorder)


async def measure(connected: Connected, count: int, port: int, pid: int, asked: Asked) -> Idle:
    """One after the other, as any two requests are: so many connections, a message of each, and another one."""
    async with connected(port, WARM) as warm:
        await warm()
        before = asked.held(pid)
        async with connected(port, count) as ask:
            fresh = asked.held(pid)
            await ask()
            once = asked.held(pid)
            await ask()
            twice = asked.held(pid)
    return Idle(
        Held(*((there - not_there) // count for there, not_there in zip(fresh, before, strict=True))),
        # what the second message leaves behind is the log's, and the first one's is as much
        Held(*((2 * one - two - none) // count for one, two, none in zip(once, twice, before, strict=True))),
    )


def test_idle(tmp_path: Path):
    assert set(TABLE) == set(KINDS)
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(data=tmp_path / "data"))
    asked = Asked(tmp_path)
    wrong: list[str] = []
    with pytest.MonkeyPatch.context() as patch, running([*SERVED, str(config), "held", str(asked.file)]) as process:
        be_patient(patch.setattr)
        for name, kind in KINDS.items():
            count = OVER_QUIC if kind.quic else OVER_TCP
            found = trio.run(measure, kind.connected, count, process.ports[name], process.pid, asked)
            wrong += differences(name, attrs.asdict(found), attrs.asdict(TABLE[name]))
        os.kill(process.pid, signal.SIGINT)  # the second signal ends it at once: it would wait for who is so patient
    assert not wrong, "\n".join(wrong)


def differences(name: str, found: Mapping[str, Mapping[str, int]], table: Mapping[str, Mapping[str, int]]) -> list[str]:
    wrong: list[str] = []
    for when, held in found.items():
        for what, number in held.items():
            said = table[when][what]
            if number > said * (1 + DEARER):
                wrong.append(f"{name}, {when}: {what} {number}, dearer than the {said} of the table")
            elif number < said * (1 - CHEAPER):
                wrong.append(f"{name}, {when}: {what} {number}, cheaper than the {said} of the table")
    return wrong
