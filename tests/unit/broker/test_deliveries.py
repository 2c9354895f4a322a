"""How long messages were stored before they were handed out: counted by batch as if by message, and written to `__stats`."""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway import model
from gateway.broker.assembly import House, open_house
from gateway.broker.consume import deliveries as module
from gateway.broker.consume.deliveries import Latencies, writing_stats
from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import InvalidRequest
from gateway.recorder import Recorder
from gateway.requests import DescribeTopics, Fetch
from gateway.routing.table import compile_table
from gateway.store.committer import Mode
from gateway.store.interface import Store
from gateway.store.sqlite import Engine, open_store
from gateway.store.stats import OTHER, TOPIC, WHOLE, Deliveries, decode
from gateway.transport.limits import Budget
from tests.unit.broker.house import Client
from tests.unit.broker.support import OPTIONS

NOW = 1_700_000_040_000  # a minute's beginning
MINUTE = NOW // 1000


def only(latencies: Latencies) -> Deliveries:
    (one,) = latencies.take()
    return one


@given(st.lists(st.integers(-5, 5_000_000), min_size=1, max_size=100))
def test_a_batch_counts_as_its_messages_would_one_by_one(ages: list[int]) -> None:
    latencies = Latencies()
    latencies.add("r", "t", "p", sorted(NOW - age for age in ages), NOW)
    expected = Counter(bisect_right(WHOLE, age) for age in ages)
    assert only(latencies) == Deliveries(MINUTE, "r", "t", "p", dict(expected))


def test_a_run_of_several_routes_counts_for_each() -> None:
    metas = [BatchMeta(b"x" * 16, Origin("p", "l"), route) for route in ("a", "a", "b", "a")]
    times = [NOW - 64_000, NOW - 32_000, NOW - 16_000, NOW - 16_000, NOW - 1]
    batches = [(0, 0, metas[0]), (1, 0, metas[1]), (2, 0, metas[2]), (4, 0, metas[3])]
    latencies = Latencies()
    latencies.add_mixed(Run("t", 0, 7, Columns.of([b"v"] * 5), times, batches), "p", NOW)
    found = {one.route: one.counts for one in latencies.take()}
    assert found == {
        "a": {bisect_right(WHOLE, age): 1 for age in (64_000, 32_000, 1)},
        "b": {bisect_right(WHOLE, 16_000): 2},
    }


def test_only_minutes_that_are_over_are_taken_and_each_once() -> None:
    latencies = Latencies()
    for second in (0, 59, 60):
        latencies.add("r", "t", "p", [NOW], NOW + second * 1000)
    assert latencies.take(NOW + 59_999) == []
    assert [(one.minute, one.messages) for one in latencies.take(NOW + 60_000)] == [(MINUTE, 2)]
    latencies.add("r", "t", "p", [NOW], NOW + 61_000)
    assert [(one.minute, one.messages) for one in latencies.take()] == [(MINUTE + 60, 2)]
    latencies.add("r", "t", "p", [NOW], NOW + 61_500)  # the same minute goes on behind a taking of all
    assert [(one.minute, one.messages) for one in latencies.take()] == [(MINUTE + 60, 1)]


def test_topics_and_minutes_are_bounded() -> None:
    latencies = Latencies()
    for number in range(module.MOST_SERIES + 5):
        latencies.add("r", f"t{number}", "p", [NOW], NOW)
    taken = latencies.take()
    assert len(taken) == module.MOST_SERIES + 1
    assert (taken[-1].topic, taken[-1].messages) == (OTHER, 5)
    for minute in range(10):
        latencies.add("r", "t", "p", [NOW], NOW + minute * 60_000)
    assert [one.minute for one in latencies.take()] == [MINUTE + 60 * minute for minute in (7, 8, 9)]
    assert latencies.forgotten == 7


# --- with the broker and its store ---


class Clock:
    """Wall time goes as the event loop's does."""

    def now(self) -> float:
        return trio.current_time()

    def now_ms(self) -> int:
        return NOW + round(trio.current_time() * 1000)


class Limits(Recorder):
    def __init__(self) -> None:
        self.hits: list[tuple[str, str]] = []

    def limit_hit(self, listener: str, limit: str) -> None:
        self.hits.append((listener, limit))


@attrs.frozen
class Writing:
    house: House
    store: Engine
    limits: Limits


@asynccontextmanager
async def writing(path: Path) -> AsyncIterator[Writing]:
    clock, limits = Clock(), Limits()
    table = compile_table(model.Config(listeners={}, routes=(model.IDENTITY,)), {})
    async with (
        open_store(path, OPTIONS, mode=Mode.INLINE, now_ms=clock.now_ms) as store,
        open_house(store, table, limits, Budget(256 << 20), clock=clock) as house,
        writing_stats(house.latencies, store, house.pump, clock, limits),
    ):
        yield Writing(house, store, limits)


async def written(store: Store) -> list[Deliveries]:
    if TOPIC not in store.topics:
        return []
    result = await store.read(TOPIC, 0, 0, 1_000, 1 << 20, 0)
    return [decode(value) for run in result.runs for value in run.columns.values()]


async def test_each_minute_is_written_once_a_minute_and_the_rest_at_the_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with writing(tmp_path) as gateway:
        client, reader = Client(gateway.house, "blipmq"), Client(gateway.house, "felix")
        subscription = await reader.subscribe("t")
        await client.publish("t", b"a", b"b", b"c")
        await trio.sleep(10)
        await reader.take(subscription, 3)
        await client.ask(Fetch(0, "t", 0, 1, 100, 1 << 20))
        await trio.sleep(45)
        assert await written(gateway.store) == []
        await trio.sleep(10)
        assert await written(gateway.store) == [
            Deliveries(MINUTE, "identity", "t", "felix", {bisect_right(WHOLE, 10_000): 3}),
            Deliveries(MINUTE, "identity", "t", "blipmq", {bisect_right(WHOLE, 10_000): 2}),
        ]
        await trio.sleep(600)
        assert len(await written(gateway.store)) == 2  # nothing was delivered since
        assert [info.address for info in (await client.ask(DescribeTopics(0))).topics] == ["t"]
        assert isinstance(await client.ask(Fetch(0, TOPIC, 0, 0, 100, 1 << 20)), InvalidRequest)
        (door,) = gateway.house.snapshot().doors
        assert (door.received, door.stored) == (3, 3)
        await client.ask(Fetch(0, "t", 0, 2, 100, 1 << 20))
    async with open_store(tmp_path, OPTIONS, mode=Mode.INLINE) as store:
        last = (await written(store))[2:]
    assert [(one.minute, one.messages) for one in last] == [(MINUTE + 660, 1)]
    assert gateway.limits.hits == []


async def test_a_store_that_takes_no_writes_costs_the_minute_and_nothing_else(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with writing(tmp_path) as gateway:
        client = Client(gateway.house)
        await client.publish("t", b"a")
        await client.ask(Fetch(0, "t", 0, 0, 100, 1 << 20))
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(100, 101, -1))
            gateway.store.committer.writer._check_at = 0.0
            await trio.sleep(61)
            assert not gateway.store.health.writable
            assert gateway.limits.hits == [("", "stats")]
            assert len((await client.ask(Fetch(0, "t", 0, 0, 100, 1 << 20))).runs) == 1
        gateway.store.maintain()
        await trio.sleep(120)
        assert [(one.minute, one.messages) for one in await written(gateway.store)] == [(MINUTE + 60, 1)]
        assert gateway.limits.hits == [("", "stats")]
