"""kill -9 at any moment: a transaction is there whole or not at all, a delayed message fires once, a group is no further back
than it was told, what was answered stays.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from gateway.broker.consume.groups import GroupService
from gateway.broker.consume.readers import GroupReaders
from gateway.broker.ownership import Owners
from gateway.recorder import Recorder
from gateway.requests import GroupOffset, ReadOffset
from tests.unit.broker.support import FakeClock, RecordingCaller, open_bench

ROOT = Path(__file__).parents[3]


async def run_and_kill(directory: Path, lines: int) -> dict[str, set[int]]:
    """Let the process say so many things, then kill it; what it said."""
    said: dict[str, set[int]] = {"committed": set(), "delayed": set(), "moved": set()}
    arguments = [sys.executable, "-m", "tests.unit.broker.killed", str(directory)]
    process = await trio.lowlevel.open_process(arguments, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    buffer = b""
    with trio.fail_after(60):
        while buffer.count(b"\n") < lines:
            part = await process.stdout.receive_some()
            assert part, "it ended by itself"
            buffer += part
        process.kill()
        while part := await process.stdout.receive_some():
            buffer += part
        await process.wait()
    for line in buffer.split(b"\n")[:-1]:
        word, number = line.decode().split()
        said[word].add(int(number))
    return said


def pairs(values: list[bytes]) -> list[int]:
    """The numbers of records that come as (n, -n)."""
    numbers = [int(value) for value in values]
    assert numbers[1::2] == [-number for number in numbers[::2]], "half of a batch"
    return numbers[::2]


@pytest.mark.processes
@pytest.mark.parametrize("lines", [30, 90, 160])
async def test_killed(tmp_path: Path, lines: int) -> None:
    said = await run_and_kill(tmp_path, lines)
    clock = FakeClock()
    clock.seconds = 4e8  # long after all of it was due
    async with open_bench(tmp_path, clock) as bench:
        a, b = pairs(await bench.on_disk("a")), pairs(await bench.on_disk("b"))
        assert sorted(a) == sorted(b)
        assert said["committed"] <= set(a)
        assert len(set(a)) == len(a)
        for _ in range(1000):
            bench.advance(0.1)
            await bench.idle()
            if not bench.delays.waiting:
                break
        later = pairs(await bench.on_disk("later"))
        assert later == list(range(1, len(later) + 1))
        assert said["delayed"] <= set(later)
        owners = Owners(bench.store, bench.clock, bench.pump, lambda *_: None)
        readers = GroupReaders(bench.store, owners, bench.clock, bench.pump, lambda *_: None)
        groups = GroupService(bench.store, bench.table, bench.topics, Recorder(), lambda *_: None, readers)
        reader = RecordingCaller()
        groups.handlers()[ReadOffset](reader, ReadOffset(1, "a", "group", 0))
        kept = reader.answers[1]
        assert isinstance(kept, GroupOffset)
        assert kept.offset in {max(said["moved"]), max(said["moved"]) + 1}  # the last one's answer may not have got out
        assert said["committed"]
        assert said["delayed"]
