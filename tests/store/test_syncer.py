"""The thread that syncs in the background: everything that was written before somebody asked is covered by a sync that began later."""

from __future__ import annotations

import errno
import math
import threading
from pathlib import Path

import outcome
import trio

from gateway.errors import OutcomeUnknown
from gateway.store import journal
from gateway.store.interface import Durability
from gateway.store.sqlite import open_store
from gateway.store.syncer import Syncer
from tests.store.kit import SMALL, create, everything, publish, until

HOUR = 3600.0


class Disk:
    """Counts what is written, notes how much a sync has found."""

    def __init__(self) -> None:
        self.written = 0
        self.synced: list[int] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def sync(self) -> None:
        found = self.written
        self.go_on.wait(60)
        self.synced.append(found)


async def test_who_writes_while_a_sync_is_under_way_has_the_next_one() -> None:
    disk = Disk()
    with Syncer(disk.sync, lambda _result: None) as syncer:
        disk.go_on.clear()
        disk.written = 1
        syncer.ask(0.0)
        await until(lambda: syncer._within == math.inf)  # it has begun
        disk.written = 2
        syncer.ask(0.0)
        disk.go_on.set()
        await until(lambda: disk.synced[-1:] == [2])


async def test_the_shortest_interval_counts_and_a_longer_one_goes_with_it() -> None:
    disk = Disk()
    with Syncer(disk.sync, lambda _result: None) as syncer:
        disk.written = 1
        syncer.ask(HOUR)
        syncer.ask(0.001)
        await until(lambda: disk.synced == [1])
        assert syncer._within == math.inf
        syncer.ask(0.001)
        await until(lambda: disk.synced == [1, 1])
        syncer.ask(HOUR)
    assert disk.synced == [1, 1]  # and it ends before that


async def test_what_goes_wrong_is_told_and_the_next_one_is_made() -> None:
    told: list[outcome.Outcome[object]] = []
    errors: list[Exception] = [OutcomeUnknown("the disk"), RuntimeError("a mistake")]

    def sync() -> Exception | None:
        error = errors.pop() if errors else None
        if isinstance(error, RuntimeError):
            raise error
        return error

    with Syncer(sync, told.append) as syncer:
        for number in (1, 2):
            syncer.ask(0.0)
            await until(lambda number=number: len(told) == number)
        syncer.ask(0.0)
        await until(lambda: syncer._within == math.inf)
    assert isinstance(told[0], outcome.Error)
    assert isinstance(told[1].unwrap(), OutcomeUnknown)
    assert len(told) == 2


async def test_it_is_stopped_when_the_one_under_way_is_over() -> None:
    disk, stopped = Disk(), trio.Event()
    with Syncer(disk.sync, lambda _result: None) as syncer:
        disk.go_on.clear()
        syncer.ask(0.0)
        await until(lambda: syncer._within == math.inf)
        syncer.stop(stopped.set)
        syncer.ask(0.0)
        assert not stopped.is_set()
        disk.go_on.set()
        await stopped.wait()
        assert disk.synced == [0]


async def test_a_store_whose_background_sync_fails_refuses_and_heals(tmp_path: Path, monkeypatch) -> None:
    def fails(_file: int) -> None:
        raise OSError(errno.EIO, "no")

    async with open_store(tmp_path, SMALL) as store:
        await create(store, "t", durability=Durability.INTERVAL, interval=0.002)
        with monkeypatch.context() as patch:
            patch.setattr(journal.os, "fdatasync", fails)
            await publish(store, "t", b"a")
            await until(lambda: not store.health.writable)
            assert "synced" in store.health.reason
        await until(lambda: store.health.writable)
        await publish(store, "t", b"b")
        writer = store.committer.writer
        await until(lambda: writer.synced == writer.number)
        assert await everything(store, "t") == [b"a", b"b"]
