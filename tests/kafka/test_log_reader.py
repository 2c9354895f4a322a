"""A log on Kafka that is read from outside: what was acknowledged is there, also what Kafka has answered and not written to its end yet."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from confluent_kafka import Producer

from gateway.arrow.columns import record_batch
from gateway.errors import StoreReadOnly
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.reader import KafkaLogReader
from gateway.store.kafka.records import MOST_TIME_MS
from tests.kafka.foreign import make, produce_all
from tests.kafka.node import PATIENCE, Kafka


class Waits(threading.Event):
    """What a reader rests on between two looks."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.begun.set()
        return super().wait(timeout)


def under_way(kafka: Kafka, topic: str) -> Any:
    """A record in a transaction that is not over, and an acknowledged one behind it."""
    make(kafka, topic)
    producer = Producer({"bootstrap.servers": kafka.brokers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce(topic, b"in it")
    assert producer.flush(PATIENCE) == 0
    produce_all(kafka, topic, [b"behind it"])
    return producer


def values(log: KafkaLogReader) -> list[bytes]:
    return [value for run in log.read_chunks("orders", 0) for value in run.columns.values()]


async def test_what_is_under_way_is_waited_for(kafka: Kafka, topics: str) -> None:
    producer = await trio.to_thread.run_sync(under_way, kafka, topics + "orders")
    found: list[bytes] = []
    over = trio.Event()
    with KafkaLogReader(KafkaOptions([kafka.brokers], prefix=topics, timeout=PATIENCE)) as log:
        log._cluster._pause = waits = Waits()

        async def read() -> None:
            found.extend(await trio.to_thread.run_sync(values, log))
            over.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            while not (waits.begun.is_set() or over.is_set()):  # noqa: ASYNC110  # one of them is a thread's
                await trio.sleep(0.02)
            await trio.to_thread.run_sync(producer.commit_transaction, PATIENCE)
    assert found == [b"in it", b"behind it"]


async def test_a_time_that_no_column_holds_is_the_last_that_one_does(kafka: Kafka, topics: str) -> None:
    """Brokers may be set to take any."""

    def written() -> None:
        make(kafka, topics + "orders", message_timestamp_after_max_ms=str(2**63 - 1))
        producer = Producer({"bootstrap.servers": kafka.brokers, "log_level": 0})
        for time_ms in (1, 1 << 62, MOST_TIME_MS):
            producer.produce(topics + "orders", b"%d" % time_ms, timestamp=time_ms)
        assert producer.flush(PATIENCE) == 0

    await trio.to_thread.run_sync(written)
    with KafkaLogReader(KafkaOptions([kafka.brokers], prefix=topics, timeout=PATIENCE)) as log:
        runs = await trio.to_thread.run_sync(lambda: list(log.read_chunks("orders", 0)))
    assert [at for run in runs for at in run.times] == [1, MOST_TIME_MS, MOST_TIME_MS]
    shown = record_batch(runs)["timestamp"].cast("int64").to_pylist()
    assert shown == [1_000, MOST_TIME_MS * 1_000, MOST_TIME_MS * 1_000]


async def test_a_transaction_that_nobody_ends(kafka: Kafka, topics: str) -> None:
    """A reader of what there is goes on without it; for a copy that is too little."""
    producer = await trio.to_thread.run_sync(under_way, kafka, topics + "orders")
    options = KafkaOptions([kafka.brokers], prefix=topics, timeout=PATIENCE)
    with KafkaLogReader(options, patience=0) as log:
        assert await trio.to_thread.run_sync(values, log) == []
    with (
        KafkaLogReader(options, whole=True, patience=0) as log,
        pytest.raises(StoreReadOnly, match=r"orders/0 from offset 0 on"),
    ):
        await trio.to_thread.run_sync(log.topics)
    await trio.to_thread.run_sync(producer.abort_transaction, PATIENCE)
    with KafkaLogReader(options, whole=True) as log:
        assert await trio.to_thread.run_sync(values, log) == [b"behind it"]
