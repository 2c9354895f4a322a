"""A quiet publisher beside a flood: how long its small synced messages take, alone and then beside it.

The flood is one connection with messages of 100 KB, as many under way as it may have, and 40 readers that ask for megabytes and
take them slowly. Each part is a process of its own: what is to be seen is the gateway's share, and not one client in another's way.
What the machine alone makes of it is seen by a bare loop in a process of its own: nobody floods it, and it has the cores and the disk
that the flood leaves.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from tests.bench.loads import connect, receive
from tests.bench.loads_flymq import FIXED, bare, frame, produce_frame
from tests.bench.processes import Process

LARGE = 100_000
UNDER_WAY = 16
READERS = 40
READ_BYTES, READ_PAUSE = 32 << 10, 0.05
PUBLISHES = 1_500
PAUSE = 0.004
"""Seconds between two publishes of the quiet one."""
AT_MOST = 120.0
"""Seconds that a flood goes on if nobody ends it."""
TIMES_ALONE = 10
ROUNDS = 3
FLOODED, QUIET = b"durable.flooded", b"durable.quiet"
Report = Callable[[str, str, str, str], None]


def flood(port: int) -> None:
    one, answer = produce_frame(FLOODED, LARGE), FIXED + len(FLOODED)
    until = time.monotonic() + AT_MOST
    tells = sys.stdout.fileno()
    os.set_blocking(tells, False)
    with connect(port) as sock:
        sock.sendall(one * UNDER_WAY)
        while time.monotonic() < until:
            receive(sock, answer)
            sock.sendall(one)
            with suppress(BlockingIOError):  # nobody has looked for long
                os.write(tells, b".")


def read_slowly(port: int) -> None:
    """Each asks again when it has read all of an answer, from the start."""
    question = frame(7, struct.pack(">H", len(FLOODED)) + FLOODED + struct.pack(">iQiH", 0, 0, 100, 0))
    until = time.monotonic() + AT_MOST
    with ExitStack() as closed:
        left = {closed.enter_context(connect(port)): 0 for _ in range(READERS)}
        while time.monotonic() < until:
            for sock, size in left.items():
                if not size:
                    sock.sendall(question)
                    size = struct.unpack(">xxxxI", receive(sock, 8))[0]
                left[sock] = size - len(receive(sock, min(size, READ_BYTES)))
            select.select([], [], [], READ_PAUSE)


def publish(port: int) -> None:
    """One at a time, with a rest; prints the seconds that each took."""
    one, answer = produce_frame(QUIET, 100), FIXED + len(QUIET)
    with connect(port) as sock:
        for _ in range(PUBLISHES):
            started = time.perf_counter()
            sock.sendall(one)
            receive(sock, answer)
            print(time.perf_counter() - started)
            select.select([], [], [], PAUSE)


class Flood:
    """How quick it is, in MB/s, from one look to the next."""

    def __init__(self, told: int) -> None:
        os.set_blocking(told, False)
        self._told = told
        self._last = time.monotonic()

    def rate(self) -> float:
        stored = 0
        with suppress(BlockingIOError):
            while found := os.read(self._told, 1 << 16):
                stored += len(found)
        last, self._last = self._last, time.monotonic()
        return stored * LARGE / 1e6 / (self._last - last)


@contextmanager
def beside(port: int) -> Iterator[Flood]:
    with ExitStack() as ended:
        told, tells = os.pipe()
        ended.callback(os.close, told)
        for role in ("flood", "read_slowly"):
            process = subprocess.Popen([sys.executable, "-m", "tests.bench.fair", role, str(port)], stdout=tells)
            ended.callback(process.wait)
            ended.callback(process.terminate)
        os.close(tells)
        flood = Flood(told)
        select.select([], [], [], 1)  # until it is in full flow
        flood.rate()
        select.select([], [], [], 1)
        yield flood


def latencies(port: int) -> Sequence[float]:
    found = subprocess.check_output([sys.executable, "-m", "tests.bench.fair", "publish", str(port)], text=True)
    return sorted(float(line) for line in found.split())


def at(found: Sequence[float], share: float) -> float:
    return found[min(int(len(found) * share), len(found) - 1)]


def fair(process: Process, report: Report) -> None:
    port = process.ports["flymq"]
    with bare("fsync") as other:
        for _ in range(ROUNDS):
            alone, bare_alone = latencies(port), latencies(other)
            with beside(port) as flow:
                free = flow.rate()
                flooded, slowed = latencies(port), flow.rate()
                bare_flooded = latencies(other)
            limit = TIMES_ALONE * at(alone, 0.5)
            within = sum(each <= limit for each in flooded) / PUBLISHES
            report(
                "FlyMQ PRODUCE 100 B with pauses, beside a flood and 40 slow readers",
                f"{at(flooded, 0.5) * 1e3:.1f}, {at(flooded, 0.99) * 1e3:.1f} ms",
                f"alone {at(alone, 0.5) * 1e3:.1f}, {at(alone, 0.99) * 1e3:.1f}",
                f"{within:.1%} within {TIMES_ALONE} times alone (99 %); the flood {slowed:.0f} MB/s, {free:.0f} without",
            )
            report(
                "the bare loop that nobody floods, beside the same (p50, p99)",
                f"{at(bare_flooded, 0.5) * 1e3:.1f}, {at(bare_flooded, 0.99) * 1e3:.1f} ms",
                f"alone {at(bare_alone, 0.5) * 1e3:.1f}, {at(bare_alone, 0.99) * 1e3:.1f}",
                f"{sum(each <= limit for each in bare_flooded) / PUBLISHES:.1%} within the same",
            )


if __name__ == "__main__":
    {"flood": flood, "read_slowly": read_slowly, "publish": publish}[sys.argv[1]](int(sys.argv[2]))
