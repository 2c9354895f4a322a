"""Who reads by path need not wait for what is posted late where nobody reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from gateway.store import loop
from gateway.store.interface import Durability
from gateway.store.onlookers import Onlookers
from gateway.store.reader import LogReader
from gateway.store.sqlite import open_store
from tests.store.kit import SMALL, create, publish, until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who opens a file")
NONE = {"durability": Durability.NONE}


@LINUX
async def test_each_look_is_told_and_nothing_else(tmp_path: Path) -> None:
    watched, other = tmp_path / "a", tmp_path / "b"
    watched.write_bytes(b"x")
    other.write_bytes(b"x")
    onlookers, looks = Onlookers([watched]), 0

    def looked() -> None:
        nonlocal looks
        looks += 1

    async with trio.open_nursery() as nursery:
        with watched.open("r+b", buffering=0) as file:
            onlookers = Onlookers([watched])
            nursery.start_soon(onlookers.heed, looked)
            file.write(b"y")
            other.read_bytes()
            await trio.testing.wait_all_tasks_blocked()
            assert looks == 0
        watched.read_bytes()
        await until(lambda: looks == 1)
        watched.read_bytes()
        await until(lambda: looks == 2)
        nursery.cancel_scope.cancel()
    onlookers.close()
    onlookers.close()
    assert not onlookers.told


def test_a_file_that_is_not_there_is_not_watched(tmp_path: Path) -> None:
    assert not Onlookers([tmp_path / "none"]).told


@LINUX
async def test_who_reads_by_path_is_served_though_nothing_is_posted_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "POST_AFTER", 3600.0)
    async with open_store(tmp_path, SMALL) as store:
        await create(store, "t", **NONE)
        with LogReader(tmp_path) as reader:
            for number in range(3):
                await publish(store, "t", b"%d" % number)
                assert store.committer.writer.unposted
                runs = await trio.to_thread.run_sync(lambda: list(reader.read_chunks("t", 0)))
                assert sum(run.count for run in runs) == number + 1
                await until(lambda: not store.committer.writer.unposted)
            # and what comes while he is taken to read goes soon, without another look
            await publish(store, "t", b"more")
            await until(lambda: not store.committer.writer.unposted)


@LINUX
async def test_who_reads_in_another_process_is_served_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "POST_AFTER", 3600.0)
    code = "import sys; from gateway.store.reader import LogReader; print(LogReader(sys.argv[1]).bounds('t', 0)[1])"
    async with open_store(tmp_path, SMALL) as store:
        await create(store, "t", **NONE)
        await publish(store, "t", b"a", b"b")
        assert store.committer.writer.unposted
        command = [sys.executable, "-c", code, str(tmp_path)]
        found = await trio.run_process(command, capture_stdout=True)
        assert found.stdout == b"2\n"


async def test_where_nobody_tells_of_looks_all_is_posted_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "another")
    monkeypatch.setattr(loop, "POST_AFTER", 3600.0)
    async with open_store(tmp_path, SMALL) as store:
        monkeypatch.undo()
        await create(store, "t", **NONE)
        await publish(store, "t", b"a")
        await until(lambda: not store.committer.writer.unposted)


@pytest.mark.parametrize(("what", "most"), [("POST_CHUNKS", 5), ("POST_BYTES", 1000)])
async def test_much_is_posted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, most: int) -> None:
    monkeypatch.setattr(loop, "POST_AFTER", 3600.0)
    monkeypatch.setattr(loop, what, most)
    async with open_store(tmp_path, SMALL) as store:
        await create(store, "t", **NONE)
        writer = store.committer.writer
        await publish(store, "t", b"0")
        for number in range(20):
            await publish(store, "t", b"%d" % number)
            await until(lambda: len(writer.unposted) < 10)


@LINUX
async def test_who_looks_while_the_store_closes_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "POST_AFTER", 3600.0)
    async with open_store(tmp_path, SMALL) as store:
        await create(store, "t", **NONE)
        for number in range(3):
            await publish(store, "t", b"%d" % number)
        store._loop.close()
        store._loop.looked()
        assert not store._loop._posting
    with LogReader(tmp_path) as reader:
        assert reader.bounds("t", 0) == (0, 3)
