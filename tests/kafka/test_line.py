"""Whoever decides something by shared rows stands in line, with nothing open; and who stands first and hangs is fenced."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import confluent_kafka
import pytest
import trio

from gateway.errors import CommitFailed, ConditionFailed, OutcomeUnknown, TurnMissed
from gateway.store.interface import Put, Require
from gateway.store.kafka.engine import KafkaStore
from gateway.store.kafka.opening import open_kafka_store
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.tables import place_key
from tests.kafka.node import Kafka
from tests.kafka.test_fencing import HeldUp, deaf
from tests.store.kit import append, create, everything, publish, unit
from tests.unit.bridges.peers import until

PATIENCE = 120
SHORT = 3.0
"""Seconds after which who stands first is fenced."""
NEVER = 2.0 * PATIENCE


async def opened(stack: AsyncExitStack, kafka: Kafka, prefix: str, count: int, timeout: float) -> Sequence[KafkaStore]:
    stack.enter_context(trio.fail_after(PATIENCE))
    asked = KafkaOptions([kafka.brokers], prefix=prefix, timeout=timeout)
    return [await stack.enter_async_context(open_kafka_store(asked)) for _ in range(count)]


def swap(key: bytes, before: bytes | None, after: bytes) -> Any:
    """Only while the row is as it was."""
    return unit(puts=[Put("rows", key, after)], requires=[Require("rows", key, before)])


async def decided(store: KafkaStore, what: Any) -> None:
    """Ask again as long as others are in the way: on a busy machine it takes longer than that to end two of them."""
    while True:
        with suppress(TurnMissed):
            await store.submit(what).wait()
            return


async def bounds(store: KafkaStore) -> tuple[int, int]:
    """Up to where the log of the state is decided, and where it ends."""
    topic = store._options.state_topic
    both = store.cluster.decided, store.cluster.written
    decided, written = [await trio.to_thread.run_sync(one, topic) for one in both]
    return decided, written


async def test_who_waits_holds_nobody_up(kafka: Kafka, topics: str) -> None:
    """A gateway that hears nothing has something to decide. Before, it waited for what it did not hear of with its own rows
    written and not decided, and nobody who follows the log read on behind them.
    """
    async with AsyncExitStack() as stack:
        hears_nothing, writes, follows = await opened(stack, kafka, topics, 3, NEVER)
        for number in range(2):  # it is known to be alone in line
            await hears_nothing.submit(swap(b"own", b"0" if number else None, b"%d" % number)).wait()
        async with deaf(hears_nothing):
            await writes.submit(unit(puts=[Put("rows", b"between", b"them")])).wait()
            _decided, before = await bounds(writes)
            asked = hears_nothing.submit(swap(b"own", b"1", b"2"))
            while (await bounds(writes))[1] == before:  # noqa: ASYNC110  # until it has come as far as it comes
                await trio.sleep(0.05)
            for number in range(20):
                await writes.submit(unit(puts=[Put("rows", b"plain", b"%d" % number)])).wait()
                await until(lambda number=number: follows.table("rows").get(b"plain") == b"%d" % number)  # type: ignore[misc]
            decided, written = await bounds(writes)
            assert decided == written
            assert not asked.done
        await asked.wait()
        await until(lambda: follows.table("rows")[b"own"] == b"2")


@pytest.mark.parametrize("where", ["in line", "begin", "write", "commit"])
async def test_who_stands_first_and_hangs_is_fenced_though_he_has_no_slot(
    kafka: Kafka, topics: str, where: str
) -> None:
    async with AsyncExitStack() as stack:
        hangs, goes_on = await opened(stack, kafka, topics, 2, SHORT)
        await create(hangs, "log")
        await hangs.submit(swap(b"key", None, b"before")).wait()
        theirs = unit(
            append("log", b"theirs"),
            puts=[Put("rows", b"key", b"theirs")],
            requires=[Require("rows", b"key", b"before")],
        )
        if where == "in line":
            async with deaf(hangs):
                frozen = hangs.submit(theirs)
                await until(lambda: hangs.member in goes_on.tables.line)
                await decided(goes_on, swap(b"key", b"before", b"ours"))
        else:
            held = HeldUp(hangs._transactions, where, f"{topics}log" if where == "write" else None)
            frozen = hangs.submit(theirs)
            await held.reached.wait()
            await decided(goes_on, swap(b"key", b"before", b"ours"))
            held.again.set()
        assert goes_on.health.writable
        with pytest.raises(OutcomeUnknown if where == "commit" else CommitFailed):
            await frozen.wait()
        assert hangs.health.writable  # it is not Kafka that did not take something
        with pytest.raises(ConditionFailed):
            await decided(hangs, theirs)
        await decided(hangs, swap(b"key", b"ours", b"again"))
        await publish(hangs, "log", b"goes on")
        assert await everything(hangs, "log") == [b"goes on"]
        await until(lambda: goes_on.table("rows")[b"key"] == b"again")
        await until(lambda: all(one.tables.line.first is None for one in (hangs, goes_on)))


async def test_what_others_left_open_is_waited_for_and_no_longer_than_that(kafka: Kafka, topics: str) -> None:
    """It is no gateway's, so that there is nobody to fence: who decides is told so in time, and everybody else goes on."""
    async with AsyncExitStack() as stack:
        store, other = await opened(stack, kafka, topics, 2, 1.0)
        await create(store, "log")
        foreign = confluent_kafka.Producer({"bootstrap.servers": kafka.brokers, "transactional.id": f"{topics}foreign"})
        await trio.to_thread.run_sync(foreign.init_transactions)
        foreign.begin_transaction()
        foreign.produce(store._options.state_topic, b"row", b"foreign\0key")
        await trio.to_thread.run_sync(foreign.flush)
        for one in (store, other):
            with pytest.raises(TurnMissed):
                await one.submit(swap(b"key", None, b"never")).wait()
            assert one.health.writable
            await publish(one, "log", b"goes on")
        await trio.to_thread.run_sync(foreign.abort_transaction)
        for number, one in enumerate((store, other)):
            await decided(one, swap(b"key", b"0" if number else None, b"%d" % number))
        await until(lambda: store.table("rows") == {b"key": b"1"})
        await until(lambda: all(one.tables.line.first is None for one in (store, other)))


async def test_who_died_in_line_is_taken_out_of_it(kafka: Kafka, topics: str) -> None:
    async with AsyncExitStack() as stack:
        store, other = await opened(stack, kafka, topics, 2, 1.0)
        foreign = confluent_kafka.Producer({"bootstrap.servers": kafka.brokers})
        for member in (b"one that died", b"another"):
            foreign.produce(store._options.state_topic, b"", place_key(member))
        await trio.to_thread.run_sync(foreign.flush)
        async with trio.open_nursery() as nursery:
            for key, one in ((b"a", store), (b"b", other)):
                nursery.start_soon(decided, one, swap(key, None, b"x"))
        await until(lambda: all(one.tables.line.first is None for one in (store, other)))


async def test_who_stands_in_line_for_nothing_leaves(kafka: Kafka, topics: str) -> None:
    """What said that it stands there came late: it had given up by then."""
    async with AsyncExitStack() as stack:
        store, other = await opened(stack, kafka, topics, 2, NEVER)
        await store.submit(swap(b"key", None, b"x")).wait()
        foreign = confluent_kafka.Producer({"bootstrap.servers": kafka.brokers})
        foreign.produce(store._options.state_topic, b"", place_key(store.member))
        await trio.to_thread.run_sync(foreign.flush)
        await other.submit(swap(b"key", b"x", b"y")).wait()
        # and who has asked for what does not apply
        with pytest.raises(ConditionFailed):
            await store.submit(swap(b"key", b"x", b"z")).wait()
        await other.submit(swap(b"key", b"y", b"z")).wait()


async def test_of_many_who_decide_at_once_each_has_his_turn(kafka: Kafka, topics: str) -> None:
    """Four gateways count by one row, and each of them is held up once at each step, so that it is fenced."""
    counted = 0
    async with AsyncExitStack() as stack:
        stores = await opened(stack, kafka, topics, 4, SHORT)

        async def count(store: KafkaStore, step: str) -> None:
            nonlocal counted
            mine = 0
            held: HeldUp | None = None
            while mine < 10:
                seen = store.table("rows").get(b"n")
                if mine == 5 and held is None:
                    held = HeldUp(store._transactions, step)
                    nursery.start_soon(let_go, held)
                with suppress(ConditionFailed, CommitFailed):
                    try:
                        await store.submit(swap(b"n", seen, b"%d" % (int(seen or b"0") + 1))).wait()
                    except OutcomeUnknown:
                        mine += 1  # it may be there: counted, and not as one that is
                    else:
                        mine += 1
                        counted += 1
                    continue
                await until(lambda seen=seen: store.table("rows").get(b"n") != seen or store.tables.line.first is None)  # type: ignore[misc]

        async def let_go(held: HeldUp) -> None:
            await held.reached.wait()
            await trio.sleep(2 * SHORT)
            held.again.set()

        async with trio.open_nursery() as nursery:
            for store, step in zip(stores, ["ready", "begin", "write", "commit"], strict=True):
                nursery.start_soon(count, store, step)
        for one in stores:
            await decided(one, unit(requires=[Require("never", b"key", None)]))  # it has read all that was written
            assert counted <= int(one.table("rows")[b"n"]) <= counted + len(stores)
        await until(lambda: all(one.tables.line.first is None for one in stores))
