"""A broker whose disk is full, and a network that lies between gateway and brokers no more: nothing acknowledged is lost, nothing is
invented, refusals have names, and it heals.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
import trio

from gateway.errors import GatewayError, Status
from gateway.store.kafka.opening import open_kafka_store
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.reader import KafkaLogReader
from tests.integration.flymq_raw import ERROR, Flymq, frame, produce
from tests.integration.raw import TcpWire
from tests.integration.running import Served
from tests.kafka.node import Kafka
from tests.kafka.surroundings import elsewhere, small_disk
from tests.kafka.test_log_faults import Ledger, until
from tests.store.kit import append, create, everything, unit

PATIENCE = 240
pytestmark = pytest.mark.kafka


async def test_a_disk_of_the_brokers_is_full(tmp_path: Path) -> None:
    """The broker ends itself where it cannot write; with room it comes back, and the gateway goes on by itself."""
    kafka = Kafka(tmp_path / "kafka")
    (node,) = kafka.nodes
    with small_disk(node.data, 80) as disk, kafka, trio.fail_after(PATIENCE):
        # nothing that can be packed: the disk has to become full
        ledger = Ledger(padding=random.Random(4).randbytes(500_000))
        async with open_kafka_store(KafkaOptions([kafka.brokers], timeout=5.0)) as store:
            await create(store, "orders")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ledger.publish, store, "orders")
                await until(lambda: ledger.refused and not store.health.writable)
                assert len(ledger.acknowledged) > 20
                with pytest.raises(GatewayError) as refused:
                    await store.submit(unit(append("orders", b"x"))).wait()
                assert refused.value.status is Status.READ_ONLY
                assert "No space left on device" in node.log.read_text(errors="replace")
                before = len(ledger.acknowledged)
                disk.resize(400)
                await trio.to_thread.run_sync(node.kill)
                await trio.to_thread.run_sync(node.start)
                await until(lambda: store.health.writable and len(ledger.acknowledged) > before + 20)
                nursery.cancel_scope.cancel()
            await store.refresh("orders")
            ledger.judge(await everything(store, "orders"))


CONFIG = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "{door}:0"}}
storage: {{path: "{data}", kafka: {{brokers: ["{brokers}"], replication: 1, timeout: 3s}}}}
"""


async def publish(ledger: Ledger, door: str, port: int, refusals: set[str], topic: str = "orders") -> None:
    """One at a time, each as often as it takes, over a connection that stays."""
    async with await trio.open_tcp_stream(door, port) as stream:
        client = Flymq(TcpWire(stream))
        while not ledger.enough:
            value = b"%06d" % len(ledger.issued)
            ledger.issued.append(value)
            while value not in ledger.acknowledged[-1:]:
                await client.wire.send(frame(1, produce(topic, value)))
                operation, _flags, answer = await client.read()
                if operation == ERROR:
                    refusals.add(answer[3:].decode())
                    await trio.sleep(0.05)
                else:
                    ledger.acknowledged.append(value)


async def test_the_network_between_a_gateway_and_the_brokers_falls_apart(tmp_path: Path) -> None:
    """A client that is on the gateway's side hears that nothing is stored; when the link is back it goes on."""
    refusals: set[str] = set()
    ledger = Ledger()
    with elsewhere() as there, Kafka(tmp_path / "kafka", hosts=(there.here,)) as kafka, trio.fail_after(PATIENCE):
        config = CONFIG.format(door=there.door, data=tmp_path / "data", brokers=kafka.brokers)
        gateway = Served(tmp_path, config, there.within)
        await trio.to_thread.run_sync(gateway.start)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, ledger, there.door, gateway.ports["flymq"], refusals)
                for _ in range(2):
                    reached = len(ledger.acknowledged) + 20
                    await until(lambda: len(ledger.acknowledged) > reached)  # noqa: B023
                    there.cut()
                    refusals.clear()
                    await until(lambda: len(refusals) > 1)
                    reached = len(ledger.acknowledged)
                    there.mend()
                    await until(lambda: len(ledger.acknowledged) > reached + 20)  # noqa: B023
                nursery.cancel_scope.cancel()
            assert await trio.to_thread.run_sync(gateway.end, signal.SIGTERM) == 0
        finally:
            if gateway.running:
                gateway.end(signal.SIGKILL)
        with KafkaLogReader(KafkaOptions([kafka.brokers])) as reader:
            ledger.judge([value for run in reader.read_chunks("orders", 0) for value in run.columns.values()])
    assert any("not confirmed" in one or "has not" in one for one in refusals), refusals
