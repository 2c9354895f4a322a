"""What a turn costs, counted: Python calls of ours, objects made, system calls. Numbers that no neighbour on the machine can change.

A turn is what a gateway does between two moments at which it has nothing to do, with one quiet client (or as many as the row
says). What falls into a turn by time (the store's timers, a probe of QUIC) falls into some of them and makes them dearer, so the
cheapest is the cost of the way itself. Whoever makes a way dearer changes the table, on purpose; and whoever makes it cheaper, or else
the gain would be the next one's to lose.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest

from tests.cost.counting import Counter, Inside, Traced, count, missing, run
from tests.cost.transcripts import TRANSCRIPTS

DEARER, CHEAPER = 0.05, 0.1
UNSTEADY = {"FlyMQ PRODUCE, fsync, beside a FETCH": 0.2}
"""Two threads that hand over to each other do not always do the same."""


@attrs.frozen
class Cost:
    """Of the cheapest turn."""

    calls: int
    objects: int
    system: int


TABLE: Mapping[str, Cost] = {
    "FlyMQ PRODUCE, memory": Cost(37, 113, 4),
    "FlyMQ PRODUCE, none": Cost(59, 169, 5),
    "FlyMQ PRODUCE, interval": Cost(60, 169, 5),
    "FlyMQ PRODUCE, interval, two in turns": Cost(128, 362, 12),
    "FlyMQ PRODUCE, fsync": Cost(65, 176, 7),
    "FlyMQ PRODUCE, fsync, beside a FETCH": Cost(212, 578, 22),
    "FlyMQ FETCH": Cost(68, 168, 4),
    "RustLog Produce, interval": Cost(71, 188, 5),
    "RustLog Fetch": Cost(30, 101, 4),
    "BlipMQ PUBLISH and PING, interval": Cost(90, 205, 5),
    "BlipMQ POLL, delivery, ACK": Cost(101, 176, 8),
    "BlipMQ, 50 POLLs, deliveries": Cost(122, 472, 4),
    "BlipMQ, one to ten": Cost(1726, 2322, 65),
    "Felix publish, memory": Cost(104, 218, 4),
    "Felix, one to ten": Cost(1882, 2763, 17),
    "Fujin WRITE, memory": Cost(99, 227, 4),
    "Fujin push, acknowledged": Cost(285, 595, 13),
    "Fujin 0.5 PRODUCE, memory": Cost(110, 238, 4),
    "Fujin 0.5 push, acknowledged": Cost(402, 721, 13),
    "Forward, FlyMQ to Felix": Cost(321, 542, 9),
    "Forward, FlyMQ to FlyMQ": Cost(223, 369, 10),
}

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="the table is Python 3.11's: other versions make other calls of the same code",
)


def compare(counter: Counter, directory: Path, column: str) -> None:
    assert set(TABLE) == set(TRANSCRIPTS)
    wrong: list[str] = []
    for row, turns in count(counter, directory).items():
        found, said = min(turns), getattr(TABLE[row], column)
        slack = UNSTEADY.get(row, 0.0)
        if found > said * (1 + DEARER + slack):
            wrong.append(f"{row}: {found} {column}, dearer than the {said} of the table")
        elif found < said * (1 - CHEAPER - slack):
            wrong.append(f"{row}: {found} {column}, cheaper than the {said} of the table")
    assert not wrong, "\n".join(wrong)


def test_calls(tmp_path: Path):
    compare(Inside("calls", tmp_path), tmp_path, "calls")


@pytest.mark.skipif(missing("gcc"), reason="no gcc here to build the counter of objects with")
def test_objects(tmp_path: Path):
    compare(Inside("objects", tmp_path), tmp_path, "objects")


def test_system_calls(tmp_path: Path):
    if missing("strace"):
        pytest.skip("no strace here")
    try:
        run(["strace", "-qq", "-o", str(tmp_path / "tried"), "true"])
    except subprocess.CalledProcessError:
        pytest.skip("nobody may trace here")
    compare(Traced(tmp_path), tmp_path, "system")
