"""What every store promises: offsets, units, tickets, conditions, reading, time, tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.envelope import BatchMeta, Columns, Delivery, Origin
from gateway.errors import (
    ConditionFailed,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
    Unsupported,
)
from gateway.store.interface import (
    AlterTopic,
    Append,
    DropTopic,
    MakeTopic,
    Put,
    Require,
    TopicConfig,
    Unit,
    read_placements,
)
from tests.kafka.fixtures import KAFKA, ON_KAFKA
from tests.store.kit import (
    IMPLEMENTATIONS,
    MEMORY,
    SMALL,
    START_MS,
    Clock,
    append,
    create,
    create_in_memory,
    everything,
    open_on_kafka,
    publish,
    read,
    unit,
    until,
)


@pytest.fixture(params=[*IMPLEMENTATIONS, ON_KAFKA])
def opener(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Callable[..., Any]:
    """Opens the store of this test; again after it was closed."""
    if request.param == KAFKA:
        running, prefix = request.getfixturevalue("kafka"), request.getfixturevalue("topics")
        return partial(open_on_kafka, running.brokers, prefix, options=SMALL, now_ms=clock)
    return partial(IMPLEMENTATIONS[request.param], tmp_path / "store", options=SMALL, now_ms=clock)


async def test_offsets_follow_each_other_and_times_are_the_stores(opener, clock: Clock) -> None:
    async with opener() as store:
        await create(store, "t")
        assert await publish(store, "t", b"a", b"b") == type(await publish(store, "t"))(0, START_MS)
        clock.ms += 5
        assert (await publish(store, "t", b"c")).base_offset == 2
        result = await read(store, "t")
        assert [time for run in result.runs for time in run.times] == [START_MS, START_MS, START_MS + 5]
        assert result.next_offset == 3
        assert await everything(store, "t") == [b"a", b"b", b"c"]


async def test_store_time_never_goes_back(opener, clock: Clock) -> None:
    async with opener() as store:
        await create(store, "t")
        for topic in ("t", "m") if await create_in_memory(store, "m") else ("t",):
            first = await publish(store, topic, b"a")
            clock.ms -= 1000
            assert (await publish(store, topic, b"b")).timestamp_ms == first.timestamp_ms
            clock.ms += 1000


async def test_everything_about_a_message_comes_back(reading) -> None:
    other = BatchMeta(b"x" * 16, Origin("p", "l"), "r2", Delivery.AT_MOST_ONCE)
    async with reading() as store:
        await create(store, "t")
        headers = (("h", b"1"), ("h", b"2"))
        one = append("t", b"v1", b"", keys=[b"k", None], headers=[headers, ()], expires=[0, 2**42])
        two = append("t", b"v3", meta=other)
        three = append("t", b"v4", b"v5", b"v6", indexes=[3, 4, 9])
        await store.submit(unit(one, two, three)).wait()
        got = [envelope for run in (await read(store, "t")).runs for envelope in run.envelopes()]
    assert [(e.offset, e.key, e.value, e.headers, e.expires_ms) for e in got] == [
        (0, b"k", b"v1", headers, 0),
        (1, None, b"", (), 2**42),
        (2, None, b"v3", (), 0),
        (3, None, b"v4", (), 0),
        (4, None, b"v5", (), 0),
        (5, None, b"v6", (), 0),
    ]
    assert got[2].origin == other.origin
    assert (got[2].route, got[2].delivery, got[2].id) == ("r2", Delivery.AT_MOST_ONCE, b"x" * 16 + bytes(4))
    assert [int.from_bytes(e.id[16:], "big") for e in got] == [0, 1, 0, 3, 4, 9]


async def test_a_unit_over_topics_applies_as_a_whole(opener) -> None:
    async with opener() as store:
        await create(store, "a", "b")
        placements = await store.submit(
            unit(append("a", b"1"), append("b", b"2", b"3"), append("a", b"4"), puts=[Put("t", b"k", b"v")])
        ).wait()
        assert [p.base_offset for p in placements] == [0, 0, 1]
        assert await store.get("t", b"k") == b"v"
        for bad in (append("missing", b"x"), append("b", b"x", partition=1)):
            ticket = store.submit(unit(append("a", b"lost"), bad, puts=[Put("t", b"k", b"lost")]))
            with pytest.raises((UnknownTopic, UnknownPartition)):
                await ticket.wait()
        assert await everything(store, "a") == [b"1", b"4"]
        assert await store.get("t", b"k") == b"v"
        assert await everything(store, "b") == [b"2", b"3"]


async def test_a_condition_fails_its_unit_alone(opener) -> None:
    async with opener() as store:
        await create(store, "t")
        first = store.submit(unit(append("t", b"1"), requires=[Require("s", b"k", None)], puts=[Put("s", b"k", b"1")]))
        again = store.submit(unit(append("t", b"2"), requires=[Require("s", b"k", None)]))
        third = store.submit(unit(append("t", b"3"), requires=[Require("s", b"k", b"1")], puts=[Put("s", b"k", None)]))
        fourth = store.submit(unit(append("t", b"4"), requires=[Require("s", b"k", None)]))
        await first.wait()
        with pytest.raises(ConditionFailed):
            await again.wait()
        await third.wait()
        await fourth.wait()
        assert await everything(store, "t") == [b"1", b"3", b"4"]


async def test_tickets_finish_in_order_after_they_are_visible(opener) -> None:
    seen: list[object] = []
    async with opener() as store:
        await create(store, "a", "b")
        store.on_visible(lambda keys: seen.extend(sorted(keys)))
        for number, topic in enumerate("abab"):
            ticket = store.submit(unit(append(topic, b"x")))
            ticket.on_done(lambda t, number=number: seen.append((number, t.error, store.topics["a"].partitions[0].end)))
        await ticket.wait()
    numbers = [entry[0] for entry in seen if isinstance(entry[0], int)]
    assert [n for n in numbers if n % 2 == 0] + [n for n in numbers if n % 2] == [0, 2, 1, 3]  # topic by topic
    assert numbers == sorted(numbers) or not store.capabilities.single_writer
    assert seen.index(("a", 0)) < seen.index(next(entry for entry in seen if entry[0] == 0))
    assert all(entry[1] is None and entry[2] > entry[0] // 2 for entry in seen if isinstance(entry[0], int))


async def test_a_ticket_calls_back_at_once_when_it_is_done(opener) -> None:
    async with opener() as store:
        ticket = store.submit(Unit(creates=[MakeTopic("t", TopicConfig())]))
        await ticket.wait()
        called: list[object] = []
        ticket.on_done(called.append)
        assert called == [ticket]


async def test_creating_what_exists_keeps_it(opener) -> None:
    async with opener() as store:
        await create(store, "t", partitions=2)
        epoch = store.topics["t"].epoch
        await publish(store, "t", b"x")
        await create(store, "t", partitions=5)
        assert (store.topics["t"].epoch, len(store.topics["t"].partitions)) == (epoch, 2)
        assert await everything(store, "t") == [b"x"]


async def test_a_unit_may_create_what_it_appends_to(opener) -> None:
    async with opener() as store:
        await store.submit(unit(append("t", b"x", partition=1), creates=[MakeTopic("t", TopicConfig(2))])).wait()
        assert await everything(store, "t", partition=1) == [b"x"]
        with pytest.raises(InvalidRequest):
            await store.submit(Unit(creates=[MakeTopic("u", TopicConfig(0))])).wait()


async def test_partitions_grow_and_never_shrink(opener) -> None:
    async with opener() as store:
        await create(store, "t", partitions=2)
        await store.submit(Unit(alters=[AlterTopic("t", TopicConfig(3, retention_seconds=60.0))])).wait()
        await publish(store, "t", b"x", partition=2)
        for bad in (TopicConfig(2), TopicConfig(3, **MEMORY)):
            with pytest.raises((InvalidRequest, Unsupported)):
                await store.submit(Unit(alters=[AlterTopic("t", bad)])).wait()
        with pytest.raises(UnknownTopic):
            await store.submit(Unit(alters=[AlterTopic("nope", TopicConfig(1))])).wait()
    async with opener() as store:
        assert store.topics["t"].config == TopicConfig(3, retention_seconds=60.0)
        assert await everything(store, "t", partition=2) == [b"x"]


async def test_a_topic_made_again_is_a_new_one(opener) -> None:
    async with opener() as store:
        await create(store, "t", "other")
        await publish(store, "other", b"kept")
        epochs = []
        for value in (b"1", b"2", b"3"):
            await store.submit(unit(append("t", value), creates=[MakeTopic("t", TopicConfig())])).wait()
            assert await everything(store, "t") == [value]
            epochs.append(store.topics["t"].epoch)
            await store.submit(Unit(deletes=[DropTopic("t")])).wait()
            assert "t" not in store.topics
            with pytest.raises(UnknownTopic):
                await publish(store, "t", b"x")
            with pytest.raises(UnknownTopic):
                await read(store, "t")
        assert len(set(epochs)) == 3
        with pytest.raises(UnknownTopic):
            await store.submit(Unit(deletes=[DropTopic("t")])).wait()
    async with opener() as store:
        assert list(store.topics) == ["other"]
        await create(store, "t")
        assert store.topics["t"].epoch not in epochs
        assert await everything(store, "other") == [b"kept"]


async def test_deleting_and_making_again_in_one_go(opener) -> None:
    async with opener() as store:
        await create(store, "t")
        tickets = [
            store.submit(unit(append("t", b"old"))),
            store.submit(Unit(deletes=[DropTopic("t")])),
            store.submit(unit(append("t", b"new"), creates=[MakeTopic("t", TopicConfig())])),
        ]
        for ticket in tickets:
            await ticket.wait()
        assert await everything(store, "t") == [b"new"]


async def test_what_was_stored_is_there_after_a_restart(reading) -> None:
    async with reading() as store:
        await create(store, "t", partitions=2, retention_bytes=10**9)
        for number in range(20):
            await publish(store, "t", b"%d" % number, partition=number % 2)
        await store.submit(Unit(puts=[Put("a", b"k", b"1"), Put("b", b"k", b"2"), Put("a", b"l", b"3")])).wait()
        await store.submit(Unit(puts=[Put("a", b"l", None)])).wait()
        before = store.topics["t"]
    async with reading() as store:
        after = store.topics["t"]
        assert (after.name, after.epoch, after.config) == (before.name, before.epoch, before.config)
        for mine, theirs in zip(after.partitions, before.partitions, strict=True):
            assert (mine.start, mine.end) == (theirs.start, theirs.end)
            if store.capabilities.single_writer:  # who alone writes knows these
                assert (mine.bytes, mine.last_time_ms) == (theirs.bytes, theirs.last_time_ms)
        assert await everything(store, "t", partition=1) == [b"%d" % number for number in range(1, 20, 2)]
        assert dict(store.table("a")) == {b"k": b"1"}
        assert (await publish(store, "t", b"x", partition=1)).base_offset == 10


# --- reading ---


async def test_limits_of_a_read(reading) -> None:
    async with reading() as store:
        await create(store, "t")
        await publish(store, "t", *[b"12345"] * 6)
        await publish(store, "t", *[b"12345"] * 4)

        async def taken(offset: int, messages: int, size: int) -> tuple[int, int]:
            result = await read(store, "t", offset, messages, size)
            return sum(run.count for run in result.runs), result.next_offset

        assert await taken(0, 100, 1000) == (10, 10)
        assert await taken(0, 4, 1000) == (4, 4)
        assert await taken(4, 4, 1000) == (4, 8)
        assert await taken(0, 100, 15) == (3, 3)
        assert await taken(0, 100, 14) == (2, 2)
        assert await taken(5, 100, 12) == (2, 7)
        assert await taken(3, 100, 1) == (1, 4)  # the first record always fits
        assert await taken(3, 100, 0) == (1, 4)
        assert await taken(3, 0, 1000) == (0, 3)
        assert await taken(10, 100, 1000) == (0, 10)
        assert await taken(99, 100, 1000) == (0, 99)


async def test_reading_in_pieces_gives_the_whole(reading) -> None:
    async with reading() as store:
        await create(store, "t")
        values = [b"%d" % number for number in range(300)]
        for start in range(0, 300, 60):
            await publish(store, "t", *values[start : start + 60])
        got: list[bytes] = []
        offset = 0
        while offset < 300:
            result = await read(store, "t", offset, 7)
            got += [value for run in result.runs for value in run.columns.values()]
            offset = result.next_offset
        assert got == values


async def test_what_is_recent_is_served_without_waiting(opener) -> None:
    async with opener() as store:
        await create(store, "t")
        store.watch("t")
        await until(lambda: store.current("t"))
        await publish(store, "t", b"a", b"b")
        await until(lambda: store.read_cached("t", 0, 1, 10, 100, 0) is not None)
        cached = store.read_cached("t", 0, 1, 10, 100, 0)
        assert [run.columns.values() for run in cached.runs] == [[b"b"]]
        assert store.read_cached("t", 0, 2, 10, 100, 0).next_offset == 2
        assert store.read_cached("nope", 0, 0, 10, 100, 0) is None
        assert store.read_cached("t", 5, 0, 10, 100, 0) is None
        store.unwatch("t")


async def test_the_end_of_a_log_is_in_memory_once_it_was_read(opener) -> None:
    async with opener() as store:
        await create(store, "t")
        for number in range(10):
            await publish(store, "t", b"%d" % number)
    async with opener() as store:
        if not store.capabilities.single_writer:
            return  # what others have written since nobody knows: see who watches
        assert store.read_cached("t", 0, 9, 10, 100, 0) is None
        assert (await read(store, "t", 9)).next_offset == 10
        for value in (b"9", b"10"):
            cached = store.read_cached("t", 0, int(value), 10, 100, 0)
            assert next(v for run in cached.runs for v in run.columns.values()) == value
            await publish(store, "t", b"%d" % (int(value) + 1))
        assert await everything(store, "t") == [b"%d" % number for number in range(12)]


async def test_expired_records_are_passed_over(reading) -> None:
    async with reading() as store:
        await create(store, "t")
        await publish(store, "t", b"a", b"b", b"c", b"d", expires=[0, 10, 10, 30])
        await publish(store, "t", b"e", b"f", expires=[10, 10])
        await publish(store, "t", b"g")

        async def at(now: int, offset: int = 0, messages: int = 100) -> tuple[list[bytes], int, int]:
            result = await read(store, "t", offset, messages, now=now)
            return [v for run in result.runs for v in run.columns.values()], result.next_offset, result.expired

        assert await at(9) == ([b"a", b"b", b"c", b"d", b"e", b"f", b"g"], 7, 0)
        assert await at(10) == ([b"a", b"d", b"g"], 7, 4)
        assert await at(30) == ([b"a", b"g"], 7, 5)
        assert await at(30, 1, 1) == ([b"g"], 7, 5)
        assert await at(10, 0, 2) == ([b"a", b"d"], 4, 2)
        assert await at(10, 4, 1) == ([b"g"], 7, 2)


async def test_wrong_questions_are_refused(opener) -> None:
    async with opener() as store:
        await create(store, "t")
        with pytest.raises(UnknownTopic):
            await read(store, "nope")
        for partition in (1, -1):
            with pytest.raises(UnknownPartition):
                await read(store, "t", partition=partition)
            with pytest.raises(UnknownPartition):
                await publish(store, "t", b"x", partition=partition)
        with pytest.raises(UnknownTopic):
            await store.offset_for_time("nope", 0, 0)
        with pytest.raises(OffsetOutOfRange):
            await read(store, "t", -1)


async def test_big_appends_are_cut_into_chunks_and_stay_contiguous(reading) -> None:
    async with reading() as store:
        await create(store, "t")
        values = [b"%d" % number for number in range(10_000)]
        placement = await publish(store, "t", *values)
        assert placement.base_offset == 0
        big = [bytes([number]) * 700_000 for number in range(4)]
        assert (await publish(store, "t", *big)).base_offset == 10_000
        assert await everything(store, "t") == values + big
        result = await read(store, "t", 9_999, 2)
        found = [envelope for run in result.runs for envelope in run.envelopes()]
        assert [int.from_bytes(envelope.id[16:], "big") for envelope in found] == [9_999, 0]


# --- time ---


async def test_offsets_by_time(reading, clock: Clock) -> None:
    async with reading() as store:
        await create(store, "t")
        for topic in ("t", "m") if await create_in_memory(store, "m") else ("t",):
            clock.ms = START_MS
            assert await store.offset_for_time(topic, 0, 0) == 0
            for _ in range(40):
                await publish(store, topic, b"a", b"b")
                clock.ms += 10
            assert await store.offset_for_time(topic, 0, 0) == 0
            for step in range(40):
                assert await store.offset_for_time(topic, 0, START_MS + 10 * step) == 2 * step
                assert await store.offset_for_time(topic, 0, START_MS + 10 * step - 9) == 2 * step
            assert await store.offset_for_time(topic, 0, START_MS + 391) == 80


# --- tables ---


async def test_tables(opener) -> None:
    async with opener() as store:
        table = store.table("small")
        assert not table
        await store.submit(Unit(puts=[Put("small", b"%d" % n, b"v%d" % n) for n in range(5)])).wait()
        await store.submit(Unit(puts=[Put("other", b"1", b"x"), Put("small", b"3", None)])).wait()
        assert dict(table) == {b"%d" % n: b"v%d" % n for n in (0, 1, 2, 4)}
        assert await store.scan("small", b"1", 2) == [(b"1", b"v1"), (b"2", b"v2")]
        assert await store.scan("small", b"4", 9) == [(b"4", b"v4")]
        assert await store.scan("none", b"", 9) == []
        assert await store.get("other", b"1") == b"x"
        assert await store.get("other", b"2") is None
    async with opener() as store:
        assert dict(store.table("small")) == dict(table)


# --- memory topics ---


async def test_a_row_says_where_its_unit_went(opener) -> None:
    async with opener() as store:
        await create(store, "t", partitions=2)
        memory = await create_in_memory(store, "m")
        await publish(store, "t", b"before")
        mine = Put("p", b"k", b"mine", placed=True)
        units = [
            Unit(appends=[append("t", b"a", b"b"), append("t", b"c", partition=1)], puts=[mine]),
            Unit(appends=[append("t", b"d")], puts=[replace(mine, key=b"l"), Put("p", b"n", b"plain")]),
            Unit(puts=[replace(mine, key=b"nothing")]),
            *([Unit(appends=[append("m", b"x")], puts=[replace(mine, key=b"memory")])] if memory else []),
        ]
        tickets = [store.submit(one) for one in units]
        placed = [await ticket.wait() for ticket in tickets]
        found = [one.base_offset for one in (*placed[0], *placed[1])]
        assert found == [1, 0, 3] or (not store.capabilities.dense_offsets and found[:2] == [1, 0] and found[2] > 3)
    async with opener() as store:
        rows = ((b"k", placed[0]), (b"l", placed[1]), (b"nothing", []), (b"memory", []))
        for key, placements in rows if memory else rows[:3]:
            row = await store.get("p", key)
            assert row is not None
            assert row[:4] == b"mine"
            assert read_placements(row[4:]) == list(placements)
        assert await store.get("p", b"n") == b"plain"


async def test_memory_topics_are_done_at_once_and_gone_after_a_restart(opener) -> None:
    async with opener() as store:
        if not await create_in_memory(store, "m"):
            return
        ticket = store.submit(unit(append("m", b"a", b"b"), append("m", b"c")))
        assert ticket.done
        assert [p.base_offset for p in ticket.placements] == [0, 2]
        assert await everything(store, "m") == [b"a", b"b", b"c"]
        made = store.submit(unit(append("n", b"x"), creates=[MakeTopic("n", TopicConfig(**MEMORY))]))
        assert made.done
        assert made.error is None
        epoch = store.topics["m"].epoch
    async with opener() as store:
        assert "m" not in store.topics
        await create(store, "m", **MEMORY)
        assert store.topics["m"].epoch != epoch
        assert store.topics["m"].partitions[0].end == 0


async def test_memory_and_disk_move_together(opener) -> None:
    async with opener() as store:
        await create(store, "d")
        if not await create_in_memory(store, "m"):
            return
        fresh = [MakeTopic("new", TopicConfig(**MEMORY)), MakeTopic("stored", TopicConfig())]
        seen: list[tuple[str, int]] = []
        store.on_visible(seen.extend)
        row = Put("t", b"k", b"v", placed=True)
        for good, placed in (
            (unit(append("m", b"1"), append("d", b"1", b"2")), [0, 0]),
            (unit(append("d", b"3"), append("m", b"2"), append("d", b"4")), [2, 1, 3]),
            (unit(append("new", b"1"), append("stored", b"1"), creates=fresh), [0, 0]),
            (unit(append("d", b"5"), append("new", b"2"), puts=[row]), [4, 1]),
        ):
            assert [one.base_offset for one in await store.submit(good).wait()] == placed
            assert {one.topic for one in good.appends} <= {topic for topic, _partition in seen}
            seen.clear()
        for bad, error in (
            (unit(append("m", b"x"), append("d", b"x", partition=7)), UnknownPartition),
            (unit(append("d", b"x"), append("m", b"x"), requires=[Require("t", b"k", None)]), ConditionFailed),
        ):
            with pytest.raises(error):
                await store.submit(bad).wait()
        assert await everything(store, "d") == [b"1", b"2", b"3", b"4", b"5"]
        assert await everything(store, "m") == await everything(store, "new") == [b"1", b"2"]
        seen_of = {name: (store.topics[name].epoch, store.topics[name].partitions[0].end) for name in ("m", "d")}
        together = store.submit(unit(append("d", b"6"), append("m", b"3")))
        late = [store.submit(Unit(deletes=[DropTopic(name, seen=seen_of[name])])) for name in seen_of]
        await together.wait()
        for one in late:
            with pytest.raises(ConditionFailed):
                await one.wait()
        epoch, end = seen_of["d"]
        store.submit(unit(append("m", b"4"), append("d", b"7")))
        assert (await store.submit(Unit(deletes=[DropTopic("d", seen=(epoch, end + 2))])).wait()) == []
    async with opener() as store:
        assert set(store.topics) == {"stored"}
        assert await everything(store, "stored") == [b"1"]
        assert await store.get("t", b"k") == b"v"


async def test_memory_appends_with_table_writes_move_together(opener) -> None:
    async with opener() as store:
        if not await create_in_memory(store, "m"):
            return
        good = unit(append("m", b"x"), requires=[Require("t", b"k", None)], puts=[Put("t", b"k", b"v")])
        (placement,) = await store.submit(good).wait()
        assert placement.base_offset == 0
        with pytest.raises(ConditionFailed):
            await store.submit(good).wait()
        assert await everything(store, "m") == [b"x"]
        await store.submit(Unit(deletes=[DropTopic("m")], puts=[Put("t", b"k", None)])).wait()
        assert "m" not in store.topics


async def test_a_memory_topic_does_not_overtake_a_unit_that_makes_it(opener) -> None:
    """Two producers make the same topic with different settings at the same time: one topic, and both are in it."""
    async with opener() as store:
        if not await create_in_memory(store, "m"):
            return
        first = store.submit(unit(append("t", b"1"), creates=[MakeTopic("t", TopicConfig())]))
        second = store.submit(unit(append("t", b"2"), creates=[MakeTopic("t", TopicConfig(**MEMORY))]))
        await first.wait()
        await second.wait()
        assert await everything(store, "t") == [b"1", b"2"]
    async with opener() as store:
        assert await everything(store, "t") == [b"1", b"2"]


async def test_an_append_of_nothing(opener) -> None:
    async with opener() as store:
        await create(store, "t")
        await publish(store, "t", b"x")
        empty = Append("t", 0, Columns.of([]), append("t").meta)
        (placement,) = await store.submit(unit(empty)).wait()
        assert placement.base_offset == 1
        assert store.topics["t"].partitions[0].end == 1


@pytest.mark.parametrize("settings", [{}, MEMORY], ids=["disk", "memory"])
async def test_a_topic_is_dropped_only_as_it_was_seen(opener, settings) -> None:
    async with opener() as store:
        if settings and not await create_in_memory(store, "m"):
            return
        await create(store, "t", **settings)
        await publish(store, "t", b"a", b"b")
        seen = (store.topics["t"].epoch, 2)
        store.submit(unit(append("t", b"c")))  # in the same commit, and before it
        with pytest.raises(ConditionFailed):
            await store.submit(Unit(deletes=[DropTopic("t", seen)])).wait()
        with pytest.raises(ConditionFailed):
            await store.submit(Unit(deletes=[DropTopic("t", (seen[0] + 1, 3))])).wait()
        assert await everything(store, "t") == [b"a", b"b", b"c"]
        await store.submit(Unit(deletes=[DropTopic("t", (seen[0], 3))])).wait()
        assert "t" not in store.topics
