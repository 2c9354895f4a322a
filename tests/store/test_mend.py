"""A damaged small table: the store starts with what can be read of it, names the rest, and never takes what may be gone for
what never was.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio

from gateway.errors import RowLost, StoreDamaged
from gateway.store.database import PAGE_SIZE
from gateway.store.interface import MakeTopic, Put, Require, TopicConfig, Unit
from gateway.store.lost import LostRange, LostRows
from gateway.store.salvage import salvage
from tests.store.kit import NO_CACHE, append, everything, open_stepwise, unit
from tests.store.test_pages import DAMAGES, kinds, no_kind

COUNT = 4_000
ROWS = {b"group-%05d" % number: b"%d" % number * 20 for number in range(COUNT)}
OTHERS = {b"a": b"1", b"z": b"2"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole")
    trio.run(fill, path)
    return path


async def fill(path: Path) -> None:
    async with open_stepwise(path, options=NO_CACHE) as store:
        puts = [Put("groups", key, value) for key, value in ROWS.items()]
        puts += [Put(table, key, value) for table in ("accounts", "schemas") for key, value in OTHERS.items()]
        store.submit(unit(append("t", b"kept"), creates=[MakeTopic("t", TopicConfig())], puts=puts))
        store.committer.drain()


def damaged(whole: Path, path: Path, number: int, damage=no_kind) -> Path:
    shutil.copytree(whole, path)
    data = bytearray((path / "log.sqlite").read_bytes())
    page = data[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
    damage(page, 0)
    data[(number - 1) * PAGE_SIZE : number * PAGE_SIZE] = page
    (path / "log.sqlite").write_bytes(data)
    return path


async def write(store, *puts: Put, requires=()) -> BaseException | None:
    ticket = store.submit(Unit(puts=puts, requires=requires))
    store.committer.drain()
    return ticket.error


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_leaf_costs_its_rows_and_each_of_them_is_known_as_lost(whole: Path, tmp_path: Path, damage) -> None:
    leaves = kinds(whole)["rows", "leaf"]
    path = damaged(whole, tmp_path / "damaged", leaves[len(leaves) // 2], damage)
    async with open_stepwise(path, options=NO_CACHE) as store:
        table = dict(store.table("groups"))
        assert table.items() <= ROWS.items()
        gone = sorted(ROWS.keys() - table.keys())
        assert 0 < len(gone) < COUNT / 4
        assert store.table("accounts") == store.table("schemas") == OTHERS
        assert await everything(store, "t") == [b"kept"]
        for key in gone:
            with pytest.raises(RowLost, match=r"where it was .*gateway store salvage"):
                store.lost.check("groups", key, "where it was")
            assert await store.get("groups", key) is None
        store.lost.check("groups", b"group-00000-never-there", "x")
        store.lost.check("accounts", b"nobody", "x")
        assert not store.lost.touches("schemas")
        # who says what it is need not know
        assert await write(store, Put("groups", gone[0], b"anew"), Put("groups", gone[-1] + b"-", b"new")) is None
        assert store.health.writable
    for _ in range(2):
        notes = salvage(path).notes
        assert notes
        for note in notes:
            assert note.startswith(
                "the table of cursors, groups, accounts and schemas has lost what lay behind groups 'group-0"
            )
    async with open_stepwise(path, options=NO_CACHE) as store:
        assert len(store.lost.ranges) == len(notes)
        assert store.table("groups")[gone[0]] == b"anew"
    salvage(path, accept_loss=True)
    assert salvage(path).notes == []
    async with open_stepwise(path, options=NO_CACHE) as store:
        assert not store.lost
        assert store.table("groups") == {**table, gone[0]: b"anew", gone[-1] + b"-": b"new"}
        assert await write(store, Put("groups", gone[1], b"x"), requires=[Require("groups", gone[1], None)]) is None


async def test_a_root_costs_what_hangs_on_it_and_not_the_leaves(whole: Path, tmp_path: Path) -> None:
    pages = kinds(whole)
    path = damaged(whole, tmp_path / "damaged", pages["rows", "root"][0])
    async with open_stepwise(path, options=NO_CACHE) as store:
        table = store.table("groups")
        assert table.items() <= ROWS.items()
        # between two leaves there is one row in the root
        assert len(ROWS) - len(table) <= len(pages["rows", "leaf"]) + 1
        for key in ROWS.keys() - table.keys():
            with pytest.raises(RowLost):
                store.lost.check("groups", key, "it")
        for key in list(table)[1::50]:
            assert await store.get("groups", key) == ROWS[key]
    assert len(salvage(path).notes) == len(store.lost.ranges)


async def test_damage_after_damage(whole: Path, tmp_path: Path) -> None:
    leaves = kinds(whole)["rows", "leaf"]
    path = damaged(whole, tmp_path / "once", leaves[3])
    async with open_stepwise(path, options=NO_CACHE) as store:
        first = set(store.table("groups"))
        assert await write(store, Put("groups", min(first), None)) is None  # it must not come back
    again = kinds(path)["rows", "leaf"]
    path = damaged(path, tmp_path / "twice", again[len(again) - 2])
    async with open_stepwise(path, options=NO_CACHE) as store:
        second = set(store.table("groups"))
        assert second < first - {min(first)}
        assert len(store.lost.ranges) == 2
        for key in ROWS.keys() - second - {min(first)}:
            with pytest.raises(RowLost):
                store.lost.check("groups", key, "it")
    salvage(path, accept_loss=True)
    async with open_stepwise(path, options=NO_CACHE) as store:
        assert set(store.table("groups")) == second
        assert not store.lost


async def test_what_the_store_says_of_itself_is_made_anew_from_the_rest(whole: Path, tmp_path: Path) -> None:
    async def epoch(path: Path, topic: str) -> int:
        async with open_stepwise(path, options=NO_CACHE) as store:
            store.submit(Unit(creates=[MakeTopic(topic, TopicConfig())]))
            store.committer.drain()
            return store.topics[topic].epoch

    shutil.copytree(whole, tmp_path / "store")
    before = await epoch(tmp_path / "store", "before")
    path = damaged(tmp_path / "store", tmp_path / "damaged", kinds(whole)["meta", "root"][0])
    assert await epoch(path, "after") > before
    (note,) = salvage(path).notes
    assert "the table of the layout and the last commit was damaged" in note
    async with open_stepwise(path, options=NO_CACHE) as store:
        assert await everything(store, "t") == [b"kept"]
        assert store.table("groups") == ROWS
    salvage(path, accept_loss=True)
    assert salvage(path).notes == []


async def test_without_its_own_table_a_store_with_an_open_log_is_refused(whole: Path, tmp_path: Path) -> None:
    """Whether the log ends where it should is what that table would say."""
    async with open_stepwise(tmp_path / "open", options=NO_CACHE) as store:
        store.submit(unit(append("t", b"x"), creates=[MakeTopic("t", TopicConfig())]))
        store.committer.drain()
        store.committer.writer.checkpoint()
        store.submit(unit(append("t", b"y")))
        store.committer.drain()
        shutil.copytree(tmp_path / "open", tmp_path / "crashed", ignore=shutil.ignore_patterns("*-shm"))
    with closing(sqlite3.connect(tmp_path / "open" / "log.sqlite")) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'meta'").fetchone()
    path = damaged(tmp_path / "crashed", tmp_path / "damaged", root)
    log = (path / "log.sqlite-wal").read_bytes()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="gateway store salvage"):
            async with open_stepwise(path):
                pass
    assert (path / "log.sqlite-wal").read_bytes() == log


def test_stretches() -> None:
    low, high = ("b", b"5"), ("d", b"1")
    lost = LostRows([LostRange(low, high, since=10)], "Way on.")
    for table, key, gone in (
        ("b", b"5", False),
        ("b", b"6", True),
        ("c", b"", True),
        ("d", b"0", True),
        ("d", b"1", False),
    ):
        if gone:
            with pytest.raises(RowLost, match=r"^it may be among .*\. Way on\.$"):
                lost.check(table, key, "it")
        else:
            lost.check(table, key, "it")
        lost.check(table, key, "it", epoch=10)
    assert [table for table in "abcde" if lost.touches(table)] == ["b", "c", "d"]
    with pytest.raises(RowLost):
        lost.check_around("b", b"1", b"9", "it")
    lost.check_around("b", b"1", b"5", "it")
    assert str(LostRange(None, None)) == "everything"
    assert str(LostRange(low, None)) == "behind b '5'"
