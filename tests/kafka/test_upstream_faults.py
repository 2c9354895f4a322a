"""Forwarding into a Kafka while it, and the gateway, are killed and frozen: everything acknowledged is there, once, in order."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.integration.oracle import PROTOCOLS, Oracle, read_id
from tests.integration.running import Served
from tests.kafka.foreign import everything, make
from tests.kafka.node import Kafka

DEADLINE = 400


class Address:
    """What is between the gateway and the broker: nothing."""

    def __init__(self, kafka: Kafka) -> None:
        self.port = int(kafka.brokers.rpartition(":")[2])


class KafkaOracle(Oracle):
    """The far end is a Kafka of its own."""

    def __init__(self, directory: Path, seed: int, kafka: Kafka) -> None:
        super().__init__(directory, seed, upstreams=("kafka",))
        self.kafka = kafka
        self.networks: dict[str, Any] = {"kafka": Address(kafka)}
        self._seen: dict[str, int] = {}

    async def start(self, nursery: trio.Nursery) -> None:
        self.near = Served(self._directory / "near", self._near_config())
        for name in PROTOCOLS:
            partitions = 2 if name == "flymq" else 1  # who has keys has partitions
            await trio.to_thread.run_sync(make, self.kafka, f"kafka.{name}", partitions)
        await trio.to_thread.run_sync(self.near.start)
        self._nursery = nursery
        self._start_producing()

    async def collect(self) -> None:
        for name in PROTOCOLS:
            topic = f"kafka.{name}"
            found = await trio.to_thread.run_sync(everything, self.kafka, topic)
            self.ledger.arrived[topic] = [read_id(record.value()) for record in found]


@pytest.mark.kafka
@pytest.mark.processes
async def test_each_arrives_once_however_often_kafka_or_the_gateway_is_killed(tmp_path: Path) -> None:
    with Kafka(tmp_path / "kafka") as kafka:
        (node,) = kafka.nodes
        oracle = KafkaOracle(tmp_path, 11, kafka)
        try:
            with trio.fail_after(DEADLINE):
                async with trio.open_nursery() as nursery:
                    await oracle.start(nursery)
                    await oracle.more(20)
                    await oracle.restart(oracle.near, signal.SIGKILL)
                    await oracle.more(20)
                    await trio.to_thread.run_sync(node.kill)
                    await oracle.more(20)
                    await trio.to_thread.run_sync(node.start)
                    await oracle.more(20)
                    node.freeze()
                    await oracle.more(20)
                    await oracle.restart(oracle.near, signal.SIGKILL)
                    node.thaw()
                    await oracle.more(20)
                    await oracle.restart(oracle.near, signal.SIGTERM)
                    await oracle.more(20)
                    oracle.stop_producing()
                    await oracle.settle()
                    nursery.cancel_scope.cancel()
        finally:
            oracle.end()
        oracle.ledger.judge()
