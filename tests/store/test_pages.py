"""Every kind of page of a store's database, damaged in every way: found and named by `check`, served around or refused with
the way on, and gone after `salvage`.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
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


DAMAGES = [no_kind, other_kind, zeros, noise, cells_elsewhere]


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
