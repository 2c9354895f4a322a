"""A gateway that does not know yet that another one has its jobs writes nothing for them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from gateway.broker.ownership import TABLE
from gateway.store.interface import Put
from tests.kafka.node import Kafka
from tests.store.kit import append, everything, open_on_kafka, unit
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
            async with deaf(store):
                slots = list(other.table(TABLE))
                assert slots
                await other.submit(unit(puts=[Put(TABLE, slot, b"another") for slot in slots])).wait()
                blip.deliver(b"orders", *VALUES)
                await blip.until(lambda: any(queue.in_flight for queue in blip.queues.values()))
                await other.refresh("far.orders")
                await other.submit(unit(append("far.orders", b"theirs"))).wait()
            await blip.until(lambda: len(blip.acknowledged) == 1 + len(VALUES))  # the slots are its own again
            await store.refresh("far.orders")
            assert await everything(store, "far.orders") == [b"first", b"theirs", *VALUES]
            await until(lambda: all(ingest.idle for ingest in gateway.bridges.ingests._leaving))
