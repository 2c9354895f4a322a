"""Delayed messages: when they fire, what survives, and what is in memory."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway import model
from gateway.broker.publish import delays as module
from gateway.broker.publish.delayed_rows import id_of, key_of, key_of_id
from gateway.envelope import Batch, Columns
from gateway.errors import InvalidRequest, NotFound, Throttled
from gateway.requests import DONE, CancelDelayed, Delayed, DeleteTopic, Publish
from tests.unit.broker.support import Bench, FakeClock, RecordingCaller, open_bench, publish


async def later(bench: Bench, number: int, address: str, *values: bytes, **more: Any) -> list[str]:
    reply = await bench.ask(RecordingCaller(), publish(number, address, *values, **more))
    assert isinstance(reply, Delayed), reply
    return list(reply.ids)


async def rows(bench: Bench) -> int:
    return len(await bench.store.scan(module.TABLE, b"", 10_000))


def unaccounted(bench: Bench) -> dict[str, int]:
    return {door.route: door.unaccounted for door in bench.doors.counts() if door.unaccounted}


async def test_a_message_comes_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        await later(bench, 1, "t", b"second", delay_ms=2000)
        await later(bench, 2, "t", b"first", deliver_at_ms=bench.clock.now_ms() + 1000)
        await later(bench, 3, "t", b"past", deliver_at_ms=5)
        bench.advance(0.0)
        assert bench.values("t") == [b"past"]
        bench.advance(0.999)
        assert bench.values("t") == [b"past"]
        bench.advance(0.001)
        assert bench.values("t") == [b"past", b"first"]
        bench.advance(5.0)
        assert bench.values("t") == [b"past", b"first", b"second"]
        assert await rows(bench) == bench.delays.waiting == 0
        assert unaccounted(bench) == {}


async def test_it_keeps_key_headers_expiry_and_sender(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller(protocol="flymq")
        columns = Columns.of(
            [b"a", b"b"], [b"k", None], [(("h", b"1"), ("h", b"2")), ()], [0, bench.clock.now_ms() + 9000]
        )
        await bench.ask(caller, Publish(1, Batch("t", columns), delay_ms=1000, ttl_ms=60_000))
    clock = FakeClock()
    clock.seconds += 2.0
    async with open_bench(tmp_path, clock) as bench:  # its sender is long gone
        bench.advance(0.0)
        result = bench.store.read_cached("t", 0, 0, 10, 1000, clock.now_ms())
        assert result is not None
        first, second = (envelope for run in result.runs for envelope in run.envelopes())
        assert (first.value, first.key, first.headers) == (b"a", b"k", (("h", b"1"), ("h", b"2")))
        assert first.expires_ms == FakeClock().now_ms() + 60_000
        assert (second.value, second.key, second.headers) == (b"b", None, ())
        assert second.expires_ms == FakeClock().now_ms() + 9000
        assert first.origin == caller.origin
        assert (first.route, second.id[:-4], second.id[-4:]) == ("identity", first.id[:-4], b"\0\0\0\1")


async def test_they_survive_a_restart_and_fire_once(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_bench(tmp_path, clock) as bench:
        for number in range(50):
            await later(bench, number, "t", b"%02d" % number, delay_ms=1000 + number)
        bench.advance(1.009)
        await bench.idle()
        bench.advance(0.0)  # the head was shorter than what is due
        await bench.idle()
        assert len(bench.values("t")) == 10
    async with open_bench(tmp_path, clock) as bench:
        assert bench.delays.waiting == 40
        await drained(bench, 1.0)
        assert await bench.on_disk("t") == [b"%02d" % number for number in range(50)]
        assert unaccounted(bench) == {}
    async with open_bench(tmp_path, clock) as bench:
        assert bench.delays.waiting == 0
        bench.advance(100.0)
        assert len(await bench.on_disk("t")) == 50


async def drained(bench: Bench, step: float) -> None:
    for _ in range(200):
        bench.advance(step)
        await bench.idle()
        if not bench.delays.waiting:
            return
    raise AssertionError("messages stay behind")


async def test_only_the_head_is_in_memory_and_the_order_holds(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:  # a head of 8
        order = list(range(300))
        random.Random(7).shuffle(order)
        for number in order:
            await later(bench, number, "t", b"%03d" % number, delay_ms=1000 + 10 * number)
            assert bench.delays.in_memory <= 16
        assert (await rows(bench), bench.delays.waiting) == (300, 300)
        bench.advance(1.0)
        for number in range(300):  # more come in between, in front and behind
            if number % 50 == 0:
                await later(bench, 1000 + number, "u", b"soon", delay_ms=3)
                await later(bench, 2000 + number, "t", b"%03d" % (400 + number), delay_ms=20_000 + number)
            bench.advance(0.01)
            await bench.idle()
            assert bench.delays.in_memory <= 16
        await drained(bench, 1.0)
        assert bench.values("t") == [b"%03d" % n for n in (*range(300), *range(400, 700, 50))]
        assert bench.values("u") == [b"soon"] * 6
        assert unaccounted(bench) == {}


async def test_what_arrives_while_a_page_is_read_is_not_forgotten(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        for number in range(40):
            await later(bench, number, "t", b"%02d" % number, delay_ms=100 * (number + 1))
        caller = RecordingCaller()
        bench.clock.seconds += 0.6
        bench.pump.turn()  # asks for the next page, which is read in a task
        assert bench.offload.under_way
        bench.handlers[Publish](caller, publish(1, "t", b"new", delay_ms=350))  # 950 ms, inside that page
        bench.handlers[Publish](caller, publish(2, "t", b"far", delay_ms=9000))
        await bench.idle()
        await drained(bench, 0.1)
        expected = [b"%02d" % number for number in range(40)]
        expected.insert(9, b"new")
        assert bench.values("t") == [*expected, b"far"]


async def test_cancelling_takes_back_one_message(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        ids = await later(bench, 1, "t", b"a", b"b", b"c", delay_ms=1000)
        assert len(set(ids)) == 3
        caller = RecordingCaller()
        assert await bench.ask(caller, CancelDelayed(1, "t", ids[1])) == DONE
        assert isinstance(await bench.ask(caller, CancelDelayed(2, "t", ids[1])), NotFound)
        assert isinstance(await bench.ask(caller, CancelDelayed(3, "other", ids[0])), NotFound)
        bench.advance(1.0)
        assert bench.values("t") == [b"a", b"c"]
        assert isinstance(await bench.ask(caller, CancelDelayed(4, "t", ids[0])), NotFound)
        assert bench.delays.waiting == 0
        assert unaccounted(bench) == {}


async def test_cancelling_reaches_what_is_on_disk_only(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        ids = [(await later(bench, n, "t", b"%02d" % n, delay_ms=1000 + n))[0] for n in range(40)]
        caller = RecordingCaller()
        assert isinstance(await bench.ask(caller, CancelDelayed(1, "other", ids[39])), NotFound)
        for number in (39, 20, 3):
            assert await bench.ask(caller, CancelDelayed(100 + number, "t", ids[number])) == DONE
        await drained(bench, 1.0)
        assert bench.values("t") == [b"%02d" % n for n in range(40) if n not in (39, 20, 3)]


@pytest.mark.parametrize("odd", ["", "x", "delayed-", "delayed-zz", "delayed-" + "f" * 32, "delayed-" + "é" * 32])
async def test_ids_that_never_were(tmp_path: Path, odd: str) -> None:
    async with open_bench(tmp_path) as bench:
        assert isinstance(await bench.ask(RecordingCaller(), CancelDelayed(1, "t", odd)), NotFound)


def test_ids_name_rows() -> None:
    key = key_of(1_700_000_000_000, 5)
    assert key_of_id(id_of(key)) == key


async def test_the_delay_and_the_number_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller()
        day = 86_400_000
        for number, more in enumerate(
            ({"delay_ms": day + 1}, {"delay_ms": -1}, {"deliver_at_ms": bench.clock.now_ms() + day + 1})
        ):
            assert isinstance(await bench.ask(caller, publish(number, "t", b"x", **more)), InvalidRequest)
        await later(bench, 10, "t", b"1", b"2", delay_ms=day)
        assert isinstance(await bench.ask(caller, publish(11, "t", b"3", b"4", delay_ms=1)), Throttled)
        await later(bench, 12, "t", b"3", delay_ms=1)
        bench.advance(0.001)
        await later(bench, 13, "t", b"4", delay_ms=1)
        assert unaccounted(bench) == {}


async def test_who_deletes_a_topic_deletes_what_was_to_come(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        await later(bench, 1, "t", b"x", delay_ms=1000)
        await later(bench, 2, "u", b"y", delay_ms=1000)
        await bench.ask(RecordingCaller(), DeleteTopic(1, "t"))
        bench.advance(1.0)
        assert (bench.values("t"), bench.values("u")) == ([], [b"y"])
        assert await rows(bench) == bench.delays.waiting == 0
        assert unaccounted(bench) == {}


async def test_a_store_that_refuses_for_a_while_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench(tmp_path) as bench:
        for number in range(30):
            await later(bench, number, "t", b"%02d" % number, delay_ms=1000)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(100, 101, -1))
            bench.store.committer.writer._check_at = 0.0  # type: ignore[attr-defined]  # it is time to look again
            for _ in range(5):
                bench.advance(40.0)
                await bench.idle()
            assert not bench.store.health.writable
            assert bench.values("t") == []
            assert bench.delays.waiting == 30
            assert bench.delays.in_memory <= 16
        bench.store.maintain()  # type: ignore[attr-defined]
        await drained(bench, 40.0)
        assert bench.values("t") == [b"%02d" % number for number in range(30)]
        assert await rows(bench) == 0
        assert unaccounted(bench) == {}


async def test_a_schema_is_checked_when_the_message_comes_in(tmp_path: Path) -> None:
    config = model.Config(listeners={}, routes=(model.IDENTITY,), topics={"strict": model.TopicSettings(schema="s")})
    async with open_bench(tmp_path, config=config) as bench:
        assert isinstance(await bench.ask(RecordingCaller(), publish(1, "strict", b"x", delay_ms=10)), NotFound)
        assert await rows(bench) == 0
