"""Who reads as a group at one gateway is known at the others: it is put elsewhere by none of them, as long as that one lives."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from gateway.broker.consume.readers import TABLE, GroupReaders
from gateway.broker.ownership import Owners
from gateway.broker.presence import SETTLING
from gateway.broker.timers import Pump, SystemClock
from gateway.protocols.registry import protocol
from gateway.requests import CommitOffset, JoinGroup, ListGroups
from gateway.transport.client import connect
from tests.kafka.node import Kafka
from tests.kafka.test_many_gateways import stores, until
from tests.kafka.test_ownership import on_kafka, served
from tests.kafka.test_workers import ask, publish
from tests.store.kit import starting

PATIENCE = 150
GROUP = "orders", "billing"


class ByHand:
    """A clock, and what is to be called at its times."""

    def __init__(self) -> None:
        self._now = 0.0
        self._calls: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self._now

    def now_ms(self) -> int:
        return int(self._now * 1000)

    def call_at(self, when: float, callback: Callable[[], None]) -> Callable[[], None]:
        self._calls.append((when, callback))
        return lambda: None

    def advance(self, seconds: float) -> None:
        self._now += seconds
        due = [callback for when, callback in self._calls if when <= self._now]
        self._calls = [one for one in self._calls if one[0] > self._now]
        for callback in due:
            callback()


async def test_the_rows_of_who_is_gone_count_for_nothing_and_go(kafka: Kafka, topics: str) -> None:
    clock, hands = SystemClock(), ByHand()
    pump = Pump(clock.now)
    async with trio.open_nursery() as nursery, stores(kafka, topics, 2) as (one, two):
        nursery.start_soon(pump.run)
        start = starting(nursery)
        owners = Owners(one, clock, pump, start), Owners(two, clock, pump, start)
        here, there = (
            GroupReaders(store, mine, hands, hands, start) for store, mine in zip((one, two), owners, strict=True)
        )
        changed: list[tuple[str, str]] = []
        there.changed = changed.append
        known = trio.Event()
        here.have(GROUP, 1, known.set)
        with trio.fail_after(PATIENCE):
            await known.wait()
        assert await there.reading_elsewhere(GROUP) == 1  # whoever was told is counted, without a wait
        assert (changed, list(there.groups())) == ([GROUP], [GROUP])
        assert await here.reading_elsewhere(GROUP) == 0
        for readers in (3, 2, 0, 2):
            here.have(GROUP, readers)
        await until(lambda: there.elsewhere(GROUP) == 2)
        with trio.fail_after(PATIENCE):
            while len(await two.serving()) < 2:  # noqa: ASYNC110  # nobody tells when a member is one
                await trio.sleep(0.05)
        hands.advance(SETTLING + 1)
        assert await there.reading_elsewhere(GROUP) == 2
        # as far as Kafka's group knows it is gone; it does not know that itself
        assert one._slots is not None
        counts: list[int] = []
        there.changed = lambda group: counts.append(there.elsewhere(group))
        await trio.to_thread.run_sync(one._slots.close)
        await until(lambda: two.table(TABLE) != {} and owners[1].held == two.slots)
        assert await there.reading_elsewhere(GROUP) == 0
        # whose job it is takes the row away; and who reads that and lives after all writes it again
        # (in time and again, where the brokers were too slow to say who serves; a count is a row that was told of, and none was before)
        await until(lambda: hands.advance(SETTLING + 1) or counts[-1:] == [2])
        assert there.elsewhere(GROUP) == 2
        nursery.cancel_scope.cancel()


async def test_a_group_that_is_read_at_another_gateway_stays_where_it_is(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    config = on_kafka(kafka, topics, 'admin: {bind: "127.0.0.1:0"}\n')
    asked = json.dumps({"group": "billing", "topic": "orders", "to": "earliest"})
    with trio.fail_after(2 * PATIENCE):
        async with served(tmp_path / "one", config) as one, served(tmp_path / "two", config) as two:
            flymq = protocol("flymq")

            async def reset() -> Any:
                return json.loads(await ask(two.ports["admin"], "/v1/groups/reset", "POST", asked))

            async def members() -> list[int]:
                async with connect(flymq, "127.0.0.1", two.ports["flymq"], timeout=60) as client:
                    return [group.members for group in (await client.request(ListGroups(0), timeout=PATIENCE)).groups]

            async with connect(flymq, "127.0.0.1", one.ports["flymq"], timeout=60) as reader:
                await publish(reader, b"first")
                await reader.request(JoinGroup(0, "orders", "billing"), timeout=PATIENCE)
                while await members() != [1]:  # noqa: ASYNC110  # as soon as that gateway has read it
                    await trio.sleep(0.05)
                await reader.request(CommitOffset(0, "orders", "billing", 0, 1), timeout=PATIENCE)
                refused = await reset()
                assert refused["type"] == "Conflict"
                assert "1 connections (1 at other gateways) read orders as billing" in refused["message"]
            while "moves" not in (found := await reset()):
                assert found["type"] == "Conflict"
                await trio.sleep(0.05)
            assert [(one["before"], one["after"]) for one in found["moves"]] == [(1, 0)]
            async with connect(flymq, "127.0.0.1", one.ports["flymq"], timeout=60) as reader:
                await reader.request(JoinGroup(0, "orders", "billing"), timeout=PATIENCE)
                assert (await reset())["type"] == "Conflict"
                await trio.to_thread.run_sync(one.end, signal.SIGKILL)
            while "moves" not in await reset():  # noqa: ASYNC110  # Kafka takes six seconds to miss it
                await trio.sleep(0.2)
