"""A gateway that freezes in the middle of a transaction, and wakes up when another has its work."""

from __future__ import annotations

import itertools
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import trio

from gateway.store.kafka.cluster import KafkaCluster
from gateway.store.kafka.options import KafkaOptions
from tests.integration.flymq_raw import ERROR, commit, flymq, frame, i32, produce, read_all
from tests.integration.gateways import until
from tests.integration.raw import s16
from tests.integration.running import Served
from tests.kafka.looking import ADMIN, owned
from tests.kafka.node import Kafka
from tests.kafka.test_ownership import CONFIG, FORWARD, PATIENCE, on_kafka, served

SLOTS = 32
LOOKS = 20


class Undecided:
    """What transactions have put into the log that are not over, and what becomes of it."""

    def __init__(self, brokers: str, prefix: str) -> None:
        self._cluster = KafkaCluster(KafkaOptions([brokers], prefix=prefix))
        self._names = [f"{prefix}__gateway.state"]

    def now(self) -> dict[str, range]:
        """By topic."""
        ends = {name: (self._cluster.decided(name), self._cluster.written(name)) for name in self._names}
        return {name: range(decided, written) for name, (decided, written) in ends.items() if decided < written}


def committed(brokers: str, topic: str) -> set[int]:
    """Where there is something that a reader of committed records gets, as any client of Kafka."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": brokers, "group.id": topic, "enable.partition.eof": True, "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: set[int] = set()
    try:
        while True:
            message: Any = consumer.poll(PATIENCE)
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            found.add(message.offset())
    finally:
        consumer.close()


async def owns(gateway: Served, slots: range) -> None:
    while await owned(gateway) not in slots:  # noqa: ASYNC110  # nobody tells
        await trio.sleep(0.05)


async def frozen_in_a_transaction(gateway: Served, undecided: Undecided) -> dict[str, range]:
    """Freeze it where it has one open, as a forward under load has nearly always. What is in it."""
    # after another while each time: it goes on with what became due meanwhile, and the same moment would miss that again and again
    waits = itertools.cycle(range(0, 60, 3))
    while True:
        gateway.send_signal(signal.SIGSTOP)
        for _ in range(LOOKS):
            await trio.sleep(0.05)
            found = await trio.to_thread.run_sync(undecided.now)
            if not found:
                break
        else:
            return found
        gateway.send_signal(signal.SIGCONT)
        await trio.sleep(next(waits) / 1000)


async def test_who_freezes_in_a_transaction_writes_nothing_when_he_wakes_up(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    """Kafka itself would leave the transaction open for five minutes: whoever takes over ends it."""
    sent: dict[bytes, list[bytes]] = {b"frozen": [], b"other": []}
    stopped = trio.Event()
    ended: set[bytes] = set()

    async def publish(gateway: Served, name: bytes) -> None:
        async with flymq(gateway.ports["flymq"]) as client:
            while not stopped.is_set():
                value = b"%s %06d" % (name, len(sent[name]))
                await client.ask(1, produce("out", value))
                sent[name].append(value)
                await trio.sleep(0.01)
        ended.add(name)

    async def has_sent(name: bytes, more: int) -> None:
        until_then = len(sent[name]) + more
        while len(sent[name]) < until_then:  # noqa: ASYNC110  # nobody tells
            await trio.sleep(0.05)

    with trio.fail_after(2 * PATIENCE):
        async with served(tmp_path / "far", CONFIG.format(data="DATA", kafka="")) as far:

            async def arrived() -> bool:
                return {*sent[b"frozen"], *sent[b"other"]} <= {*await read_all(far.ports["flymq"], "out")}

            config = on_kafka(kafka, topics, FORWARD.format(port=far.ports["flymq"])) + ADMIN
            config = config.replace("replication: 1", "replication: 1, timeout: 5m")
            async with served(tmp_path / "frozen", config) as frozen, trio.open_nursery() as nursery:
                await owns(frozen, range(SLOTS, SLOTS + 1))
                nursery.start_soon(publish, frozen, b"frozen")
                await has_sent(b"frozen", 50)
                open_ones = await frozen_in_a_transaction(frozen, Undecided(kafka.brokers, topics))
                async with served(tmp_path / "other", config) as other:
                    await owns(other, range(SLOTS, SLOTS + 1))
                    nursery.start_soon(publish, other, b"other")
                    await has_sent(b"other", 50)
                    await until(arrived)
                    frozen.send_signal(signal.SIGCONT)
                    await owns(other, range(1, SLOTS))
                    await owns(frozen, range(1, SLOTS))
                    await has_sent(b"frozen", 50)  # whoever waited for an answer, or asks anew, has it
                    stopped.set()
                    while ended != set(sent):  # noqa: ASYNC110  # before their gateways end, with the answer to the last
                        await trio.sleep(0.05)
                    await until(arrived)
                found = list(dict.fromkeys(await read_all(far.ports["flymq"], "out")))
            for topic, offsets in open_ones.items():
                assert not committed(kafka.brokers, topic) & {*offsets}, topic
    for name, values in sent.items():
        assert [value for value in found if value.startswith(name)] == values


async def test_who_was_taken_for_dead_moves_no_group_back(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """One client had committed and gone on elsewhere when its gateway read that; the other still waits, and asks again."""

    async def committed_there(group: str) -> int:
        async with flymq(other.ports["flymq"]) as client:
            answer = await client.ask(5, s16("read") + s16(group) + i32(0) + s16("commit"))
        return int.from_bytes(answer[:8], "big")

    async with AsyncExitStack() as stack, AsyncExitStack() as first_client:
        stack.enter_context(trio.fail_after(PATIENCE))
        frozen = await stack.enter_async_context(served(tmp_path / "frozen", on_kafka(kafka, topics) + ADMIN))
        goes = await first_client.enter_async_context(flymq(frozen.ports["flymq"]))
        waits = await stack.enter_async_context(flymq(frozen.ports["flymq"]))
        for number in range(30):
            await goes.ask(1, produce("read", b"%d" % number))
        for group in ("gone", "waiting"):
            await goes.ask(6, commit("read", group, 5))
        await owns(frozen, range(SLOTS, SLOTS + 1))
        frozen.send_signal(signal.SIGSTOP)
        other = await stack.enter_async_context(served(tmp_path / "other", on_kafka(kafka, topics) + ADMIN))
        await owns(other, range(SLOTS, SLOTS + 1))
        await goes.wire.send(frame(6, commit("read", "gone", 10)))
        await first_client.aclose()
        await waits.wire.send(frame(6, commit("read", "waiting", 10)))
        async with flymq(other.ports["flymq"]) as client:
            await client.ask(6, commit("read", "gone", 20))
        frozen.send_signal(signal.SIGCONT)
        operation, _, told = await waits.read()
        assert operation == ERROR, told
        while operation == ERROR:  # as it is told to
            await trio.sleep(0.1)
            await waits.wire.send(frame(6, commit("read", "waiting", 12)))
            operation, _, _ = await waits.read()
        while await committed_there("waiting") != 12:  # noqa: ASYNC110
            await trio.sleep(0.05)
        assert await committed_there("gone") == 20
