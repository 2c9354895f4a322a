"""Nothing that comes to a log on Kafka holds the event loop for long, however much it is at once."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from gateway.envelope import Columns
from gateway.errors import TooLarge
from gateway.store.interface import Append, Put
from tests.integration.held import Loop
from tests.kafka.node import Kafka
from tests.kafka.test_log_faults import until
from tests.store.kit import META, append, create, everything, open_on_kafka, publish, unit

LONGEST = 0.05
MANY = 200_000
PATIENCE = 120


@asynccontextmanager
async def watched_loop() -> AsyncIterator[Loop]:
    loop = Loop()
    gc.collect()
    gc.freeze()  # as `gateway serve` does; and what the tests have made is nothing that a collection has to look at
    trio.lowlevel.add_instrument(loop)
    await trio.lowlevel.checkpoint()
    loop.forget()  # it has not seen this task's step begin
    try:
        yield loop
    finally:
        trio.lowlevel.remove_instrument(loop)
        gc.unfreeze()


def many(topic: str, values: Columns) -> Append:
    return Append(topic, 0, values, META)


async def step(work: Any, *args: Any) -> Any:
    """In a step of its own: what the test itself does in the same one is not the store's."""
    found: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            found.append(work(*args))

        nursery.start_soon(run)
    return found[0]


async def test_a_large_append_and_who_follows_it(kafka: Kafka, topics: str) -> None:
    values = Columns.of([b"%08d" % number for number in range(MANY)])
    with trio.fail_after(PATIENCE):
        async with (
            open_on_kafka(kafka.brokers, topics) as store,
            open_on_kafka(kafka.brokers, topics) as other,
        ):
            await create(store, "t")
            await other.refresh("t")
            other.watch("t")
            await until(lambda: other.current("t"))
            async with watched_loop() as loop:
                ticket = await step(store.submit, unit(many("t", values)))
                behind = await step(store.submit, unit(append("t", b"behind")))
                (placed,) = await ticket.wait()
                (after,) = await behind.wait()
                await until(lambda: other.topics["t"].partitions[0].end > after.base_offset)
                assert loop.longest < LONGEST, loop.by
            assert after.base_offset >= placed.base_offset + MANY
            found = await everything(store, "t")
            assert found == [*values.values(), b"behind"]


async def test_small_appends_need_not_wait_for_a_large_one(kafka: Kafka, topics: str) -> None:
    values = Columns.of([b"%08d" % number for number in range(MANY)])
    with trio.fail_after(PATIENCE):
        async with open_on_kafka(kafka.brokers, topics) as store:
            await create(store, "large", "small")
            ticket = store.submit(unit(many("large", values)))
            await publish(store, "small", b"x")
            assert not ticket.done
            await ticket.wait()


@pytest.mark.parametrize("where", ["value", "key", "headers"])
async def test_what_is_too_large_harms_nobody_else(kafka: Kafka, topics: str, where: str) -> None:
    """It is refused before the client of Kafka hears of it: that would refuse what is under way with it."""
    large = b"x" * (17 << 20)
    given = {
        "value": append("t", b"a", large),
        "key": append("t", b"a", b"b", keys=[None, large]),
        "headers": append("t", b"a", b"b", headers=[(), (("h", large),)]),
    }[where]
    with trio.fail_after(PATIENCE):
        async with open_on_kafka(kafka.brokers, topics) as store:
            await create(store, "t")
            before, refused, behind = (store.submit(unit(one)) for one in (append("t", b"1"), given, append("t", b"2")))
            with pytest.raises(TooLarge):
                await refused.wait()
            await before.wait()
            await behind.wait()
            assert store.health.writable
            assert await everything(store, "t") == [b"1", b"2"]


async def test_many_rows_of_another_gateway(kafka: Kafka, topics: str) -> None:
    rows = [Put("rows", b"%08d" % number, b"x" * 20) for number in range(MANY // 4)]
    units = [unit(puts=rows[first : first + 1_000]) for first in range(0, len(rows), 1_000)]
    with trio.fail_after(PATIENCE):
        async with (
            open_on_kafka(kafka.brokers, topics) as store,
            open_on_kafka(kafka.brokers, topics) as other,
        ):
            told: list[int] = []
            other.on_rows("rows", lambda changed: told.append(len(changed)))
            async with watched_loop() as loop:
                for ticket in [await step(store.submit, one) for one in units]:
                    await ticket.wait()
                await until(lambda: sum(told) >= len(rows))
                assert loop.longest < LONGEST, loop.by
            assert len(other.table("rows")) == len(rows)


async def test_large_and_small_appends_to_one_partition_stay_in_order(kafka: Kafka, topics: str) -> None:
    """Large ones go by a producer of their own, unless something small is under way already; and the other way round."""
    many_values = [b"%08d" % number for number in range(2_000)]
    with trio.fail_after(PATIENCE):
        async with open_on_kafka(kafka.brokers, topics) as store:
            await create(store, "large-first", "small-first")
            tickets: list[Any] = []
            wanted: dict[str, list[bytes]] = {"large-first": [], "small-first": []}
            for number in range(20):
                small = [b"small %d" % number]
                for topic, values in (("large-first", many_values), ("small-first", small)) * 2:
                    mixed = values if number % 2 else (small if values is many_values else many_values)
                    tickets.append(store.submit(unit(many(topic, Columns.of(mixed)))))
                    wanted[topic] += mixed
            names = {thread.name for thread in threading.enumerate()}
            assert {"kafka-sender", "kafka-patient-sender"} <= names
            for ticket in tickets:
                await ticket.wait()
            for topic, values in wanted.items():
                assert await everything(store, topic) == values
                # and what comes when nothing is under way finds its way alone
                await publish(store, topic, b"last")
                assert (await everything(store, topic))[-1] == b"last"
