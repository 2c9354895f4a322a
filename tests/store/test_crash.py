"""Killed under load: nothing that was acknowledged is missing. And kill -9 alone does not prove an fsync: those are
counted."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from gateway.store.reader import LogReader
from tests.store.kit import NO_CACHE, everything, open_stepwise

ROUNDS = 4
LINES = 400


async def killed_child(path: Path, name: str) -> list[bytes]:
    """Run a process under load until it has acknowledged enough, kill it, return what it said."""
    command = [sys.executable, "-m", "tests.store.child", str(path), "load", name]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = b""
    with trio.fail_after(60):
        while said.count(b"\n") < LINES:
            part = await process.stdout.receive_some(65536)
            assert part, "the child ended by itself"
            said += part
        process.kill()
        while part := await process.stdout.receive_some(65536):
            said += part
        await process.wait()
    return said[: said.rindex(b"\n")].split(b"\n")


async def test_nothing_acknowledged_is_lost_however_often_it_is_killed(tmp_path: Path) -> None:
    acknowledged: dict[tuple[str, int], bytes] = {}
    for number in range(ROUNDS):
        for line in await killed_child(tmp_path, str(number)):
            topic, base, first, count = line.decode().split()
            name = first.rsplit("-", 1)[0]
            for index in range(int(count)):
                place = (topic, int(base) + index)
                assert place not in acknowledged, "an offset was given out twice"
                acknowledged[place] = f"{name}-{index}".encode()
        with LogReader(tmp_path) as reader:
            runs = list(reader.read_chunks("a", 0))
            rows = dict(reader.rows("last"))
            assert [run.base_offset for run in runs[1:]] == [run.next_offset for run in runs[:-1]]
        async with open_stepwise(tmp_path, options=NO_CACHE) as store:
            stored = {topic: await everything(store, topic) for topic in "ab"}
        for (topic, offset), value in acknowledged.items():
            assert stored[topic][offset] == value
        assert set(rows.values()) <= set(stored["a"])  # a row is there with what it was written with
        # a unit over both topics is there in both or in neither
        assert sorted(stored["a"]) == sorted(stored["b"])
        assert len(set(stored["a"])) == len(stored["a"])


needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed: calls cannot be counted"
)


def traced(path: Path, durability: str, commits: int) -> tuple[int, int]:
    """Syncs between the first and the last of `commits` units, and the commits the store made for them."""
    trace = path.with_suffix(".trace")
    command = ["strace", "-f", "-e", "trace=fdatasync,fsync,write", "-s", "16", "-o", str(trace), sys.executable]
    command += ["-m", "tests.store.child", str(path), durability, str(commits)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=120)
    if process.returncode and b"ptrace" in err:
        pytest.skip(f"strace may not trace here: {err.decode()[:200]}")
    assert process.returncode == 0, err
    made = int(out.split()[-1])
    text = trace.read_text()
    between = text[text.index('"begin"') : text.index('"end"')]
    # a call that another thread interrupts in the trace has two lines, the second one "resumed"
    return len(re.findall(r"\b(?:fdatasync|fsync)\(", between)), made


@needs_strace
def test_each_synced_commit_is_an_fsync(tmp_path: Path) -> None:
    syncs, made = traced(tmp_path / "s", "fsync", 60)
    assert made == 60
    assert 60 <= syncs <= 60 + 6  # what is more belongs to a checkpoint


@needs_strace
def test_unsynced_topics_are_synced_by_time_or_not_at_all(tmp_path: Path) -> None:
    syncs, made = traced(tmp_path / "i", "interval", 60)
    assert 60 <= made <= 90
    assert syncs <= 30
    syncs, made = traced(tmp_path / "n", "none", 60)
    assert (syncs, made) == (0, 60)
