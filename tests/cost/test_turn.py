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
    "FlyMQ PRODUCE, memory": Cost(54, 154, 5),
    "FlyMQ PRODUCE, none": Cost(77, 213, 6),
    "FlyMQ PRODUCE, interval": Cost(77, 218, 6),
    "FlyMQ PRODUCE, fsync": Cost(81, 220, 8),
    "FlyMQ PRODUCE, fsync, beside a FETCH": Cost(236, 624, 22),
    "FlyMQ FETCH": Cost(95, 198, 5),
    "RustLog Produce, interval": Cost(93, 224, 6),
    "RustLog Fetch": Cost(102, 166, 5),
    "BlipMQ PUBLISH and PING, interval": Cost(113, 265, 6),
    "BlipMQ POLL, delivery, ACK": Cost(188, 273, 10),
    "BlipMQ, one to ten": Cost(2133, 2831, 66),
    "Felix publish, memory": Cost(112, 297, 5),
    "Felix, one to ten": Cost(2050, 3257, 18),
    "Fujin WRITE, memory": Cost(110, 319, 5),
    "Fujin push, acknowledged": Cost(335, 775, 15),
    "Fujin 0.5 PRODUCE, memory": Cost(122, 329, 5),
    "Fujin 0.5 push, acknowledged": Cost(444, 878, 15),
    "Forward, FlyMQ to FlyMQ": Cost(276, 455, 11),
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
