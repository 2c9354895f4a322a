"""Every kind of page of a store's database, damaged in every way: found and named by `check`, served around or refused with
the way on, and gone after `salvage`.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

from gateway.errors import CorruptChunk, NotAStore, StoreDamaged
from gateway.store import catalogue
from gateway.store.database import PAGE_SIZE
from gateway.store.interface import DropTopic, MakeTopic, Put, TopicConfig, Unit
from gateway.store.reader import LogReader
from gateway.store.salvage import salvage
from tests.store.kit import NO_CACHE, append, open_stepwise, read, unit

TOPICS, PARTITIONS = 400, 1500
"""So many that the tables of topics and partitions and the index of names have several pages."""
CHUNKS = 400

NAMES = ["t", "short", "gone", *[f"topic-with-a-name-of-some-length-{number:04}" for number in range(TOPICS)]]
BY_PATH = ["t", "short", *NAMES[3::100]]
"""Whose bounds are asked for by path, which costs as much as there are partitions."""

Records = dict[tuple[str, int], bytes]
"""By topic and offset."""


@pytest.fixture(scope="module")
def intact(whole: Path) -> Records:
    """What is in it."""

    async def run() -> Records:
        return await records(whole, [])

    return trio.run(run)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with pages of every kind: trees of two levels, rows that go on in other pages, and a free list."""
    path = tmp_path_factory.mktemp("whole")
    trio.run(fill, path)
    return path


async def fill(path: Path) -> None:
    async with open_stepwise(path, options=NO_CACHE) as store:
        creates = [MakeTopic(name, TopicConfig()) for name in NAMES]
        store.submit(Unit(creates=[*creates, MakeTopic("wide", TopicConfig(PARTITIONS))]))
        store.committer.drain()
        for number in range(CHUNKS):
            value = b"%d-" % number * (20_000 if number % 40 == 0 else 100)
            more = [append("short", b"%d" % number)] if number % 8 == 0 else [append("gone", bytes(600))]
            puts = [Put("groups", b"group-%04d" % number, bytes(100))]
            store.submit(unit(append("t", value, b"x"), *more, append(NAMES[3 + number % TOPICS], b"a"), puts=puts))
            store.committer.drain()
        store.submit(Unit(deletes=[DropTopic("gone")]))
        store.committer.drain()
        store.maintain()


def kinds(path: Path) -> dict[tuple[str, str], list[int]]:
    """The pages of each kind, by SQLite's own account."""
    with contextlib.closing(sqlite3.connect(path / "log.sqlite")) as connection:
        try:
            rows = connection.execute("SELECT name, path, pagetype, pageno FROM dbstat ORDER BY path").fetchall()
        except sqlite3.OperationalError as error:
            pytest.skip(f"this SQLite cannot say what its pages are for: {error}")
    found: dict[tuple[str, str], list[int]] = {}
    for name, place, kind, number in rows:
        found.setdefault((name, "root" if place == "/" else kind), []).append(number)
    return found


EXPECTED = {
    ("sqlite_schema", "root"),
    ("meta", "root"),
    *[(tree, "root") for tree in ("topics", "sqlite_autoindex_topics_1", "partitions", "chunks", "rows")],
    *[(tree, "leaf") for tree in ("topics", "sqlite_autoindex_topics_1", "partitions", "chunks", "rows")],
    ("chunks", "overflow"),
}


def no_kind(page: bytearray, at: int) -> None:
    page[at] = 0x77


def other_kind(page: bytearray, at: int) -> None:
    page[at] = {2: 5, 5: 2, 10: 13, 13: 10}.get(page[at], page[at] ^ 0xFF)


def zeros(page: bytearray, _at: int) -> None:
    page[:] = bytes(len(page))


def noise(page: bytearray, _at: int) -> None:
    page[:] = random.Random(4).randbytes(len(page))


def cells_elsewhere(page: bytearray, at: int) -> None:
    page[at + 8 : at + 28] = b"\xff" * 20


def last_sectors(page: bytearray, _at: int) -> None:
    # a page is four sectors of a disk
    page[len(page) // 2 :] = bytes(len(page) // 2)


def last_sector(page: bytearray, _at: int) -> None:
    page[-len(page) // 4 :] = bytes(len(page) // 4)


DAMAGES = [no_kind, other_kind, zeros, noise, cells_elsewhere, last_sectors, last_sector]


def damaged(whole: Path, path: Path, number: int, damage: Callable[[bytearray, int], None]) -> Path:
    shutil.copytree(whole, path)
    file = path / "log.sqlite"
    data = bytearray(file.read_bytes())
    begin = (number - 1) * PAGE_SIZE
    page = data[begin : begin + PAGE_SIZE]
    damage(page, 100 if number == 1 else 0)
    data[begin : begin + PAGE_SIZE] = page
    file.write_bytes(data)
    return path


async def records(path: Path, refused: list[CorruptChunk], *, one_name: bool = True) -> Records:
    """Whatever a server hands out, and what it refuses."""
    found: Records = {}
    async with open_stepwise(path, options=NO_CACHE) as store:
        for topic, state in store.topics.items():
            await _records_of(store, topic, state.partitions[0], found, refused, one_name)
        assert store.committer.health.writable
    return found


async def _records_of(
    store: Any, topic: str, state: Any, found: Records, refused: list[CorruptChunk], one_name: bool
) -> None:
    offset = state.start
    while offset < state.end:
        try:
            result = await read(store, topic, offset, 50)
        except CorruptChunk as error:
            refusal = error
        else:
            for run in result.runs:
                found |= {(topic, run.base_offset + index): value for index, value in enumerate(run.columns.values())}
            offset = result.next_offset
            continue
        assert refusal.topic == topic
        assert refusal.first <= offset < refusal.next_offset
        for within in (offset, min(refusal.next_offset, state.end) - 1 if one_name else offset):
            with pytest.raises(CorruptChunk) as again:  # the same range by the same name, wherever one begins within
                await read(store, topic, within)
            assert (again.value.first, again.value.next_offset) == (refusal.first, refusal.next_offset)
        refused.append(refusal)
        offset = refusal.next_offset


def by_path(path: Path, found: Records) -> None:
    """What a reader in another process gets is what the server hands out."""
    with LogReader(path) as reader:
        for topic in BY_PATH:
            start, end = reader.bounds(topic, 0)
            while start < end:
                try:
                    for run in reader.read_chunks(topic, 0, start, end):
                        values = run.columns.values()
                        assert [found[topic, run.base_offset + index] for index in range(run.count)] == values
                        start = run.next_offset
                except CorruptChunk as error:
                    start = error.next_offset


async def nothing_is_made_that_may_be_there(path: Path) -> None:
    async with open_stepwise(path, options=NO_CACHE) as store:
        ticket = store.submit(unit(append("new", b"x"), creates=[MakeTopic("new", TopicConfig())]))
        store.committer.drain()
        assert isinstance(ticket.error, StoreDamaged)
        assert store.health.writable


CASES = sorted(EXPECTED)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", CASES, ids=" ".join)
async def test_a_damaged_page(whole: Path, intact: Records, tmp_path: Path, kind: tuple[str, str], damage: Any) -> None:
    there = kinds(whole)
    assert there.keys() >= EXPECTED
    pages = there[kind]
    some = {pages[0], pages[len(pages) // 2], pages[-1]} if damage is no_kind else {pages[len(pages) // 2]}
    for index, number in enumerate(sorted(some)):
        await one_page(damaged(whole, tmp_path / str(index), number, damage), kind, intact)


async def one_page(path: Path, kind: tuple[str, str], intact: Records) -> None:
    found = salvage(path)
    assert found.notes or found.damaged
    refused: list[CorruptChunk] = []
    served: Records = {}
    try:
        served = await records(path, refused)
    except (StoreDamaged, NotAStore) as error:
        why_not = error.message
    else:
        why_not = ""
    if why_not:
        assert "gateway store salvage" in why_not
        assert kind[0] not in {"chunks", "sqlite_autoindex_topics_1", "topics", "partitions"}, "the rest is served"
    else:
        by_path(path, served)
        if kind[0] in {"topics", "partitions"}:
            await nothing_is_made_that_may_be_there(path)
        assert served.items() <= intact.items()
        for topic, offset in intact.keys() - served.keys():
            assert any(one.topic == topic and one.first <= offset < one.next_offset for one in refused) or any(
                one.topic == topic and one.first <= offset and one.next_offset is None for one in found.damaged
            )
    saved = salvage(path, accept_loss=True)
    if found.notes:
        assert saved.rebuilt is not None
        assert saved.rebuilt.exists()
    assert not salvage(path).notes
    refused.clear()
    after = await records(path, refused)
    assert after.items() >= served.items()
    if kind[0] not in {"chunks", "topics", "partitions"}:
        assert after == intact
    elif kind[0] != "chunks":  # they may have got other names
        assert sorted(after.values()) == sorted(intact.values())
    async with open_stepwise(path, options=NO_CACHE) as store:
        ticket = store.submit(unit(append("anew", b"on we go"), creates=[MakeTopic("anew", TopicConfig())]))
        store.committer.drain()
        assert ticket.error is None


async def test_a_page_with_the_rows_of_another_one(whole: Path, intact: Records, tmp_path: Path) -> None:
    """What a disk does that writes to the wrong place: each row is good, and none is where it is looked for."""
    there = kinds(whole)
    leaves, topics = there["chunks", "leaf"], there["topics", "leaf"]
    places = [(leaves[-1], leaves[0]), (leaves[0], leaves[-1]), (leaves[4], leaves[3]), (leaves[0], topics[0])]
    for index, (number, other) in enumerate(places):
        path = tmp_path / str(index)
        shutil.copytree(whole, path)
        with (path / "log.sqlite").open("r+b") as file:
            file.seek((other - 1) * PAGE_SIZE)
            page = file.read(PAGE_SIZE)
            file.seek((number - 1) * PAGE_SIZE)
            file.write(page)
        refused: list[CorruptChunk] = []
        served = await records(path, refused, one_name=False)
        assert served.items() <= intact.items()
        for topic, offset in intact.keys() - served.keys():
            assert any(one.topic == topic and one.first <= offset for one in refused)
        assert salvage(path).notes


@pytest.mark.parametrize("kind", ["topics", "sqlite_autoindex_topics_1", "partitions"])
async def test_a_start_says_what_of_the_topics_is_damaged_and_what_is_refused_costs_nobody_else(
    whole: Path, tmp_path: Path, kind: str
) -> None:
    path = damaged(whole, tmp_path / "damaged", kinds(whole)[kind, "leaf"][-1], zeros)
    async with open_stepwise(path, options=NO_CACHE) as store:
        assert any("no topic can be made, changed or deleted" in text for text in store.lost.texts)
        units = [unit(append("new", b"x"), creates=[MakeTopic("new", TopicConfig())]), Unit(deletes=[DropTopic("t")])]
        for one in units:
            ticket = store.submit(one)
            store.committer.drain()
            assert isinstance(ticket.error, StoreDamaged)
            assert "cannot be made, changed or deleted" in ticket.error.message
        assert store.health.writable


async def test_a_page_of_small_topics_of_which_half_is_gone(tmp_path: Path) -> None:
    """What SQLite still finds in it is refused with the rest: whoever read it would take it for all there was."""
    names = [f"topic-{number}" for number in range(3)]
    async with open_stepwise(tmp_path, options=NO_CACHE) as store:
        store.submit(Unit(creates=[MakeTopic(name, TopicConfig()) for name in names]))
        for number in range(20):
            store.submit(unit(*[append(name, b"%d" % number * 40) for name in names]))
            store.committer.drain()
    (leaf,) = kinds(tmp_path)["chunks", "root"]
    path = damaged(tmp_path, tmp_path / "damaged", leaf, last_sectors)
    async with open_stepwise(path, options=NO_CACHE) as store:
        for name in names:
            with pytest.raises(CorruptChunk):
                await read(store, name, store.topics[name].partitions[0].end - 1)
    with LogReader(path) as reader:
        for name in names:
            with pytest.raises(CorruptChunk):
                list(reader.read_chunks(name, 0))


@pytest.mark.parametrize("old", [b"fsync", b"topic-with-a-name-of-some-length-0007"])
async def test_a_bit_in_the_table_of_topics(whole: Path, intact: Records, tmp_path: Path, old: bytes) -> None:
    """A text that is none, and a name that the index contradicts."""
    path = tmp_path / "damaged"
    shutil.copytree(whole, path)
    data = bytearray((path / "log.sqlite").read_bytes())
    pages = kinds(whole)["topics", "leaf"]
    at = next(found for page in pages if (found := data.find(old, (page - 1) * PAGE_SIZE, page * PAGE_SIZE)) >= 0)
    data[at + len(old) - 1] ^= 0x80 if old == b"fsync" else 0x01
    (path / "log.sqlite").write_bytes(data)
    assert salvage(path).notes
    async with open_stepwise(path, options=NO_CACHE) as store:
        assert any("no topic can be made, changed or deleted" in text for text in store.lost.texts)
        assert (old == b"fsync") is not any("in the index of names" in text for text in store.lost.texts)
    served = await records(path, [])
    assert sorted(served.values()) == sorted(intact.values())


@pytest.mark.parametrize("damage", [zeros, noise])
async def test_the_list_of_free_pages_is_looked_at(whole: Path, intact: Records, tmp_path: Path, damage: Any) -> None:
    (trunk,) = struct.unpack_from(">I", (whole / "log.sqlite").read_bytes(), 32)
    assert trunk
    path = damaged(whole, tmp_path / "damaged", trunk, damage)
    assert any(note.startswith("the list of free pages is damaged") for note in salvage(path).notes)
    assert await records(path, []) == intact
    async with open_stepwise(path, options=NO_CACHE) as store:
        assert any(text.endswith("what needs a new page cannot be stored") for text in store.lost.texts)
    assert salvage(path, accept_loss=True).rebuilt is not None
    assert salvage(path).notes == []
    async with open_stepwise(path, options=NO_CACHE) as store:
        ticket = store.submit(unit(append("t", bytes(100_000))))
        store.committer.drain()
        assert ticket.error is None


async def test_where_new_records_would_go_is_damaged(whole: Path, tmp_path: Path) -> None:
    path = damaged(whole, tmp_path / "damaged", kinds(whole)["chunks", "leaf"][-1], zeros)
    async with open_stepwise(path, options=NO_CACHE) as store:
        last = NAMES[2 + CHUNKS]
        assert f"the end of {last}/0 is damaged: nothing is added" in store.lost.texts
        for one in (unit(append(last, b"x")), unit(append("new", b"x"), creates=[MakeTopic("new", TopicConfig())])):
            ticket = store.submit(one)
            store.committer.drain()
            assert isinstance(ticket.error, StoreDamaged)
        assert store.health.writable


async def test_a_partition_whose_beginning_is_damaged_takes_records(whole: Path, tmp_path: Path) -> None:
    path = damaged(whole, tmp_path / "damaged", kinds(whole)["chunks", "leaf"][0], no_kind)
    async with open_stepwise(path, options=NO_CACHE) as store:
        with pytest.raises(CorruptChunk):
            await read(store, "t", 0)
        ticket = store.submit(unit(append("t", b"more")))
        store.committer.drain()
        assert [one.base_offset for one in ticket.placements] == [2 * CHUNKS]
        assert (await read(store, "t", 2 * CHUNKS - 1)).next_offset == 2 * CHUNKS + 1
    async with open_stepwise(path, options=NO_CACHE) as store:
        assert store.topics["t"].partitions[0].end == 2 * CHUNKS + 1


@pytest.mark.parametrize("seed", range(20))
async def test_a_flipped_bit_is_found_or_does_no_harm(whole: Path, intact: Records, tmp_path: Path, seed: int) -> None:
    """Of records. The small tables carry no checksums: a bit within a value of theirs shows nowhere."""
    chance = random.Random(seed)
    path = tmp_path / "flipped"
    shutil.copytree(whole, path)
    data = bytearray((path / "log.sqlite").read_bytes())
    pages = kinds(whole)
    for number in chance.sample([page for kind in sorted(pages) for page in pages[kind] if kind[0] == "chunks"], 2):
        # where it hurts: a page's head, or its cells
        at = (number - 1) * PAGE_SIZE + chance.choice([chance.randrange(30), chance.randrange(PAGE_SIZE)])
        data[at] ^= 1 << chance.randrange(8)
    (path / "log.sqlite").write_bytes(data)
    found = salvage(path)
    refused: list[CorruptChunk] = []
    served = await records(path, refused, one_name=False)
    assert served.items() <= intact.items()
    if served != intact:
        assert found.notes or found.damaged
    salvage(path, accept_loss=True)
    after = await records(path, refused, one_name=False)
    assert served.items() <= after.items() <= intact.items()
    assert not salvage(path).notes


async def test_to_make_up_for_what_is_lost_takes_as_long_as_there_are_topics(tmp_path: Path) -> None:
    """Counted in lines that are run: four times the topics, four times the lines."""
    lines = [await lines_to_load(tmp_path / str(topics), topics) for topics in (50, 200)]
    assert lines[1] < 6 * lines[0]


async def lines_to_load(path: Path, topics: int) -> int:
    async with open_stepwise(path, options=NO_CACHE) as store:
        store.submit(Unit(creates=[MakeTopic(f"topic-{number:04}", TopicConfig(2)) for number in range(topics)]))
        store.committer.drain()
    count = 0

    def counted(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return counted

    with contextlib.closing(sqlite3.connect(path / "log.sqlite")) as connection:
        connection.execute("DELETE FROM partitions WHERE partition = 0 AND topic = (SELECT max(id) FROM topics)")
        connection.execute("DELETE FROM topics WHERE id = (SELECT min(id) FROM topics)")
        sys.settrace(counted)
        try:
            found, partitions, damaged = catalogue.load(connection)
        finally:
            sys.settrace(None)
    assert damaged
    assert (len(found), len(partitions)) == (topics - 1, 2 * topics - 2)
    return count
