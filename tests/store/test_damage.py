"""A damaged store: named, refused, the rest served. And the way on."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.errors import CorruptChunk, NotAStore, StoreDamaged, StoreInUse, StoreReadOnly
from gateway.store.interface import MakeTopic, TopicConfig
from gateway.store.reader import LogReader
from gateway.store.salvage import salvage
from tests.store.kit import NO_CACHE, append, everything, open_stepwise, publish, read, unit

NEW = [MakeTopic("t", TopicConfig()), MakeTopic("other", TopicConfig())]


async def fill(path: Path, count: int = 10) -> None:
    async with open_stepwise(path, options=NO_CACHE) as store:
        for number in range(count):
            store.submit(unit(append("t", b"value-%d-" % number * 20, b"x"), append("other", b"fine"), creates=NEW))
            store.committer.step()


def flip(path: Path, needle: bytes) -> None:
    """Change one bit behind a marker in the file, as a failing disk would."""
    data = bytearray(path.read_bytes())
    at = data.index(needle)
    assert data.count(needle) >= 1
    data[at + 3] ^= 0x10
    path.write_bytes(data)


async def test_a_flipped_bit_is_refused_by_name_and_the_rest_is_served(tmp_path: Path) -> None:
    await fill(tmp_path)
    flip(tmp_path / "log.sqlite", b"value-4-value-4-")
    async with open_stepwise(tmp_path, options=NO_CACHE) as store:
        before = await read(store, "t", 0)
        assert before.next_offset == 8
        with pytest.raises(CorruptChunk) as caught:
            await read(store, "t", 8)
        error = caught.value
        assert (error.topic, error.partition, error.first, error.next_offset) == ("t", 0, 8, 10)
        assert "t" in error.message
        with pytest.raises(CorruptChunk):
            await read(store, "t", 9)
        assert (await read(store, "t", error.next_offset)).next_offset == 20
        assert await everything(store, "other") == [b"fine"] * 10
        ticket = store.submit(unit(append("t", b"new")))
        store.committer.step()
        assert ticket.placements[0].base_offset == 20
    with LogReader(tmp_path) as reader:
        got = []
        with pytest.raises(CorruptChunk):
            got.extend(reader.read_chunks("t", 0))
        assert [run.base_offset for run in got] == [0, 2, 4, 6]
        assert sum(run.count for run in reader.read_chunks("t", 0, 10)) == 11
    found = salvage(tmp_path)
    assert [(d.topic, d.partition, d.first, d.next_offset) for d in found.damaged] == [("t", 0, 8, 10)]
    assert found.lost_commits == 0


async def test_merging_leaves_damage_where_it_is(tmp_path: Path) -> None:
    await fill(tmp_path)
    flip(tmp_path / "log.sqlite", b"value-4-value-4-")
    async with open_stepwise(tmp_path, options=NO_CACHE) as store:
        log = store._topics["t"].logs[0]
        log.merge_from = 0
        store._visible.mergeable.add(log)
        store.maintain()
        assert (await read(store, "t", 0)).next_offset == 8
        with pytest.raises(CorruptChunk) as caught:
            await read(store, "t", 8)
        assert (caught.value.first, caught.value.next_offset) == (8, 10)
        assert (await read(store, "t", 10)).next_offset == 20


async def test_a_missing_chunk_is_a_hole_and_never_skipped(tmp_path: Path) -> None:
    await fill(tmp_path)
    with closing(sqlite3.connect(tmp_path / "log.sqlite", isolation_level=None)) as connection:
        (key,) = connection.execute("SELECT id FROM chunks WHERE id & 0xFFFF = 8 AND count = 2").fetchone()
        connection.execute("DELETE FROM chunks WHERE id = ?", (key,))
    async with open_stepwise(tmp_path, options=NO_CACHE) as store:
        assert (await read(store, "t", 0)).next_offset == 8
        with pytest.raises(CorruptChunk) as caught:
            await read(store, "t", 8)
        assert (caught.value.first, caught.value.next_offset) == (8, 10)
    assert [(d.first, d.next_offset) for d in salvage(tmp_path).damaged] == [(8, 10)]


async def test_a_broken_page_of_the_database_is_refused_with_the_range(tmp_path: Path) -> None:
    async with open_stepwise(tmp_path, options=NO_CACHE) as store:
        for number in range(40):
            store.submit(unit(append("t", b"%d" % number + bytes(9000)), append("other", b"fine"), creates=NEW))
            store.committer.step()
    path = tmp_path / "log.sqlite"
    data = bytearray(path.read_bytes())
    at = data.index(b"20" + bytes(9000))
    page = at // 16384 * 16384
    data[page] = 0x77  # no page type
    path.write_bytes(data)
    async with open_stepwise(tmp_path, options=NO_CACHE) as store:
        with pytest.raises(CorruptChunk) as caught:
            await everything(store, "t")
        assert caught.value.topic == "t"
        assert await everything(store, "other") == [b"fine"] * 40


async def crash(path: Path, tmp_path: Path, count: int) -> None:
    """A copy of a store as a crash leaves it: nothing carried over from the write-ahead log."""
    async with open_stepwise(tmp_path / "origin", options=NO_CACHE) as store:
        for number in range(count):
            store.submit(unit(append("t", b"value-%d-" % number * 20), creates=NEW[:1]))
            store.committer.step()
        shutil.copytree(tmp_path / "origin", path, ignore=shutil.ignore_patterns("*-shm"))


async def test_recovery_brings_back_everything(tmp_path: Path) -> None:
    path = tmp_path / "store"
    await crash(path, tmp_path, 8)
    async with open_stepwise(path, options=NO_CACHE) as store:
        assert len(await everything(store, "t")) == 8


async def test_lost_commits_are_noticed_counted_and_given_up_only_by_a_person(tmp_path: Path) -> None:
    """SQLite takes a write-ahead log that is damaged in the middle for one that ends there."""
    path = tmp_path / "store"
    await crash(path, tmp_path, 8)
    flip(path / "log.sqlite-wal", b"value-5-value-5-")
    wal = (path / "log.sqlite-wal").read_bytes()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="lost its last 3 commits"):
            async with open_stepwise(path):
                pass
    assert (path / "log.sqlite-wal").read_bytes() == wal  # looking has not thrown away what could still be found
    found = salvage(path)
    assert (found.lost_commits, found.damaged) == (3, [])
    with pytest.raises(StoreDamaged):
        async with open_stepwise(path):
            pass
    assert salvage(path, accept_loss=True).lost_commits == 3
    assert salvage(path).lost_commits == 0
    async with open_stepwise(path, options=NO_CACHE) as store:
        assert len(await everything(store, "t")) == 5
        store.submit(unit(append("t", b"on we go")))
        store.committer.step()
    async with open_stepwise(path, options=NO_CACHE) as store:
        assert len(await everything(store, "t")) == 6


@pytest.mark.parametrize("share", [0.0, 0.1, 0.35, 0.5, 0.8, 0.95, 0.999])
async def test_a_truncated_log_is_refused_at_any_cut(tmp_path: Path, share: float) -> None:
    path = tmp_path / "store"
    await crash(path, tmp_path, 8)
    wal = path / "log.sqlite-wal"
    wal.write_bytes(wal.read_bytes()[: int(wal.stat().st_size * share)])
    with pytest.raises((StoreDamaged, NotAStore)):
        async with open_stepwise(path):
            pass


async def test_without_a_mark_the_store_opens(tmp_path: Path) -> None:
    """After a power cut the mark may be empty or zeroes: it was never synced."""
    await fill(tmp_path)
    for content in (b"", bytes(21), b"\n"):
        (tmp_path / "committed").write_bytes(content)
        async with open_stepwise(tmp_path, options=NO_CACHE) as store:
            assert len(await everything(store, "other")) == 10


async def test_a_store_has_one_process(tmp_path: Path) -> None:
    async with open_stepwise(tmp_path / "a"):
        with pytest.raises(StoreInUse):
            async with open_stepwise(tmp_path / "a"):
                pass
        with pytest.raises(StoreInUse):
            salvage(tmp_path / "a")
        async with open_stepwise(tmp_path / "b"):
            pass
    async with open_stepwise(tmp_path / "a"):
        pass


async def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        LogReader(tmp_path)
    with pytest.raises(NotAStore):
        salvage(tmp_path)
    (tmp_path / "log.sqlite").write_bytes(b"this is not a database, but long enough to look at" * 100)
    with pytest.raises(NotAStore):
        LogReader(tmp_path)
    with pytest.raises((NotAStore, StoreDamaged)):
        async with open_stepwise(tmp_path):
            pass


async def test_a_place_that_cannot_hold_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreReadOnly, match="cannot be opened"):
        async with open_stepwise(tmp_path / "file" / "store"):
            pass


async def test_a_later_layout_is_refused(tmp_path: Path) -> None:
    await fill(tmp_path, 1)
    with closing(sqlite3.connect(tmp_path / "log.sqlite", isolation_level=None)) as connection:
        connection.execute("UPDATE meta SET value = 99 WHERE name = 'layout'")
    with pytest.raises(NotAStore, match="layout 99"):
        async with open_stepwise(tmp_path):
            pass


async def test_a_read_only_directory_is_a_typed_error(tmp_path: Path) -> None:
    async with open_stepwise(tmp_path, options=NO_CACHE) as store:
        await_created = store.submit(unit(append("t", b"kept"), creates=NEW[:1]))
        store.committer.step()
        assert await_created.done
        store.committer.writer.connection.execute("PRAGMA query_only=ON")
        refused = store.submit(unit(append("t", b"lost")))
        store.committer.step()
        assert refused.error is not None
        assert not store.health.writable
        assert await everything(store, "t") == [b"kept"]
        store.committer.writer.connection.execute("PRAGMA query_only=OFF")
        store.maintain()
        assert store.health.writable
        again = store.submit(unit(append("t", b"again")))
        store.committer.step()
        assert again.placements[0].base_offset == 1


async def test_publishing_goes_on_beside_damage(tmp_path: Path) -> None:
    await fill(tmp_path)
    flip(tmp_path / "log.sqlite", b"value-9-value-9-")  # the newest chunk
    from gateway.store.committer import Mode
    from gateway.store.sqlite import open_store

    async with open_store(tmp_path, NO_CACHE, mode=Mode.INLINE) as store:
        assert (await publish(store, "t", b"new")).base_offset == 20
        assert (await read(store, "t", 20)).next_offset == 21
        with pytest.raises(CorruptChunk):
            await read(store, "t", 18)
