"""Retention, merging and clearing away: what goes, what stays, that readers notice nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.envelope import Run
from gateway.errors import OffsetOutOfRange
from gateway.store.chunk import decode
from gateway.store.interface import AlterTopic, DropTopic, TopicConfig, Unit
from gateway.store.sqlite import StoreOptions
from tests.store.kit import (
    MEMORY,
    NO_CACHE,
    SMALL,
    START_MS,
    Clock,
    append,
    create,
    everything,
    open_stepwise,
    publish,
    read,
    unit,
    until,
)


def bounds(store, topic: str, partition: int = 0) -> tuple[int, int]:
    state = store.topics[topic].partitions[partition]
    return state.start, state.end


def chunks(store) -> int:
    return store._pool.direct.execute("SELECT count(*) FROM chunks").fetchone()[0]


async def in_steps(store, topic: str, *values: bytes, **others) -> None:
    """One commit, hence one chunk, each."""
    for value in values:
        await publish(store, topic, value, **others)


def stored_bytes(store) -> int:
    return store._pool.direct.execute("SELECT sum(size) FROM chunks").fetchone()[0]


@pytest.fixture(params=[{}, MEMORY], ids=["disk", "memory"])
def kind(request: pytest.FixtureRequest) -> dict:
    return request.param


async def settle(store) -> None:
    """Let retention do what is due: at once, or in the background."""
    store.maintain() if store.committer.mode.value != "thread" else store.sweep()


async def test_old_records_go(opener, clock: Clock, kind: dict) -> None:
    async with opener() as store:
        await create(store, "t", retention_seconds=10.0, **kind)
        await create(store, "forever", **kind)
        for _ in range(5):
            await in_steps(store, "t", b"a", b"b")
            await publish(store, "forever", b"x")
            clock.ms += 4000
        gone: list[tuple[str, int]] = []
        store.on_visible(gone.extend)
        await settle(store)
        await until(lambda: bounds(store, "t") == (6, 10))  # those of 20, 16 and 12 seconds ago
        assert gone
        assert set(gone) == {("t", 0)}
        with pytest.raises(OffsetOutOfRange) as caught:
            await read(store, "t", 5)
        assert (caught.value.first, caught.value.next_offset) == (6, 10)
        assert await everything(store, "t", 6) == [b"a", b"b"] * 2
        clock.ms += 100_000
        await settle(store)
        await until(lambda: bounds(store, "t") == (10, 10))
        assert (await publish(store, "t", b"new")).base_offset == 10
        assert bounds(store, "forever") == (0, 5)


async def test_an_emptied_partition_remembers_where_it_was(opener, clock: Clock) -> None:
    async with opener() as store:
        await create(store, "t", retention_seconds=1.0)
        await in_steps(store, "t", b"a", b"b", b"c")
        clock.ms += 5000
        await settle(store)
        await until(lambda: bounds(store, "t") == (3, 3))
    clock.ms -= 3000
    async with opener() as store:
        assert bounds(store, "t") == (3, 3)
        assert store.topics["t"].partitions[0].bytes == 0
        placement = await publish(store, "t", b"d")
        assert placement.base_offset == 3
        assert placement.timestamp_ms >= START_MS


async def test_a_topic_that_is_too_big_loses_its_oldest(opener) -> None:
    async with opener() as store:
        await create(store, "t", partitions=2, retention_bytes=50_000)
        for number in range(20):
            await publish(store, "t", bytes(5000), partition=number % 2)
        if store.committer.mode.value != "thread":
            store.maintain()
        await until(lambda: sum(p.bytes for p in store.topics["t"].partitions) <= 50_000)
        assert all(p.end - p.start in {4, 5} for p in store.topics["t"].partitions)
        for partition in (0, 1):
            start, end = bounds(store, "t", partition)
            assert end == 10
            assert len(await everything(store, "t", start, partition)) == end - start
        before = [p.bytes for p in store.topics["t"].partitions]
    async with opener() as store:
        assert [p.bytes for p in store.topics["t"].partitions] == before


async def test_the_newest_record_stays_whatever_its_size(tmp_path: Path) -> None:
    async with open_stepwise(tmp_path) as store:
        store.submit(Unit(creates=[]))
        ticket = store.submit(unit(append("t", bytes(9000)), creates=_creates("t", retention_bytes=100)))
        store.committer.drain()
        store.maintain()
        assert ticket.error is None
        assert bounds(store, "t") == (0, 1)
        store.submit(unit(append("t", bytes(9000))))
        store.committer.drain()
        store.maintain()
        assert bounds(store, "t") == (1, 2)


def _creates(topic: str, **config):
    from gateway.store.interface import MakeTopic

    return [MakeTopic(topic, TopicConfig(**config))]


async def test_a_cursor_holds_retention_up_to_the_hard_limit(tmp_path: Path, clock: Clock) -> None:
    cursor = 3
    async with open_stepwise(tmp_path, clock) as store:
        store.set_retention_floor(lambda topic, partition: cursor if (topic, partition) == ("t", 0) else None)
        store.submit(Unit(creates=_creates("t", retention_seconds=10.0)))
        for _ in range(6):
            store.submit(unit(append("t", b"x")))
            store.committer.drain()
            clock.ms += 1000
        clock.ms += 9000  # all but the last are too old: of 15 to 10 seconds ago
        store.maintain()
        assert bounds(store, "t") == (3, 6)
        cursor = 4
        store.maintain()
        assert bounds(store, "t") == (4, 6)
        clock.ms += 9000  # the next one is exactly twice as old as it may be
        store.maintain()
        assert bounds(store, "t") == (4, 6)
        clock.ms += 1
        store.maintain()
        assert bounds(store, "t") == (5, 6)


async def test_a_cursor_holds_a_big_topic_up_to_twice_its_size(tmp_path: Path) -> None:
    async with open_stepwise(tmp_path) as store:
        store.set_retention_floor(lambda _topic, _partition: 0)
        store.submit(Unit(creates=_creates("t", retention_bytes=50_000)))
        for _ in range(12):
            store.submit(unit(append("t", bytes(5000))))
            store.committer.drain()
            store.maintain()
        assert bounds(store, "t") == (0, 12)
        for _ in range(12):
            store.submit(unit(append("t", bytes(5000))))
            store.committer.drain()
            store.maintain()
        start, end = bounds(store, "t")
        assert end == 24
        assert 18 <= end - start <= 20


async def test_retention_can_be_changed(tmp_path: Path, clock: Clock) -> None:
    async with open_stepwise(tmp_path, clock) as store:
        store.submit(Unit(creates=_creates("t")))
        store.submit(unit(append("t", b"x")))
        store.committer.drain()
        clock.ms += 10**9
        store.maintain()
        assert bounds(store, "t") == (0, 1)
        store.submit(Unit(alters=[AlterTopic("t", TopicConfig(retention_seconds=5.0))]))
        store.committer.drain()
        store.maintain()
        assert bounds(store, "t") == (1, 1)


async def test_memory_topics_are_bounded_by_default(opener) -> None:
    options = StoreOptions(memory_topics=100_000, page_cache=1 << 20, free_space_floor=0)
    async with opener(options=options) as store:
        await create(store, "a", "b", **MEMORY)
        await create(store, "own", retention_bytes=20_000, **MEMORY)
        await publish(store, "a", b"first")
        await publish(store, "own", b"first")
        for number in range(100):
            await publish(store, "b", bytes(2000))
            await publish(store, "own", bytes(2000 + number))
        assert bounds(store, "a") == (1, 1)  # the oldest of all goes first
        start, end = bounds(store, "b")
        assert 30 <= end - start <= 40
        start, end = bounds(store, "own")
        assert 5 <= end - start <= 8
        assert len(await everything(store, "own", start)) == end - start
        for config in (TopicConfig(), TopicConfig(retention_bytes=10_000)):
            config = TopicConfig(durability=MEMORY["durability"], retention_bytes=config.retention_bytes)
            await store.submit(Unit(alters=[AlterTopic("own", config)])).wait()
            await publish(store, "own", b"x")
        start, end = bounds(store, "own")
        assert len(await everything(store, "own", start)) == end - start <= 5


# --- merging ---


@pytest.fixture
def merging_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a quarter of the chunks that it takes otherwise."""
    monkeypatch.setattr("gateway.store.visible.MERGE_AFTER", 256)
    monkeypatch.setattr("gateway.store.maintenance.MERGE_AFTER", 256)


@pytest.mark.usefixtures("merging_early")
@pytest.mark.parametrize("options", [NO_CACHE, SMALL], ids=["from disk", "from memory"])
async def test_small_chunks_are_merged_and_read_the_same(opener, clock: Clock, options: StoreOptions) -> None:
    async with opener(options=options) as store:
        await create(store, "t", "other")
        values = [b"%d" % number for number in range(700)]
        for start in range(0, 700, 2):
            pair = [append("t", values[start], keys=[b"k"]), append("t", values[start + 1])]
            await store.submit(unit(*pair, append("other", b"x"))).wait()
            clock.ms += 1
        if store.committer.mode.value != "thread":
            store.maintain()
        await until(lambda: chunks(store) < 300)
        assert await everything(store, "t") == values
        assert await everything(store, "t", 333) == values[333:]
        assert await store.offset_for_time("t", 0, START_MS + 100) == 200
        got = [envelope for run in (await read(store, "t", 98, 4)).runs for envelope in run.envelopes()]
        assert [(e.offset, e.key, e.timestamp_ms) for e in got] == [
            (98, b"k", START_MS + 49),
            (99, None, START_MS + 49),
            (100, b"k", START_MS + 50),
            (101, None, START_MS + 50),
        ]
        await until(lambda: not store.committer.writer.unposted)  # there it takes less room
        before = store.topics["t"].partitions[0].bytes
    async with opener(options=NO_CACHE) as store:
        assert await everything(store, "t") == values
        assert store.topics["t"].partitions[0].bytes == before
        assert (await publish(store, "t", b"next")).base_offset == 700


@pytest.mark.usefixtures("merging_early")
@pytest.mark.parametrize("options", [NO_CACHE, SMALL], ids=["from disk", "from memory"])
async def test_merged_chunks_are_retained_and_trimmed_like_others(
    tmp_path: Path, clock: Clock, options: StoreOptions
) -> None:
    async with open_stepwise(tmp_path, clock, options) as store:
        store.submit(Unit(creates=_creates("t", retention_bytes=40_000)))
        for _ in range(2000):
            store.submit(unit(append("t", b"x")))
            store.committer.step()
            store.committer.step()
            if _ % 100 == 0:
                store.maintain()
        store.maintain()
        start, end = bounds(store, "t")
        assert end == 2000
        assert 0 < start < 2000
        assert store.topics["t"].partitions[0].bytes <= 40_000
        assert store.topics["t"].partitions[0].bytes == stored_bytes(store)
        assert len(await everything(store, "t", start)) == end - start
    async with open_stepwise(tmp_path, clock, NO_CACHE) as store:
        assert bounds(store, "t") == (start, end)
        assert store.topics["t"].partitions[0].bytes == stored_bytes(store)


@pytest.mark.usefixtures("merging_early")
async def test_what_is_in_memory_is_merged_without_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a chunk that the disk has spoilt meanwhile is whole again."""
    read_again: list[int] = []

    def noted(blob: bytes, topic: str, partition: int, base: int, count: int) -> Run:
        read_again.append(base)
        return decode(blob, topic, partition, base, count)

    monkeypatch.setattr("gateway.store.maintenance.decode", noted)
    values = [b"%d" % number for number in range(600)]
    async with open_stepwise(tmp_path) as store:
        store.submit(Unit(creates=_creates("t")))
        for value in values:
            store.submit(unit(append("t", value)))
            store.committer.step()
        connection = store.committer.writer.connection
        connection.execute("UPDATE chunks SET data = zeroblob(size) WHERE id = (SELECT max(id) - 500 FROM chunks)")
        store.maintain()
        assert chunks(store) < 300
        store.maintain()
    assert read_again == []
    async with open_stepwise(tmp_path, options=NO_CACHE) as store:
        assert await everything(store, "t") == values


@pytest.mark.usefixtures("merging_early")
async def test_what_is_not_on_disk_as_it_is_in_memory_is_read(tmp_path: Path) -> None:
    """A chunk is gone: what is left stays as it is, and nothing is made up."""
    async with open_stepwise(tmp_path) as store:
        store.submit(Unit(creates=_creates("t")))
        for number in range(300):
            store.submit(unit(append("t", b"%d" % number)))
            store.committer.step()
        store.committer.writer.connection.execute("DELETE FROM chunks WHERE id & 0xffff = 100")
        store.maintain()
        rows = store._pool.direct.execute("SELECT id & 0xffff, count FROM chunks ORDER BY id").fetchall()
        assert all(not base <= 100 < base + count for base, count in rows)
        assert sum(count for _base, count in rows) == 299


async def test_big_chunks_are_left_alone(tmp_path: Path) -> None:
    async with open_stepwise(tmp_path) as store:
        store.submit(Unit(creates=_creates("t")))
        for _ in range(300):
            store.submit(unit(append("t", bytes(40_000))))
            store.committer.step()
            store.committer.step()
        before = chunks(store)
        store.maintain()
        assert chunks(store) == before == 300


# --- clearing away ---


async def test_chunks_of_a_deleted_topic_go_and_its_slot_is_used_again(opener) -> None:
    async with opener() as store:
        await create(store, "t", "other", partitions=2)
        for _ in range(100):
            await store.submit(unit(append("t", b"x"), append("t", b"y", partition=1), append("other", b"z"))).wait()
        await store.submit(Unit(deletes=[DropTopic("t")])).wait()
        slots = [log.slot for log in store.topics["other"].logs]
        kept = f"SELECT count(*) FROM chunks WHERE id >> 43 IN ({slots[0]}, {slots[1]})"
        (of_other,) = store._pool.direct.execute(kept).fetchone()
        assert chunks(store) > of_other
        await settle(store)
        await until(lambda: chunks(store) == of_other)
        await until(lambda: not store._visible.catalogue.dead)
        assert len(await everything(store, "other")) == 100
        slots = store._pool.direct.execute("SELECT count(*) FROM partitions").fetchone()
        assert slots == (2,)


async def test_clearing_away_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with open_stepwise(tmp_path) as store:
        store.submit(unit(append("t", b"x"), creates=_creates("t")))
        store.submit(Unit(deletes=[DropTopic("t")]))
        store.committer.drain()
        assert chunks(store) == 1
    async with open_stepwise(tmp_path) as store:
        store.submit(unit(append("t", b"new"), creates=_creates("t")))
        store.committer.drain()
        store.maintain()
        assert chunks(store) == 1
        assert await everything(store, "t") == [b"new"]
