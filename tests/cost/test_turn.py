"""Python calls of ours from a request's bytes to its reply: a number that no neighbour on the machine can change.

A turn is what lies between two reads of one quiet connection, with a client that sends its next request when it has the
answer to the last one. Timers of the store may fall into a turn, so the shortest of many is the cost of the way itself.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

import gateway as package
from gateway.transport.driver import Driver
from tests.integration.inside import gateway

TURNS = 300
CONFIG = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1, durability: {durability}}}
"""


class CallCounter:
    """Counts calls into code under gateway/, and what attrs generates for it, from each read to the next."""

    def __init__(self, begins: Callable[..., object]) -> None:
        self._begins = begins.__code__
        self._ours = str(Path(package.__file__).parent)
        self.turns: list[int] = []

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code is self._begins:
            self.turns.append(0)
        if self.turns and (
            code.co_filename.startswith(self._ours) or code.co_filename.startswith("<attrs generated methods gateway.")
        ):
            self.turns[-1] += 1


def ask(sock: socket.socket, frame: bytes) -> bytes:
    sock.sendall(frame)
    head = sock.recv(8, socket.MSG_WAITALL)
    return head + sock.recv(struct.unpack_from(">I", head, 4)[0], socket.MSG_WAITALL)


def produce(value: bytes) -> bytes:
    """FlyMQ document, PRODUCE: str topic, bytes key, bytes value, i32 partition."""
    payload = struct.pack(">H", 6) + b"orders" + struct.pack(">I", 0) + struct.pack(">I", len(value)) + value
    payload += struct.pack(">i", 0)
    return struct.pack(">BBBBI", 0xAF, 1, 1, 1, len(payload)) + payload


async def turns(directory: Path, durability: str, frame: bytes) -> list[int]:
    """The cost of each of many turns."""
    warm, go = threading.Event(), threading.Event()

    def client(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
            for _ in range(20):
                assert ask(sock, frame)[2] == frame[2]
            warm.set()
            go.wait()
            for _ in range(TURNS):
                ask(sock, frame)

    counter = CallCounter(Driver.received.__wrapped__)
    async with gateway(CONFIG.format(data=directory, durability=durability)) as served:
        thread = threading.Thread(target=client, args=(served.ports["flymq"],))
        thread.start()
        await trio.to_thread.run_sync(warm.wait)
        sys.setprofile(counter)
        try:
            go.set()
            while thread.is_alive():
                await trio.lowlevel.checkpoint()
        finally:
            sys.setprofile(None)
    return counter.turns


@pytest.mark.parametrize(("durability", "most"), [("{interval: 5ms}", 104), ("memory", 70), ("fsync", 135)])
async def test_one_flymq_produce(tmp_path: Path, durability: str, most: int):
    counted = await turns(tmp_path, durability, produce(b"x" * 1024))
    assert len(counted) >= TURNS
    assert 30 < min(counted) <= most
