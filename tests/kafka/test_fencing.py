"""A gateway that does not know yet that another one has its jobs writes nothing for them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from gateway.broker.ownership import TABLE, Owners
from gateway.broker.timers import Pump, SystemClock
from gateway.errors import ConditionFailed, GatewayError, OutcomeUnknown
from gateway.store.interface import Put, Require
from gateway.store.kafka.opening import open_kafka_store
from gateway.store.kafka.options import KafkaOptions
from tests.kafka.node import Kafka
from tests.store.kit import append, create, everything, open_on_kafka, publish, starting, unit
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


class HeldUp:
    """A gateway that stops, as frozen, before it does the next of this to its transaction, in a thread of its own."""

    def __init__(self, transactions: Any, step: str, topic: str | None = None) -> None:
        """`topic`: only where it is about this one."""
        self.reached = trio.Event()
        self.again = threading.Event()
        token = trio.lowlevel.current_trio_token()
        really = getattr(transactions, step)

        def stop(*given: Any) -> Any:
            if not self.reached.is_set() and topic in {None, *given[:1]}:
                trio.from_thread.run_sync(self.reached.set, trio_token=token)
                self.again.wait(PATIENCE)
            return really(*given)

        setattr(transactions, step, stop)


@pytest.mark.parametrize("step", ["begin", "write", "commit"])
async def test_whoever_froze_at_any_step_writes_nothing_for_a_job_that_is_anothers(
    kafka: Kafka, topics: str, step: str
) -> None:
    """Whoever takes its slots ends what it has begun, and does not wait for Kafka's clock to do so: there is no moment at which
    a job is another's and what the one before has begun is still stored.
    """
    clock = SystemClock()
    pump = Pump(clock.now)
    asked = KafkaOptions([kafka.brokers], prefix=topics, timeout=2 * PATIENCE)
    with trio.fail_after(2 * PATIENCE):
        async with (
            trio.open_nursery() as nursery,
            open_kafka_store(asked) as store,
            open_kafka_store(asked) as other,
        ):
            nursery.start_soon(pump.run)
            await create(store, "log")
            await other.refresh("log")
            begin = starting(nursery)
            mine, theirs = Owners(store, clock, pump, begin), Owners(other, clock, pump, begin)
            jobs = [f"job {number}" for number in range(40)]
            await until(lambda: mine.held > 0 and theirs.held > 0 and mine.held + theirs.held == store.slots)
            job = next(one for one in jobs if mine.owns(one))
            held = HeldUp(store._transactions, step, f"{topics}log" if step == "write" else None)
            moves = [Put("progress", b"forward", b"mine")]
            frozen = store.submit(unit(append("log", b"mine"), puts=moves, requires=mine.guard(job)))
            await held.reached.wait()
            async with deaf(store):
                assert store._slots is not None
                await trio.to_thread.run_sync(store._slots.close)  # the others take it for gone
                await until(lambda: theirs.held == other.slots)
                moves = [Put("progress", b"forward", b"theirs")]
                await other.submit(unit(append("log", b"theirs"), puts=moves, requires=theirs.guard(job))).wait()
                held.again.set()
            with pytest.raises(GatewayError):
                await frozen.wait()
            assert await everything(other, "log") == [b"theirs"]
            assert other.table("progress")[b"forward"] == b"theirs"
            await until(lambda: store.table("progress").get(b"forward") == b"theirs" and not mine.owns(job))
            nursery.cancel_scope.cancel()


def fenced_by(store: Any) -> list[bytes]:
    """Whom it fences from now on."""
    fenced: list[bytes] = []
    really = store.fence

    async def fence(member: bytes) -> None:
        fenced.append(member)
        await really(member)

    store.fence = fence
    return fenced


async def test_who_lives_and_was_taken_for_dead_goes_on(kafka: Kafka, topics: str) -> None:
    clock = SystemClock()
    pump = Pump(clock.now)
    with trio.fail_after(PATIENCE):
        async with (
            trio.open_nursery() as nursery,
            open_on_kafka(kafka.brokers, topics) as store,
            open_on_kafka(kafka.brokers, topics) as other,
        ):
            nursery.start_soon(pump.run)
            await create(store, "log", "plain")
            mine = Owners(store, clock, pump, starting(nursery))
            changes: list[int] = []
            await until(lambda: mine.held == store.slots)
            mine.on_change(lambda: changes.append(mine.held))
            held = HeldUp(store._transactions, "commit")
            under_way = store.submit(unit(append("log", b"under way"), requires=mine.guard("job")))
            await held.reached.wait()
            await other.fence(store.member)
            await publish(store, "plain", b"is no transaction")
            held.again.set()
            with pytest.raises(OutcomeUnknown):
                await under_way.wait()
            assert store.health.writable  # it is not the brokers that did not take something
            await publish(store, "log", b"goes on")
            await until(lambda: changes[-1:] == [store.slots])
            assert changes[0] == 0  # until it had its slots again it did nothing of what is theirs
            await store.submit(unit(append("log", b"is its own again"), requires=mine.guard("job"))).wait()
            assert await everything(store, "log") == [b"goes on", b"is its own again"]
            assert await everything(store, "plain") == [b"is no transaction"]
            nursery.cancel_scope.cancel()


async def test_only_who_did_not_give_up_a_slot_himself_is_fenced(kafka: Kafka, topics: str) -> None:
    clock = SystemClock()
    pump = Pump(clock.now)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery, open_on_kafka(kafka.brokers, topics) as staying:
            nursery.start_soon(pump.run)
            fenced = fenced_by(staying)
            stays = Owners(staying, clock, pump, starting(nursery))
            for gives_up in (True, False):
                async with open_on_kafka(kafka.brokers, topics) as going:
                    goes = Owners(going, clock, pump, starting(nursery))
                    theirs = fenced_by(going)
                    await until(lambda: 0 < goes.held < goes.held + stays.held == staying.slots)  # noqa: B023
                    if gives_up:
                        await goes.close()
                    else:
                        going.submit = lambda *_: staying.submit(unit(requires=[Require("never", b"so", b"that")]))
                await until(lambda: stays.held == staying.slots)
                assert theirs == []
                assert fenced == ([] if gives_up else [going.member])
            nursery.cancel_scope.cancel()


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
                third = store.submit(unit(append("log", b"third"), requires=[mine]))
                await until(lambda: store.member in other.tables.line)
                await other.refresh("log")
            with pytest.raises(ConditionFailed):
                await third.wait()
            await other.refresh("log")
            assert await everything(other, "log") == [b"first", b"second"]
