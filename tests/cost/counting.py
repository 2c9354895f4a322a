"""Counting what a gateway does in a turn: calls, objects or system calls, each in a process that counts nothing else."""

from __future__ import annotations

import functools
import mmap
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import trio

from tests.bench.processes import running
from tests.cost.transcripts import TRANSCRIPTS, Side, Transcript

TURNS, WARM = 40, 10
CONFIG = """
version: 1
listeners:
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}, poll_hold: 60s}}
  # a wait of microseconds ends in the same pass or the next, as the machine will have it
  felix:   {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed, events: {{delay: 0s}}}}
  fujin:   {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}}
storage: {{path: "{data}", free_space_floor: 1, durability: memory}}
upstreams:
  far: {{protocol: flymq, address: "127.0.0.1:{far[flymq]}"}}
  chained: {{protocol: felix, address: "127.0.0.1:{far[felix]}", tls: {{ca: "{trusted}"}}}}
routes:
  - {{name: none,    match: {{topic: "none.*"}},    to: [{{store: {{topic: "{{topic}}", durability: none}}}}]}}
  # so long that no sync falls into a turn
  - {{name: lazy,    match: {{topic: "lazy.*"}},    to: [{{store: {{topic: "{{topic}}", durability: {{interval: 1h}}}}}}]}}
  - {{name: durable, match: {{topic: "durable.*"}}, to: [{{store: {{topic: "{{topic}}", durability: fsync}}}}]}}
  - name: forward
    match: {{topic: "forward.*"}}
    to:
      - store: {{topic: "{{topic}}"}}
      - forward: {{upstream: far, address: "{{topic}}", accept_loss: all}}
  - name: chain
    match: {{topic: "chained.*"}}
    to:
      - store: {{topic: "{{topic}}"}}
      - forward: {{upstream: chained, address: "{{topic}}", accept_loss: all}}
  - {{name: rest,    match: {{}},                    to: [{{store: {{topic: "{{topic}}"}}}}]}}
"""
FAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
  felix: {{protocol: felix, bind: "127.0.0.1:0", tls: self-signed}}
storage: {{path: "{data}", free_space_floor: 1, durability: memory}}
"""
SERVED = (sys.executable, "-m", "tests.cost.served")
PATIENCE = 120.0
Counted = Mapping[str, Sequence[int]]
"""By row: what was counted in each turn."""


def at_rest(pid: int) -> None:
    """Until every thread of a process sleeps, twice in a row."""
    deadline = time.monotonic() + PATIENCE
    quiet = 0
    while quiet < 2:
        try:
            states = {
                stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")
            }
        except (FileNotFoundError, ProcessLookupError):
            states = {"ended"}  # a thread, between the list of them and the look at it
        quiet = quiet + 1 if states == {"S"} else 0
        assert time.monotonic() < deadline, f"never at rest: {states}"
        os.sched_yield()


class Counter(Protocol):
    """What is counted."""

    def command(self, config: Path) -> list[str]:
        """What serves, and counts."""
        ...

    def mark(self, pid: int) -> None:
        """Here a turn ends, and another may begin: the process is at rest."""
        ...

    def counts(self) -> Sequence[int]:
        """What was counted between each two marks, once the process has ended."""
        ...


class Inside:
    """Calls, or objects: the process counts them itself."""

    def __init__(self, what: str, directory: Path) -> None:
        self._what = what
        self._file = directory / "counter"
        self._file.write_bytes(bytes(8))
        self._library: list[str] = []
        self._marks: list[int] = []
        with self._file.open("rb") as file:
            self._shared = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
        if what == "objects":
            source, library = Path(__file__).with_name("objects.c"), directory / "objects.so"
            run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)])
            self._library = [str(library)]

    def command(self, config: Path) -> list[str]:
        return [*SERVED, str(config), self._what, str(self._file), *self._library]

    def mark(self, pid: int) -> None:
        self._marks.append(int.from_bytes(self._shared, sys.byteorder))

    def counts(self) -> Sequence[int]:
        return [after - before for before, after in pairwise(self._marks)]


_CALL = re.compile(r"^\d+ +([a-z_0-9]+)\(")
_MARK = "--- SIGURG "


class Traced:
    """System calls, of all threads. A signal that nobody minds is the mark in the trace; the wait that it interrupts, which
    is begun again, is not counted.
    """

    def __init__(self, directory: Path) -> None:
        self._trace = directory / "trace"

    def command(self, config: Path) -> list[str]:
        # -D: the gateway is our child, and the tracer its own
        return ["strace", "-D", "-f", "-qq", "-o", str(self._trace), *SERVED, str(config)]

    def mark(self, pid: int) -> None:
        os.kill(pid, signal.SIGURG)
        at_rest(pid)

    def turns(self) -> Sequence[Sequence[str]]:
        """The names of the calls between each two marks."""
        found: list[list[str]] = []
        again = False
        with self._trace.open() as lines:
            for line in lines:
                if _MARK in line:
                    found.append([])
                    again = True
                elif (call := _CALL.match(line)) is not None and found:
                    if not (again and call[1] == "epoll_wait"):
                        found[-1].append(call[1])
                    again = False
        return found[:-1]

    def counts(self) -> Sequence[int]:
        return [len(turn) for turn in self.turns()]


async def measure(transcript: Transcript, side: Side, counter: Counter, pid: int) -> None:
    """Some turns to warm up, then those that are counted."""
    async with transcript(side) as turn:
        for _ in range(WARM):
            await turn()
        at_rest(pid)
        for _ in range(TURNS):
            counter.mark(pid)
            await turn()
            at_rest(pid)
        counter.mark(pid)
    at_rest(pid)


def count(counter: Counter, directory: Path, rows: Sequence[str] = tuple(TRANSCRIPTS)) -> Counted:
    """Every row, on one gateway and one that it forwards to."""
    with _far(directory) as far:
        config = directory / "gateway.yaml"
        config.write_text(
            CONFIG.format(data=directory / "data", far=far, trusted=directory / "far" / "self-signed.crt")
        )
        with running(counter.command(config)) as process:
            for row in rows:
                rest = functools.partial(at_rest, process.pid)
                trio.run(measure, TRANSCRIPTS[row], Side(process.ports, far, rest), counter, process.pid)
    counts = counter.counts()
    # between two rows there is one that is none
    return {
        row: counts[first : first + TURNS] for row, first in zip(rows, range(0, len(counts), TURNS + 1), strict=True)
    }


@contextmanager
def _far(directory: Path) -> Iterator[Mapping[str, int]]:
    config = directory / "far.yaml"
    config.write_text(FAR.format(data=directory / "far"))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--log-level", "error"]
    with running(command) as process:
        yield process.ports


def missing(tool: str) -> bool:
    return shutil.which(tool) is None


def run(command: Sequence[str]) -> None:
    """Raises CalledProcessError if it fails."""
    trio.run(functools.partial(trio.run_process, command))
