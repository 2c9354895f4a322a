"""The short way: what is acknowledged from the journal is there after a crash at any moment, once, in its place."""

from __future__ import annotations

import errno
import math
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import CommitFailed, ConditionFailed, OutcomeUnknown, StoreDamaged, StoreError, StoreReadOnly
from gateway.store import journal, loop, onlookers, rows_at_hand
from gateway.store import writer as writer_module
from gateway.store.interface import AlterTopic, DropTopic, Durability, MakeTopic, Put, Require, TopicConfig, Unit
from gateway.store.journal import Journal, JournalTail, decode_frame, encode_frame, read_rest
from gateway.store.reader import LogReader
from gateway.store.salvage import salvage
from gateway.store.sqlite import StoreOptions, open_store
from gateway.store.writer import Writer
from tests.store.kit import NO_CACHE, SMALL, append, create, everything, open_stepwise, publish, read, unit, until

SALT = b"saltsalt"
PIECES = st.lists(st.tuples(st.integers(0, (1 << 63) - 1), st.binary(max_size=60)), min_size=1, max_size=4)
LAZY = {"durability": Durability.INTERVAL, "interval": 3600.0}


@given(number=st.integers(1, 1 << 62), synced=st.integers(0, 1 << 62), pieces=PIECES, behind=st.binary(max_size=50))
def test_a_frame_is_read_as_it_was_written(number: int, synced: int, pieces: list, behind: bytes) -> None:
    data = encode_frame(SALT, number, synced, pieces)
    frame, end = decode_frame(data + behind, 0, SALT)
    assert (frame.number, frame.synced, list(frame.pieces), end) == (number, synced, pieces, len(data))


@given(pieces=PIECES, data=st.data())
def test_no_part_of_a_frame_and_none_that_was_changed_is_one(pieces: list, data: st.DataObject) -> None:
    whole = encode_frame(SALT, 7, 3, pieces)
    assert decode_frame(whole[: data.draw(st.integers(0, len(whole) - 1))], 0, SALT) is None
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(whole)
    changed[at] ^= 1 << bit
    assert decode_frame(bytes(changed), 0, SALT) is None


def written(directory: Path, synced: Sequence[int], first: int = 1) -> tuple[Sequence[Path], list[int]]:
    """A journal with a frame for each of these; where each ends in its one file."""
    paths = [directory / "journal-0", directory / "journal-1"]
    files = Journal(paths)
    ends: list[int] = []
    for number, on_disk in enumerate(synced, first):
        files.append(number, on_disk, [(number, b"chunk %d" % number * 3)])
        ends.append(files.position)
    files.close()
    return paths, ends


def numbers(paths: Sequence[Path], posted: int = 0) -> list[int]:
    return [frame.number for frame in read_rest(paths, posted).frames]


def test_a_journal_that_is_cut_anywhere_is_what_is_whole_of_it(tmp_path: Path) -> None:
    paths, ends = written(tmp_path, [0] * 5)
    prepared = paths[0].read_bytes()
    whole = prepared[: ends[-1]]
    assert prepared == whole.ljust(ends[0] + journal.PREPARED, b"\0")
    for size in range(len(whole) + 1):
        for rest in (b"", bytes(len(whole) - size)):  # the file ends there, or has its size and nothing in it
            paths[0].write_bytes(whole[:size] + rest)
            found = read_rest(paths, 0)
            assert [frame.number for frame in found.frames] == [n for n, end in enumerate(ends, 1) if end <= size]
            assert not found.damage


@given(posted=st.integers(0, 6), synced=st.lists(st.booleans(), min_size=6, max_size=6), data=st.data())
def test_a_byte_that_was_changed_ends_it_and_is_named_if_anybody_was_told(
    tmp_path_factory: pytest.TempPathFactory, posted: int, synced: list[bool], data: st.DataObject
) -> None:
    told, marks = 0, []
    for number, one in enumerate(synced, 1):
        marks.append(told)
        told = number if one else told  # after its frame was written
    paths, ends = written(tmp_path_factory.mktemp("cut"), marks)
    whole = bytearray(paths[0].read_bytes())
    at = data.draw(st.integers(journal.HEAD.size, ends[-1] - 1))
    hit = next(number for number, end in enumerate(ends, 1) if at < end)
    whole[at] ^= data.draw(st.integers(1, 255))
    paths[0].write_bytes(whole)
    found = read_rest(paths, posted)
    expected = [number for number in range(posted + 1, 7) if number < hit] if hit > posted else range(posted + 1, 7)
    assert [frame.number for frame in found.frames] == list(expected)
    later = [mark for number, mark in enumerate(marks, 1) if number > max(hit, posted)]
    assert bool(found.damage) == (hit > posted and max(later, default=0) >= hit)


def test_what_the_power_took_of_the_database_is_no_reason_to_take_what_lies_behind_it(tmp_path: Path) -> None:
    paths, _ends = written(tmp_path, [0] * 3, first=5)
    assert numbers(paths, 4) == [5, 6, 7]
    assert numbers(paths, 3) == []  # commit 4 was in the database alone, and not synced: nobody was told
    assert not read_rest(paths, 3).damage
    assert numbers(paths, 9) == []


def test_a_head_that_is_none_is_damage(tmp_path: Path) -> None:
    paths, _ends = written(tmp_path, [0])
    paths[0].write_bytes(b"what?" + paths[0].read_bytes()[5:])
    assert "journal-0" in read_rest(paths, 0).damage


@pytest.mark.parametrize("room", [0, 100])
def test_where_there_is_no_room_to_go_ahead_frames_go_on_as_long_as_there_is_some(
    tmp_path: Path, monkeypatch, room: int
) -> None:
    pwrite = journal.os.pwrite

    def zeros_do_not_fit(file: int, data: bytes, at: int) -> int:
        if data.strip(b"\0"):
            return pwrite(file, data, at)
        if room:
            return pwrite(file, data[:room], at)
        raise OSError(errno.ENOSPC, "no")

    monkeypatch.setattr(journal.os, "pwrite", zeros_do_not_fit)
    paths, ends = written(tmp_path, [0] * 5)
    assert numbers(paths) == [1, 2, 3, 4, 5]
    assert paths[0].stat().st_size == max(ends[-1], journal.HEAD.size + room)


def test_files_are_used_in_turns_and_their_old_frames_count_no_more(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 1000)
    paths = [tmp_path / "journal-0", tmp_path / "journal-1"]
    tail, files, posted = JournalTail(paths), Journal(paths), 0
    for number in range(1, 400):
        if files.position >= 1000 and not files.begin_anew(posted):
            posted = number - random.Random(number).randrange(1, 4)
            assert files.begin_anew(posted)
        files.append(number, posted, [(number, bytes(number % 90))])
        assert tail.last() == JournalTail(paths).last() == number
        assert numbers(paths, posted) == list(range(posted + 1, number + 1))
        assert not read_rest(paths, posted).damage
    assert sum(path.stat().st_size for path in paths) < 3000
    files.close()


# --- a store ---


def image(path: Path, to: Path, only: Callable[[str], bool] = lambda _name: True) -> Path:
    """What a process that is killed at this moment leaves behind: what it has written is the kernel's."""
    to.mkdir(exist_ok=True)
    for file in path.iterdir():
        if only(file.name):
            shutil.copyfile(file, to / file.name)
    return to


def in_journal(name: str) -> bool:
    return name.startswith("journal-")


@pytest.fixture
def never_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by time, nor because somebody looks."""
    monkeypatch.setattr(onlookers, "_watch", lambda _paths: -1)
    monkeypatch.setattr(loop, "POST_SOON", 3600.0)


async def taken_apart(store: Any, topic: str, partition: int = 0) -> list[tuple[object, ...]]:
    """All there is to know of each record."""
    end = store.topics[topic].partitions[partition].end
    found: list[tuple[object, ...]] = []
    offset = store.topics[topic].partitions[partition].start
    while offset < end:
        result = await read(store, topic, offset, partition=partition)
        for run in result.runs:
            found += [(e.offset, e.timestamp_ms, e.id, e.key, e.headers, e.value) for e in run.envelopes()]
        offset = result.next_offset
    return found


@pytest.mark.usefixtures("never_posted")
@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.INTERVAL, Durability.NONE])
@pytest.mark.parametrize("options", [SMALL, NO_CACHE], ids=["cached", "not cached"])
async def test_who_is_killed_has_lost_nothing(tmp_path: Path, durability: Durability, options: StoreOptions) -> None:
    async with open_store(tmp_path / "s", options) as store:
        await create(store, "t", "other", partitions=2, durability=durability, interval=3600.0)
        for number in range(50):
            await publish(store, "t", b"%d" % number, b"x", keys=[b"k", None], headers=[(("a", b"b"),), ()])
            await store.submit(unit(append("t", b"y", partition=1), append("other", b"z"))).wait()
        writer = store.committer.writer
        assert len(writer.unposted) == 150
        before = {key: await taken_apart(store, *key) for key in (("t", 0), ("t", 1), ("other", 0))}
        assert len(before["t", 0]) == 100
        assert await store.offset_for_time("t", 0, before["t", 0][60][1]) <= 60
        assert await store.read_stored("t", 0, 0, 10, 1000) == ()
        killed = image(tmp_path / "s", tmp_path / "killed")
        number = writer.number
    for _ in range(2):
        async with open_store(killed, options) as store:
            assert {key: await taken_apart(store, *key) for key in before} == before
            assert store.committer.writer.number >= number
            assert (await publish(store, "t", b"next", partition=1)).base_offset == len(before["t", 1])
            before["t", 1] = await taken_apart(store, "t", 1)
    assert not (killed / "journal-0").exists()
    assert salvage(killed).notes == []


@pytest.mark.usefixtures("never_posted")
async def test_one_read_has_what_is_on_disk_and_what_is_in_the_journal(tmp_path: Path) -> None:
    async with open_store(tmp_path, NO_CACHE) as store:
        await create(store, "t", **LAZY)
        await publish(store, "t", b"0", b"1")
        await store.submit(unit(append("t", b"2"), puts=[Put("c", b"k", b"v")])).wait()
        await publish(store, "t", b"3")
        await publish(store, "t", b"4")
        for offset, most, end in ((0, 100, 5), (1, 100, 5), (1, 3, 4), (3, 1, 4), (4, 9, 5)):
            found = await read(store, "t", offset, most)
            assert [value for run in found.runs for value in run.columns.values()] == [
                b"%d" % n for n in range(offset, end)
            ]
            assert found.next_offset == end


async def test_what_is_posted_takes_one_chunk_and_reads_the_same(tmp_path: Path) -> None:
    async with open_store(tmp_path, NO_CACHE) as store:
        await create(store, "t", **LAZY)
        for number in range(200):
            await publish(store, "t", b"%d" % number)
        expected = await taken_apart(store, "t")
        await until(lambda: not store.committer.writer.unposted)
        assert await taken_apart(store, "t") == expected
        rows = store._pool.direct.execute("SELECT count(*), sum(count) FROM chunks").fetchone()
        assert rows[0] < 100
        assert rows[1] == 200
        assert store.topics["t"].partitions[0].bytes == store.topics["t"].logs[0].position


@pytest.mark.usefixtures("never_posted")
async def test_a_commit_that_is_not_through_is_not_posted_nor_is_a_part_of_it(tmp_path: Path, monkeypatch) -> None:
    go_on, sync = threading.Event(), journal.os.fdatasync

    def held(file: int) -> None:
        assert threading.current_thread().name != "store-writer" or go_on.wait(60)
        sync(file)

    async with open_store(tmp_path / "s", NO_CACHE) as store:
        await create(store, "lazy", **LAZY)
        await create(store, "safe", partitions=2)
        await publish(store, "lazy", b"0")
        monkeypatch.setattr(journal.os, "fdatasync", held)
        both = append("safe", b"a"), append("safe", b"b", partition=1), append("lazy", b"1")
        ticket = store.submit(unit(*both))
        await until(lambda: store._loop._working)
        store._loop._post_at = -math.inf
        store._loop.wake()
        await until(lambda: not (store.committer.writer.unposted or store._loop._posting))
        assert not ticket.done
        large = store.submit(unit(append("safe", bytes(100_000))))
        go_on.set()
        await ticket.wait()
        await large.wait()
        expected = [await taken_apart(store, *key) for key in (("lazy", 0), ("safe", 0), ("safe", 1))]
        assert [len(one) for one in expected] == [2, 2, 1]
        killed = image(tmp_path / "s", tmp_path / "killed")
    async with open_stepwise(killed, options=NO_CACHE) as store:
        assert [await taken_apart(store, *key) for key in (("lazy", 0), ("safe", 0), ("safe", 1))] == expected


@pytest.mark.usefixtures("never_posted")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_while_it_is_posted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Before the transaction, and behind it, when nobody has been told yet."""
    post = Writer.post

    def killed(writer: Writer, count: int, *, synced: bool) -> Any:
        if when == "before":
            image(tmp_path / "s", tmp_path / "killed")
        posted = post(writer, count, synced=synced)
        if when == "after":
            image(tmp_path / "s", tmp_path / "killed")
        return posted

    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t", **LAZY)
        for number in range(20):
            await publish(store, "t", b"%d" % number)
        monkeypatch.setattr(Writer, "post", killed)
    monkeypatch.undo()
    async with open_store(tmp_path / "killed", NO_CACHE) as store:
        assert await everything(store, "t") == [b"%d" % number for number in range(20)]
        assert store.topics["t"].partitions[0].end == 20


@pytest.mark.usefixtures("never_posted")
async def test_killed_between_the_last_transaction_and_the_end_of_the_journal(tmp_path: Path, monkeypatch) -> None:
    retire = Writer.transact

    def killed(writer: Writer, *args: Any, **options: Any) -> None:
        retire(writer, *args, **options)
        image(tmp_path / "s", tmp_path / "killed")

    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t", **LAZY)
        await publish(store, "t", b"a")
        monkeypatch.setattr(Writer, "transact", killed)
    monkeypatch.undo()
    assert sorted(path.name for path in (tmp_path / "killed").glob("journal-*")) == ["journal-0", "journal-1"]
    async with open_store(tmp_path / "killed", NO_CACHE) as store:
        assert await everything(store, "t") == [b"a"]


@pytest.mark.usefixtures("never_posted")
async def test_the_power_fails_and_what_was_not_synced_is_cut_anywhere(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "lazy", **LAZY)
        await create(store, "safe")
        for number in range(3):
            await publish(store, "lazy", b"lazy %d" % number)
            await publish(store, "safe", b"safe %d" % number)
        files = store.committer.writer.journal
        active, synced = files.active, files.position
        assert active.synced == active.last
        for number in range(3, 6):
            await publish(store, "lazy", b"lazy %d" % number)
        ends = [synced]
        data = (tmp_path / "s" / "journal-0").read_bytes()
        while (found := decode_frame(data, ends[-1], active.salt)) is not None:
            ends.append(found[1])
        assert len(ends) == 4
        killed = image(tmp_path / "s", tmp_path / "killed")
    assert not data.strip(b"\0")[ends[-1] :]
    for index, size in enumerate(sorted({*ends, *range(synced, ends[-1], 37)})):
        cut = image(killed, tmp_path / f"cut-{size}")
        # the file ends there, or is as it was before
        (cut / "journal-0").write_bytes(data[:size].ljust(len(data) if index % 2 else size, b"\0"))
        async with open_stepwise(cut, options=NO_CACHE) as store:
            assert await everything(store, "safe") == [b"safe %d" % number for number in range(3)]
            left = 3 + sum(end <= size for end in ends[1:])
            assert await everything(store, "lazy") == [b"lazy %d" % number for number in range(left)]
            ticket = store.submit(unit(append("lazy", b"new")))
            store.committer.drain()
            assert ticket.placements[0].base_offset == left
        shutil.rmtree(cut)


@pytest.mark.usefixtures("never_posted")
async def test_the_power_takes_what_was_posted_and_the_journal_has_it_still(tmp_path: Path, monkeypatch) -> None:
    """The database as it was at any time since it was synced, with the journal as it is: nothing that was promised is gone."""
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 4000)
    path, databases = tmp_path / "s", []

    def not_journal(name: str) -> bool:
        return not in_journal(name) and name != "committed"

    async with open_store(path, SMALL) as store:
        await create(store, "t")
        writer = store.committer.writer
        for number in range(120):
            await publish(store, "t", b"%d" % number)
            if number % 7 == 3 and writer.unposted and not store._loop._posting:
                store._loop._post_at = -1.0
                store._loop.wake()
                await until(lambda: not writer.unposted)
            databases.append((writer._posted, image(path, tmp_path / f"d{number}", not_journal)))
            # every database that is not older than what was synced last
            for since, database in databases[-12:]:
                if since < writer._posted:
                    continue
                failed = image(database, tmp_path / "failed")
                image(path, failed, lambda name: not not_journal(name))
                async with open_stepwise(failed, options=NO_CACHE) as found:
                    assert await everything(found, "t") == [b"%d" % n for n in range(number + 1)]
                shutil.rmtree(failed)


@pytest.mark.usefixtures("never_posted")
@pytest.mark.parametrize("first", ["read", "served", "begun"])
async def test_what_counts_on_what_the_power_has_taken_is_left_for_good(tmp_path: Path, first: str) -> None:
    """Nobody was told of either. What is stored from there on must not be taken for what it counts on."""
    path, failed = tmp_path / "s", tmp_path / "failed"
    async with open_store(path, SMALL) as store:
        await create(store, "t", **LAZY)
        await publish(store, "t", b"0")
        await store.submit(Unit(puts=[Put("c", b"k", b"v")])).wait()
        image(path, failed, lambda name: not in_journal(name))
        await store.submit(unit(append("t", bytes(100_000)))).wait()  # is in the database alone, and not synced
        await publish(store, "t", b"2")
        image(path, failed, in_journal)
        assert read_rest([failed / "journal-0", failed / "journal-1"], store.committer.writer.number - 1).frames
    if first == "read":
        with LogReader(failed) as reader:
            assert reader.bounds("t", 0) == (0, 1)
    elif first == "begun":  # a start that ended before it had a journal of its own
        kept = image(failed, tmp_path / "kept", in_journal)
        async with open_stepwise(failed, options=NO_CACHE):
            pass
        image(kept, failed)
    async with open_store(failed, SMALL) as store:
        for number in range(1, 4):
            assert (await publish(store, "t", b"%d" % number)).base_offset == number
        killed = image(failed, tmp_path / "killed")
    async with open_stepwise(killed, options=NO_CACHE) as store:
        assert await everything(store, "t") == [b"%d" % number for number in range(4)]


@pytest.mark.usefixtures("never_posted")
async def test_everything_else_takes_the_journal_along(tmp_path: Path) -> None:
    """In the order in which it was acknowledged, killed after each step."""
    path = tmp_path / "s"
    chance = random.Random(5)
    async with open_store(path, SMALL) as store:
        await create(store, "t", "u", **LAZY)
        counts, cursors = {"t": 0, "u": 0}, {}
        for step in range(60):
            what = chance.randrange(7)
            name = chance.choice(["t", "u"])
            if what < 4:
                await publish(store, name, b"%d" % counts[name])
                counts[name] += 1
            elif what == 4:
                cursors[name.encode()] = b"%d" % counts[name]
                await store.submit(Unit(puts=[Put("c", name.encode(), cursors[name.encode()])], synced=False)).wait()
            elif what == 5:
                await store.submit(unit(append(name, bytes(100_000)))).wait()
                counts[name] += 1
            else:
                await store.submit(Unit(deletes=[DropTopic(name)])).wait()
                await create(store, name, **LAZY)
                counts[name] = 0
                await store.submit(Unit(puts=[Put("c", name.encode(), b"0")])).wait()
                cursors[name.encode()] = b"0"
            await until(lambda: not (store._loop._busy or store._loop._carrying))  # a copy is not made in one moment
            killed = image(path, tmp_path / f"{step}")
            with LogReader(killed) as reader:
                assert {topic: reader.bounds(topic, 0) for topic in counts} == {t: (0, n) for t, n in counts.items()}
                assert dict(reader.rows("c")) == cursors
                assert sum(run.count for run in reader.read_chunks("t", 0)) == counts["t"]
            shutil.rmtree(killed)


@pytest.mark.usefixtures("never_posted")
async def test_a_cursor_never_says_more_than_the_log_has(tmp_path: Path) -> None:
    """Whatever the power takes: a row is in the database behind the records that it is about."""
    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t", **LAZY)
        for number in range(1, 6):
            await publish(store, "t", b"x")
            await store.submit(Unit(puts=[Put("c", b"at", b"%d" % number)], synced=False)).wait()
        killed = image(tmp_path / "s", tmp_path / "killed", lambda name: not in_journal(name) and name != "committed")
    with LogReader(killed) as reader:
        assert reader.bounds("t", 0)[1] == int(reader.get("c", b"at") or b"0") == 5


MARKS = "marks"


def marked(number: int, key: bytes, value: bytes | None, known: bytes | None, **others: Any) -> Unit:
    """A record, and a row that nobody reads before a start, on the condition that it was as it is known."""
    row, condition = Put(MARKS, key, value, at_start=True), Require(MARKS, key, known)
    return unit(append("t", b"%d" % number), puts=[row], requires=[condition], **others)


@pytest.mark.usefixtures("never_posted")
async def test_rows_that_nobody_reads_before_a_start_take_the_short_way(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t")
        writer = store.committer.writer
        await store.submit(marked(0, b"k", b"0", None)).wait()
        assert not writer.unposted  # nobody knew whether there is such a row
        for number in range(1, 20):
            await store.submit(marked(number, b"k", b"%d" % number, b"%d" % (number - 1))).wait()
        assert len(writer.unposted) == 19
        store.hold()
        tickets = [
            store.submit(one)
            for one in (
                marked(20, b"k", b"20", b"19"),
                marked(21, b"k", b"21", b"20"),  # as the one before it leaves it
                unit(
                    append("t", b"99"),
                    puts=[Put(MARKS, b"k", b"99", at_start=True), Put(MARKS, b"z", b"z", at_start=True)],
                    requires=[Require(MARKS, b"k", b"20")],
                ),
                marked(99, b"z", b"99", b"z"),  # as one that fails would have left it
                unit(append("t", b"22"), puts=[Put(MARKS, b"new", b"22", at_start=True)]),
                marked(23, b"new", None, b"22"),
            )
        ]
        store.release(1)
        await tickets[-1].wait()
        failed = [isinstance(ticket.error, ConditionFailed) for ticket in tickets]
        assert failed == [False, False, True, True, False, False]
        assert (len(writer.unposted), writer.unposted[-1].run.count) == (20, 4)  # all of them in one commit
        with pytest.raises(ConditionFailed):
            await store.submit(marked(99, b"k", b"99", b"20")).wait()
        killed = image(tmp_path / "s", tmp_path / "killed")
    for path in (killed, tmp_path / "s"):
        async with open_store(path, SMALL) as store:
            assert await everything(store, "t") == [b"%d" % number for number in range(24)]
            assert await store.scan(MARKS, b"", 10) == [(b"k", b"21")]
            await store.submit(marked(24, b"k", b"24", b"21")).wait()


@pytest.mark.usefixtures("never_posted")
async def test_the_power_takes_a_record_with_its_rows_or_neither(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t", **LAZY)
        for number in range(6):
            await store.submit(marked(number, b"k", b"%d" % (number + 1), b"%d" % number if number else None)).wait()
        assert len(store.committer.writer.unposted) == 5
        end = store.committer.writer.journal.position
        killed = image(tmp_path / "s", tmp_path / "killed")
    data = (killed / "journal-0").read_bytes()
    seen: set[int] = set()
    for size in range(journal.HEAD.size, end + 1, 13):
        cut = image(killed, tmp_path / "cut")
        (cut / "journal-0").write_bytes(data[:size])
        async with open_stepwise(cut, options=NO_CACHE) as store:
            left = len(await everything(store, "t"))
            assert await store.get(MARKS, b"k") == b"%d" % left
        shutil.rmtree(cut)
        seen.add(left)
    assert seen >= {1, 2, 3, 4, 5}


@pytest.mark.usefixtures("never_posted")
async def test_whatever_happens_between_rows_are_what_was_acknowledged_last(tmp_path: Path, monkeypatch) -> None:
    """Short and long ways in turns, conditions that hold and such that do not, posted in between, few at hand, killed each time."""
    monkeypatch.setattr(rows_at_hand, "MOST", 3)
    path, chance = tmp_path / "s", random.Random(7)
    ways = {True: 0, False: 0}
    async with open_store(path, SMALL) as store:
        await create(store, "t", **LAZY)
        writer = store.committer.writer
        rows: dict[bytes, bytes] = {}
        count = 0
        for step in range(120):
            key, value = b"%d" % chance.randrange(6), chance.choice([None, b"%d" % step])
            what = chance.randrange(8)
            if what == 0:
                store._loop._post_at = -1.0
                store._loop.wake()
                await until(lambda: not writer.unposted)
            elif what == 1:  # by somebody who does not say that it can wait
                await store.submit(Unit(puts=[Put(MARKS, key, value)], synced=False)).wait()
            elif what == 2:
                with pytest.raises(ConditionFailed):
                    await store.submit(marked(step, key, value, b"not this")).wait()
                continue
            else:
                await store.submit(marked(step, key, value, rows.get(key))).wait()
                count += 1
                ways[bool(writer.unposted)] += 1
            if what:
                rows.pop(key, None)
                rows |= {key: value} if value is not None else {}
            await until(lambda: not (store._loop._busy or store._loop._carrying))
            killed = image(path, tmp_path / "killed")
            with LogReader(killed) as reader:
                assert reader.bounds("t", 0) == (0, count)
                assert dict(reader.rows(MARKS)) == rows
            shutil.rmtree(killed)
    assert min(ways.values()) > 10


@pytest.mark.usefixtures("never_posted")
async def test_what_changes_a_topic_finds_its_records(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("gateway.store.sqlite.SWEEP_SECONDS", 0.01)
    async with open_store(tmp_path, NO_CACHE) as store:
        await create(store, "t", "gone", **LAZY)
        for number in range(10):
            await publish(store, "t", b"%d" % number)
            await publish(store, "gone", b"x")
        changed = TopicConfig(2, Durability.INTERVAL, 3600.0, retention_seconds=-1.0)
        await store.submit(Unit(alters=[AlterTopic("t", changed)], deletes=[DropTopic("gone")])).wait()
        await publish(store, "t", b"last")
        await until(lambda: store.topics["t"].partitions[0].start >= 10)
        assert store.topics["t"].partitions[0].end == 11
        assert (await publish(store, "t", b"next")).base_offset == 11


# --- what goes wrong ---


@pytest.mark.usefixtures("never_posted")
@pytest.mark.parametrize(("how", "error"), [("full", CommitFailed), ("part", CommitFailed), ("broken", OutcomeUnknown)])
async def test_a_disk_that_takes_no_frame_refuses_and_heals(tmp_path: Path, monkeypatch, how: str, error: type) -> None:
    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t", **LAZY)
        await publish(store, "t", b"a")
        pwrite = journal.os.pwrite

        def refused(file: int, data: bytes, at: int) -> int:
            if data.startswith(store.committer.writer.journal.active.salt):
                if how == "part":
                    return pwrite(file, data[:50], at)
                raise OSError(errno.ENOSPC if how == "full" else errno.EIO, "no")
            return pwrite(file, data, at)

        with monkeypatch.context() as patch:
            patch.setattr(journal.os, "pwrite", refused)
            with pytest.raises(error):
                await publish(store, "t", b"never")
            with pytest.raises(StoreReadOnly):
                await publish(store, "t", b"never")
        await until(lambda: store.health.writable)
        assert (await publish(store, "t", b"b")).base_offset == 1
        assert await everything(store, "t") == [b"a", b"b"]
        killed = image(tmp_path / "s", tmp_path / "killed")
    async with open_stepwise(killed, options=NO_CACHE) as store:
        assert await everything(store, "t") == [b"a", b"b"]


@pytest.mark.usefixtures("never_posted")
async def test_after_a_sync_that_failed_the_journal_is_believed_no_more(tmp_path: Path, monkeypatch) -> None:
    def fails(_file: int) -> None:
        raise OSError(errno.EIO, "no")

    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t")
        await publish(store, "t", b"a")
        with monkeypatch.context() as patch:
            patch.setattr(journal.os, "fdatasync", fails)
            with pytest.raises(OutcomeUnknown):
                await publish(store, "t", b"perhaps")
        await until(lambda: store.health.writable)
        writer = store.committer.writer
        assert not writer.takes_short
        assert (await publish(store, "t", b"b")).base_offset == 1
        assert not writer.unposted
        assert await everything(store, "t") == [b"a", b"b"]
        killed = image(tmp_path / "s", tmp_path / "killed")
    async with open_stepwise(killed, options=NO_CACHE) as store:
        assert await everything(store, "t") == [b"a", b"b"]


@pytest.mark.usefixtures("never_posted")
async def test_a_database_that_takes_nothing_leaves_it_in_the_journal(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t", **LAZY)
        await publish(store, "t", b"a")
        writer = store.committer.writer
        writer.connection.execute("PRAGMA query_only=ON")
        with pytest.raises(StoreError):
            await store.submit(unit(append("t", bytes(100_000)))).wait()
        assert len(writer.unposted) == 1
        assert await everything(store, "t") == [b"a"]
        killed = image(tmp_path / "s", tmp_path / "killed")
        writer.connection.execute("PRAGMA query_only=OFF")
        await until(lambda: store.health.writable)
        assert not writer.unposted
        assert (await publish(store, "t", b"b")).base_offset == 1
    for path in (killed, tmp_path / "s"):
        async with open_stepwise(path, options=NO_CACHE) as store:
            assert (await everything(store, "t"))[:1] == [b"a"]


@pytest.mark.usefixtures("never_posted")
async def test_damage_in_the_journal_is_named_and_salvaged(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t")
        for number in range(6):
            await publish(store, "t", b"value %d" % number)
        killed = image(tmp_path / "s", tmp_path / "killed")
    data = (killed / "journal-0").read_bytes()
    (killed / "journal-0").write_bytes(data.replace(b"value 3", b"value x"))
    with pytest.raises(StoreDamaged, match="journal"):
        async with open_store(killed, SMALL):
            pass
    with LogReader(killed) as reader, pytest.raises(StoreError, match="journal"):
        reader.topics()
    found = salvage(killed)
    assert "journal" in found.notes[-1]
    assert found.lost_commits == 3
    salvage(killed, accept_loss=True)
    assert not salvage(killed).notes
    assert (killed / "journal-0.damaged-1").exists()
    async with open_store(killed, SMALL) as store:
        assert await everything(store, "t") == [b"value %d" % number for number in range(3)]
        assert (await publish(store, "t", b"new")).base_offset == 3


@pytest.mark.usefixtures("never_posted")
async def test_a_journal_that_is_gone_is_missed(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t")
        await publish(store, "t", b"a")
        killed = image(tmp_path / "s", tmp_path / "killed", lambda name: not in_journal(name))
    with pytest.raises(StoreDamaged, match="lost its last 1 commits"):
        async with open_store(killed, SMALL):
            pass


@pytest.mark.usefixtures("never_posted")
async def test_a_salvaged_database_gets_what_the_journal_has(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t", "u")
        await store.submit(unit(append("u", b"bad" * 40_000))).wait()
        store.committer.writer.checkpoint()
        for number in range(5):
            await publish(store, "t", b"%d" % number)
            await publish(store, "u", b"%d" % number)
        killed = image(tmp_path / "s", tmp_path / "killed")
    whole = bytearray((killed / "log.sqlite").read_bytes())
    with closing(sqlite3.connect(killed / "log.sqlite")) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'rows'").fetchone()
    whole[(root - 1) * 16384 : (root - 1) * 16384 + 200] = bytes(200)
    (killed / "log.sqlite").write_bytes(whole)
    found = salvage(killed, accept_loss=True)
    assert found.rebuilt is not None
    async with open_store(killed, SMALL) as store:
        assert await everything(store, "t") == [b"%d" % number for number in range(5)]
        assert (await everything(store, "u"))[1:] == [b"%d" % number for number in range(5)]


# --- who reads by the path ---


async def test_who_reads_by_the_path_sees_what_was_acknowledged_before_he_asked(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await create(store, "t", **LAZY)
        with LogReader(tmp_path) as reader:
            for number in range(1, 20):
                await publish(store, "t", b"x")
                assert await trio.to_thread.run_sync(reader.bounds, "t", 0) == (0, number)


@pytest.mark.usefixtures("never_posted")
async def test_who_finds_nobody_serving_brings_it_in(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t")
        await publish(store, "t", b"a")
        killed = image(tmp_path / "s", tmp_path / "killed")
        shutil.rmtree(tmp_path / "killed" / "nothing", ignore_errors=True)
    with LogReader(killed) as reader:
        assert reader.bounds("t", 0) == (0, 1)
        assert [run.columns.values() for run in reader.read_chunks("t", 0)] == [[b"a"]]


async def test_a_program_that_knows_of_no_journal_refuses_a_store_that_was_not_closed(tmp_path: Path) -> None:
    def layout() -> int:
        with closing(sqlite3.connect(tmp_path / "log.sqlite")) as connection:
            return connection.execute("SELECT value FROM meta WHERE name = 'layout'").fetchone()[0]

    async with open_store(tmp_path, SMALL) as store:
        await create(store, "t")
        assert await trio.to_thread.run_sync(layout) == 2
    assert layout() == 1
    assert not (tmp_path / "journal-0").exists()


async def test_it_begins_anew_while_units_go_on_and_is_never_larger(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 20_000)
    async with open_store(tmp_path / "s", SMALL) as store:
        made = [MakeTopic("t", TopicConfig(durability=Durability.NONE)), MakeTopic("safe", TopicConfig())]
        await store.submit(Unit(creates=made)).wait()
        for number in range(300):
            await publish(store, "t", bytes(1000))
            if number % 10 == 0:
                await publish(store, "safe", b"%d" % number)
            assert sum(path.stat().st_size for path in (tmp_path / "s").glob("journal-*")) < 50_000
        killed = image(tmp_path / "s", tmp_path / "killed") if not store._loop._posting else None
    if killed is not None:
        async with open_stepwise(killed, options=NO_CACHE) as store:
            assert len(await everything(store, "t")) == 300


async def test_the_mark_is_where_the_disk_is_when_nobody_commits_and_never_far_behind(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(writer_module, "MARK_BEHIND", 10)
    async with open_store(tmp_path / "s", SMALL) as store:
        await create(store, "t", durability=Durability.INTERVAL, interval=0.0002)
        writer = store.committer.writer
        for number in range(100):
            await publish(store, "t", b"%d" % number)
            assert writer.synced - writer.mark.read() <= 10
        await until(lambda: writer.mark.read() == writer.number)
