"""A gateway that does not know yet that another one has its jobs writes nothing for them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from gateway.broker.ownership import TABLE
from gateway.errors import ConditionFailed
from gateway.store.interface import Put, Require
from tests.kafka.node import Kafka
from tests.store.kit import append, create, everything, open_on_kafka, unit
from tests.unit.bridges.blip import Blip, blipping
from tests.unit.bridges.house import bridged_on
from tests.unit.bridges.peers import until
from tests.unit.bridges.test_ingest import STORED, VALUES, far

PATIENCE = 120


@asynccontextmanager
async def deaf(store: Any) -> AsyncIterator[None]:
    """It hears nothing of what others write, as while it is frozen: the thread that would tell it waits."""
    waits, again = threading.Event(), threading.Event()

    def wait() -> None:
        waits.set()
        again.wait(PATIENCE)

    store._state._orders.append(wait)
    try:
        await trio.to_thread.run_sync(waits.wait)
        yield
    finally:
        again.set()


async def test_an_ingest_that_is_anothers_meanwhile_stores_nothing(kafka: Kafka, topics: str) -> None:
    blip = Blip()
    with trio.fail_after(PATIENCE):
        async with (
            blipping(blip),
            open_on_kafka(kafka.brokers, topics) as store,
            open_on_kafka(kafka.brokers, topics) as other,
            bridged_on(store, [far(blip.port)], STORED) as gateway,
        ):
            gateway.bridges.admit()
            await blip.until(lambda: any(queue.polls for queue in blip.queues.values()))
            blip.deliver(b"orders", b"first")
            await blip.until(lambda: blip.acknowledged == [b"first"])
            await until(lambda: other.table(TABLE) == store.table(TABLE))
            before = gateway.bridges.ingests.all
            async with deaf(store):
                slots = list(other.table(TABLE))
                assert slots
                await other.submit(unit(puts=[Put(TABLE, slot, b"another") for slot in slots])).wait()
                blip.deliver(b"orders", *VALUES)
                await blip.until(lambda: any(queue.in_flight for queue in blip.queues.values()))
                await other.refresh("far.orders")
                await other.submit(unit(append("far.orders", b"theirs"))).wait()
            # the slots are its own again, and who had them before has gone with what it could not acknowledge
            await until(
                lambda: gateway.bridges.ingests.all not in ([], before) and not gateway.bridges.ingests._leaving
            )
            blip.requeue()
            await blip.until(lambda: len(set(blip.acknowledged)) == 1 + len(VALUES))
            await store.refresh("far.orders")
            first, theirs, *ours = await everything(store, "far.orders")
            assert (first, theirs) == (b"first", b"theirs")
            assert {*ours} == {*VALUES}  # some of them twice, if they came again while they were stored


async def in_line(store: Any) -> int:
    """How many had a turn, about."""
    return await trio.to_thread.run_sync(store.cluster.written, store._options.turns_topic)


async def test_a_condition_without_a_row_of_its_own_is_decided_in_the_order_of_the_log(
    kafka: Kafka, topics: str
) -> None:
    mine = Require("rows", b"key", b"mine")
    with trio.fail_after(PATIENCE):
        async with open_on_kafka(kafka.brokers, topics) as store, open_on_kafka(kafka.brokers, topics) as other:
            await create(store, "log")
            first = unit(append("log", b"first"), puts=[Put("rows", b"key", b"mine")])
            await store.submit(first).wait()
            await store.submit(unit(append("log", b"second"), requires=[mine])).wait()
            async with deaf(store):
                await other.submit(unit(puts=[Put("rows", b"key", b"another")])).wait()
                before = await in_line(store)
                third = store.submit(unit(append("log", b"third"), requires=[mine]))
                while await in_line(store) == before:  # noqa: ASYNC110  # until it has its turn to decide
                    await trio.sleep(0.01)
                await other.refresh("log")
            with pytest.raises(ConditionFailed):
                await third.wait()
            await other.refresh("log")
            assert await everything(other, "log") == [b"first", b"second"]
