"""What an ingest knows of what comes again: two offsets for each partition, written with what was stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.bridges.bookmark import Places
from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import ConditionFailed
from gateway.requests import Delivered
from gateway.store.committer import Mode
from gateway.store.interface import Store, Unit
from gateway.store.sqlite import open_store
from tests.store.kit import SMALL

META = BatchMeta(b"", Origin("kafka", ""))


def delivered(first: int, behind: int, partition: int = 0) -> Delivered:
    """Messages with these offsets, each of which is its value and its tag."""
    columns = Columns.of([b"%d" % number for number in range(first, behind)])
    run = Run("t", partition, first, columns, [0] * columns.count, [(0, 0, META)])
    return Delivered(run, first)


def values(deliveries: Sequence[Delivered]) -> list[int]:
    found = [(one.first_tag + at, value) for one in deliveries for at, value in enumerate(one.run.columns.values())]
    assert [tag for tag, _value in found] == [int(value) for _tag, value in found]
    return [tag for tag, _value in found]


class Puller:
    """What an ingest does with its places, without what it stores."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.places = Places(store, "far", "group", "t", lambda: ())

    async def store(self, *deliveries: Delivered) -> list[int]:
        fresh = self.places.fresh(deliveries)
        if fresh:
            along = self.places.along(fresh)
            await self._store.submit(Unit(puts=along.puts, requires=along.requires)).wait()
            self.places.stored(fresh)
        return values(fresh)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Store]:
    async with open_store(path, SMALL, mode=Mode.INLINE) as store:
        yield store


async def test_what_was_stored_and_comes_again_is_left_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        puller = Puller(store)
        assert await puller.store(delivered(5, 8), delivered(8, 10), delivered(0, 3, partition=1)) == [
            *range(5, 10),
            *range(3),
        ]
        puller = Puller(store)  # as after a crash: the remote was told nothing
        assert await puller.store(delivered(5, 10)) == []
        assert await puller.store(delivered(8, 12), delivered(1, 4, partition=1)) == [10, 11, 3]
        assert await Puller(store).store(delivered(20, 22)) == [20, 21]  # what is missing there was not ours to miss


async def test_what_comes_from_before_what_the_remote_was_told_is_new(tmp_path: Path) -> None:
    """The topic was made again, or the group was put back."""
    async with opened(tmp_path) as store:
        puller = Puller(store)
        first = delivered(0, 100)
        await puller.store(first)
        puller.places.settled([first])
        assert await puller.store(delivered(0, 50)) == [*range(50)]
        puller.places.settled([delivered(0, 30)])
        await puller.store(delivered(50, 60))  # with it goes that 30 are known there
        puller = Puller(store)
        assert await puller.store(delivered(29, 40)) == [*range(29, 40)]
        assert await Puller(store).store(delivered(35, 45)) == [*range(40, 45)]


async def test_what_it_was_told_is_written_down_when_nothing_else_is(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        puller = Puller(store)
        assert puller.places.note() is None
        first = delivered(0, 100)
        await puller.store(first)
        assert puller.places.note() is None
        puller.places.settled([first])
        noted = puller.places.note()
        assert noted is not None
        await noted.wait()
        assert puller.places.note() is None
        assert await Puller(store).store(delivered(0, 10)) == [*range(10)]


async def test_an_attempt_that_was_stored_after_all_is_not_repeated(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        puller = Puller(store)
        fresh = puller.places.fresh([delivered(0, 10)])
        along = puller.places.along(fresh)
        unit = Unit(puts=along.puts, requires=along.requires)
        await store.submit(unit).wait()
        with pytest.raises(ConditionFailed):
            await store.submit(unit).wait()
        puller.places.read_again()
        assert await puller.store(delivered(0, 12)) == [10, 11]
