"""Who reads as a group at one gateway is known at the others: it is put elsewhere by none of them, as long as that one lives."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from confluent_kafka import Consumer

from gateway.broker.consume.group_offsets import encode_names
from gateway.broker.consume.readers import TABLE, GroupReaders
from gateway.broker.ownership import Owners
from gateway.broker.presence import SETTLING
from gateway.broker.timers import Pump, SystemClock
from gateway.protocols.registry import protocol
from gateway.requests import CommitOffset, JoinGroup, ListGroups
from gateway.store.interface import Put
from gateway.store.kafka.options import KafkaOptions
from gateway.transport.client import connect
from tests.kafka.foreign import make
from tests.kafka.node import Kafka
from tests.kafka.test_many_gateways import options, stores, until
from tests.kafka.test_ownership import on_kafka, served
from tests.kafka.test_workers import ask, publish
from tests.store.kit import starting, unit

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


class Looks:
    """Starts work, and knows what of it is under way."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.under_way = self.ended = 0

    def start(self, _caller: Any, _request: Any, work: Callable[[], Awaitable[None]]) -> None:
        self.under_way += 1
        self._nursery.start_soon(self._run, work)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        await work()
        self.under_way -= 1
        self.ended += 1


async def test_the_rows_of_who_is_gone_count_for_nothing_and_go(kafka: Kafka, topics: str) -> None:
    clock, hands = SystemClock(), ByHand()
    pump = Pump(clock.now)
    async with stores(kafka, topics, 2) as (one, two), trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        start, looks = starting(nursery), Looks(nursery)
        owners = Owners(one, clock, pump, start), Owners(two, clock, pump, start)
        here, there = (
            GroupReaders(store, mine, hands, hands, looks.start) for store, mine in zip((one, two), owners, strict=True)
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
        await until(lambda: not looks.under_way)  # what is asked before it goes could be answered after that
        assert await there.reading_elsewhere(GROUP) == 2
        # as far as Kafka's group knows it is gone; it does not know that itself
        assert one._slots is not None
        counts: list[int] = []
        there.changed = lambda group: counts.append(there.elsewhere(group))
        await trio.to_thread.run_sync(one._slots.close)
        await until(lambda: two.table(TABLE) != {} and owners[1].held == two.slots)
        with trio.fail_after(PATIENCE):  # it may have had no slot, so that the other has had all before it went
            while one.member in await two.serving():  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert await there.reading_elsewhere(GROUP) == 0
        # whose job it is takes the row away; and who reads that and lives after all writes it again
        # (in time and again, where the brokers were too slow to say who serves; a count is a row that was told of, and none was before)
        await until(lambda: hands.advance(SETTLING + 1) or counts[-1:] == [2])
        assert there.elsewhere(GROUP) == 2
        nursery.cancel_scope.cancel()


async def test_a_gateway_that_goes_without_having_had_a_job_is_missed(kafka: Kafka, topics: str) -> None:
    """Nothing changes for who has the job of looking: not when it comes, and not when it goes."""
    clock, hands, asked = SystemClock(), ByHand(), options(kafka, topics)
    pump = Pump(clock.now)
    async with stores(kafka, topics, 2) as (writes, looks_after), trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        looks = Looks(nursery)
        owners = Owners(looks_after, clock, pump, starting(nursery))
        readers = GroupReaders(looks_after, owners, hands, hands, looks.start)
        await until(lambda: owners.held == looks_after.slots)
        name = writes.member
        async with idle_member(kafka, asked, name):
            while name not in await looks_after.serving():  # noqa: ASYNC110  # nobody tells when a member is one
                await trio.sleep(0.05)
            row = Put(TABLE, encode_names(*GROUP) + name, b"\0\0\0\2")
            await writes.submit(unit(puts=[row])).wait()
            await until(lambda: readers.elsewhere(GROUP) == 2)
            await until(lambda: hands.advance(SETTLING + 1) or looks.ended)
            assert readers.elsewhere(GROUP) == 2
        await until(lambda: hands.advance(SETTLING + 1) or not readers.elsewhere(GROUP))
        await until(lambda: not writes.table(TABLE))
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def idle_member(kafka: Kafka, asked: KafkaOptions, name: bytes) -> AsyncIterator[None]:
    """A gateway as Kafka's group knows it, to whom no slot is handed out, as where there are more gateways than slots."""
    topic = f"{asked.prefix}elsewhere"
    make(kafka, topic, 1)
    strategy = {"partition.assignment.strategy": "cooperative-sticky", "enable.auto.commit": False}
    named = {"group.id": asked.owners_group, "client.id": f"{asked.id}.{name.hex()}"}
    consumer = Consumer(asked.client(**named, **strategy))
    consumer.subscribe([topic])
    ends = threading.Event()

    def poll() -> None:
        while not ends.is_set():
            consumer.poll(0.1)
        consumer.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, poll)
        try:
            yield
        finally:
            ends.set()


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
