"""Brokers that die under a log: nothing acknowledged is lost, nothing is invented, and what is not taken is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import NewTopic

from gateway.errors import ConditionFailed, GatewayError, Status
from gateway.store.interface import Put, Require
from gateway.store.kafka.opening import open_kafka_store
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.transactions import Transactions
from tests.kafka.node import Kafka, Node
from tests.kafka.test_fencing import HeldUp
from tests.store.kit import append, create, everything, unit

PATIENCE = 240
TRANSACTIONS = "__transaction_state"
REFUSALS = {Status.READ_ONLY, Status.UNKNOWN_OUTCOME}


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await trio.lowlevel.checkpoint()
        await trio.sleep(0.02)


@attrs.define
class Ledger:
    """What a publisher was told."""

    padding: bytes = b""
    """At the end of each value."""
    issued: list[bytes] = attrs.Factory(list)
    acknowledged: list[bytes] = attrs.Factory(list)
    refused: list[GatewayError] = attrs.Factory(list)
    enough: bool = False
    """He ends with the answer to the one that is under way."""

    async def publish(self, store: Any, topic: str) -> None:
        """One at a time, each as often as it takes, until cancelled."""
        while True:
            value = b"%06d" % len(self.issued) + self.padding
            self.issued.append(value)
            while value not in self.acknowledged[-1:]:
                try:
                    await store.submit(unit(append(topic, value))).wait()
                    self.acknowledged.append(value)
                except GatewayError as error:
                    self.refused.append(error)
                    await trio.sleep(0.1)

    async def count(self, store: Any, row: bytes) -> None:
        """The same in transactions that depend on a row, until cancelled."""
        number = 0
        while True:
            before = store.table("counts").get(row)
            number = int(before or b"0") + 1
            value = row + b"%06d" % number
            self.issued.append(value)
            try:
                await store.submit(
                    unit(
                        append("counted", value),
                        requires=[Require("counts", row, before)],
                        puts=[Put("counts", row, b"%d" % number)],
                    )
                ).wait()
                self.acknowledged.append(value)
            except ConditionFailed:
                continue
            except GatewayError as error:
                self.refused.append(error)
                await trio.sleep(0.1)

    def judge(self, found: list[bytes]) -> None:
        assert {one.status for one in self.refused} <= REFUSALS, self.refused
        first = list(dict.fromkeys(found))
        assert set(self.acknowledged) <= set(first), "acknowledged and lost"
        assert set(first) <= set(self.issued), "invented"
        assert first == sorted(first), "out of order"


def options(kafka: Kafka, prefix: str) -> KafkaOptions:
    return KafkaOptions([kafka.brokers], prefix=prefix, replication=3, min_insync=2, timeout=10.0)


async def test_the_leader_and_the_controller_die(kafka_cluster: Kafka, topics: str) -> None:
    plain, units = Ledger(), Ledger()
    with trio.fail_after(PATIENCE):
        async with open_kafka_store(options(kafka_cluster, topics)) as store:
            await create(store, "plain", "counted")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(plain.publish, store, "plain")
                nursery.start_soon(units.count, store, b"n")
                await until(lambda: len(plain.acknowledged) > 20 and len(units.acknowledged) > 5)
                for node in (
                    kafka_cluster.leader(f"{topics}plain"),
                    kafka_cluster.leader(f"{topics}__gateway.state"),
                    kafka_cluster.controller(),
                ):
                    if not node.running:
                        continue
                    await trio.to_thread.run_sync(node.kill)
                    reached = len(plain.acknowledged) + 20, len(units.acknowledged) + 5
                    await until(lambda: (len(plain.acknowledged), len(units.acknowledged)) > reached)  # noqa: B023
                    await until(lambda: len(units.acknowledged) > reached[1])  # noqa: B023
                    await trio.to_thread.run_sync(node.start)
                nursery.cancel_scope.cancel()
        async with open_kafka_store(options(kafka_cluster, topics)) as again:
            plain.judge(await everything(again, "plain"))
            counted = await everything(again, "counted")
            units.judge(counted)
            assert len(counted) == len(set(counted)), "a transaction is there twice"
            assert again.table("counts")[b"n"] == b"%d" % len(counted)


def coordinator(kafka: Kafka, transactional: str) -> Node:
    """Who decides about these transactions: a partition of Kafka's own log, found as Kafka finds it (Java's hash of a text)."""
    number = 0
    for letter in transactional:
        number = (31 * number + ord(letter)) & 0xFFFF_FFFF
    partitions = len(kafka.admin.list_topics(TRANSACTIONS, timeout=PATIENCE).topics[TRANSACTIONS].partitions)
    return kafka.leader(TRANSACTIONS, (number & 0x7FFF_FFFF) % partitions)


async def test_a_coordinator_that_moves_in_the_middle_of_a_commit(kafka_cluster: Kafka, topics: str) -> None:
    """It is frozen with the commit in its hands, and dies: the next one finishes it, or nobody says that it did."""
    units = Ledger()
    with trio.fail_after(PATIENCE):
        async with open_kafka_store(options(kafka_cluster, topics)) as store:
            await create(store, "counted")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(units.count, store, b"n")
                await until(lambda: len(units.acknowledged) > 5)
                for _ in range(2):
                    name = store._options.own + store.member.hex()
                    node = await trio.to_thread.run_sync(coordinator, kafka_cluster, name)
                    held = HeldUp(store._transactions, "commit")
                    await held.reached.wait()
                    node.freeze()
                    held.again.set()
                    await trio.sleep(0.2)  # the commit is on its way, and nobody answers
                    await trio.to_thread.run_sync(node.kill)
                    reached = len(units.acknowledged)
                    await until(lambda: len(units.acknowledged) > reached + 5)  # noqa: B023
                    await trio.to_thread.run_sync(node.start)
                nursery.cancel_scope.cancel()
        async with open_kafka_store(options(kafka_cluster, topics)) as again:
            counted = await everything(again, "counted")
            units.judge(counted)
            assert len(counted) == len(set(counted)), "a transaction is there twice"
            assert again.table("counts")[b"n"] == b"%d" % len(counted)


async def test_without_a_majority_nothing_is_taken_and_it_heals(kafka_cluster: Kafka, topics: str) -> None:
    ledger = Ledger()
    with trio.fail_after(PATIENCE):
        async with open_kafka_store(options(kafka_cluster, topics)) as store:
            await create(store, "plain")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ledger.publish, store, "plain")
                await until(lambda: len(ledger.acknowledged) > 20)
                leader = kafka_cluster.leader(f"{topics}plain")
                others = [node for node in kafka_cluster.nodes if node is not leader]
                for node in others:
                    await trio.to_thread.run_sync(node.kill)
                await until(lambda: not store.health.writable)
                await until(lambda: bool(ledger.refused))  # the publisher hears it in a step of its own
                with pytest.raises(GatewayError) as refused:
                    await store.submit(unit(append("plain", b"x"))).wait()
                assert refused.value.status is Status.READ_ONLY
                for node in others:
                    node.start(wait=False)
                for node in others:
                    await trio.to_thread.run_sync(node.wait)
                before = len(ledger.acknowledged)
                await until(lambda: store.health.writable and len(ledger.acknowledged) > before + 20)
                nursery.cancel_scope.cancel()
            await store.refresh("plain")
            ledger.judge(await everything(store, "plain"))


@pytest.mark.kafka
async def test_the_first_on_a_cluster_waits_for_its_coordinators(tmp_path: Path) -> None:
    """For as long as a start waits for whatever else the brokers have to make first, and not for one `timeout`."""
    settings = {"transaction.state.log.replication.factor": "2"}  # of one broker: so there is no log of them
    with Kafka(tmp_path / "kafka", settings=settings) as kafka, trio.fail_after(PATIENCE):
        options = KafkaOptions([kafka.brokers], timeout=1.0)
        first = Transactions(options, b"first")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, first.ready)
            with pytest.raises(KafkaException):  # what another one is told after twice the time
                await trio.to_thread.run_sync(
                    Producer(options.producer(**{"transactional.id": "x"})).init_transactions, 2
                )
            kafka.admin.create_topics([NewTopic(TRANSACTIONS, 4, 1)])[TRANSACTIONS].result(PATIENCE)
        first.abort()
