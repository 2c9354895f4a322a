"""A consumer that is up reads a topic that it has not had before at once: the library itself looks for what is new once a second."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import attrs
import pytest
import trio

from gateway.store.kafka.names import kafka_name
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.reader import KafkaLogReader
from gateway.store.kafka.reading import KafkaPartition, ReadBounds, _Reader
from tests.kafka.node import Kafka
from tests.store.kit import append, create, open_on_kafka, unit

TOPICS = [f"cold.{number}" for number in range(9)]
IN_VAIN = 0.4
"""Seconds of looks that find nothing: the library's own look comes after nine tenths."""


@attrs.define
class Looking:
    """A consumer, and for how long somebody looked at it in vain."""

    consumer: Any
    in_vain: float = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.consumer, name)

    def poll(self, wait: float) -> Any:
        found = self.consumer.poll(wait)
        self.in_vain += 0 if found is not None else wait
        return found


@pytest.fixture
async def options(kafka: Kafka, topics: str) -> KafkaOptions:
    async with open_on_kafka(kafka.brokers, topics) as store:
        await create(store, *TOPICS)
        await store.submit(unit(*(append(topic, b"value") for topic in TOPICS))).wait()
    made = KafkaOptions([kafka.brokers], prefix=topics, timeout=60.0)
    # a transaction is decided before its partitions hear of it: until then they end before it
    with KafkaLogReader(made, whole=True) as log:
        await trio.to_thread.run_sync(log.topics)
    return made


def each(looking: Looking, read: Iterator[Any]) -> float:
    looks: list[float] = []
    for found in read:
        assert [run.columns.values() for run in found] == [[b"value"]]
        looks.append(looking.in_vain)
        looking.in_vain = 0
    assert len(looks) == len(TOPICS)
    return statistics.median(looks)  # a broker that is busy is so for some of them


async def test_a_reader_of_a_gateway(options: KafkaOptions) -> None:
    with closing(_Reader(options)) as reader:
        reader._consumer = looking = Looking(reader._consumer)
        places = [KafkaPartition(topic, kafka_name(options.prefix, topic), 0, 1) for topic in TOPICS]
        bounds = ReadBounds(0, 1, 1, 1 << 20, 0)
        assert each(looking, (reader.read(place, bounds, 1e12)[0].runs for place in places)) <= IN_VAIN


async def test_a_reader_of_the_log(options: KafkaOptions) -> None:
    with KafkaLogReader(options) as log:
        log._consumer = looking = Looking(log._reading())
        assert each(looking, (list(log.read_chunks(topic, 0)) for topic in TOPICS)) <= IN_VAIN
