"""Reading a log on Kafka from another process, without trio: Spark, tools, audits. The face of `gateway.store.reader.LogReader`.

Nothing is written, no group is joined. What a call says was so when it was made; records of transactions that are not
committed are not there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from gateway.envelope import Run
from gateway.errors import OffsetOutOfRange, StoreReadOnly, UnknownTopic, Unsupported
from gateway.store.interface import Stored, TopicConfig
from gateway.store.kafka.cluster import KafkaCluster, translated
from gateway.store.kafka.names import kafka_name, topic_name
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.records import runs
from gateway.store.reader import ReadableLog, StoredPartition, StoredTopic

OURS = "__gateway."
"""How the topics begin, behind the prefix, that hold no messages."""
BATCH = 5_000
STEP = 0.2
END = -191
"""_PARTITION_EOF."""
OUT_OF_RANGE = frozenset({-140, 1})
"""_AUTO_OFFSET_RESET, OFFSET_OUT_OF_RANGE."""


class KafkaLogReader(ReadableLog):
    """A log on Kafka. Raises StoreReadOnly where its brokers cannot be reached."""

    dense_offsets = False
    has_chunks = False

    def __init__(self, options: KafkaOptions) -> None:
        super().__init__(f"under {options.prefix} on Kafka")
        self._options = options
        self._cluster = KafkaCluster(options)
        self._consumer: Consumer | None = None
        self._topics: dict[str, StoredTopic] = {}

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def topics(self) -> Mapping[str, StoredTopic]:
        known = self._cluster.names()
        names = {
            kafka: topic
            for kafka in known
            if (topic := topic_name(self._options.prefix, kafka)) is not None and not topic.startswith(OURS)
        }
        described = self._cluster.describe(names)
        places = [(name, number) for name, one in described.items() for number in range(one.partitions)]
        bounds = self._cluster.bounds(places)
        found = {}
        for name, one in described.items():
            partitions = [
                StoredPartition(number, *bounds.get((name, number), (0, 0)), 0, 0, 0)
                for number in range(one.partitions)
            ]
            found[names[name]] = StoredTopic(names[name], one.epoch, TopicConfig(one.partitions), partitions)
        self._topics = found
        return found

    def read_chunks(
        self, topic: str, partition: int, start: int | None = None, end: int | None = None, *, epoch: int | None = None
    ) -> Iterator[Run]:
        # between two runs there may be offsets at which there is no record
        known = self.topic(topic)
        if epoch is not None and known.epoch != epoch:
            raise UnknownTopic(f"{topic} was made again")
        found = known.partition(partition)
        offset = found.start if start is None else start
        stop = found.end if end is None else min(end, found.end)
        if offset >= stop:
            return
        if offset < found.start:
            raise OffsetOutOfRange(first=found.start, next_offset=found.end)
        consumer = self._reading()
        consumer.assign([TopicPartition(kafka_name(self._options.prefix, topic), partition, offset)])
        for messages in self._batches(consumer, stop, found):
            yield from runs(messages, topic, partition, known.epoch)[0]
        consumer.unassign()

    def read_stored(
        self, topic: str, partition: int, start: int, end: int, records: int, size: int, *, epoch: int | None = None
    ) -> Iterator[Sequence[Stored]]:
        del topic, partition, start, end, records, size, epoch
        raise Unsupported("Kafka has no chunks of ours")

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        self.partition(topic, partition)
        found = self._cluster.offset_at(kafka_name(self._options.prefix, topic), partition, timestamp_ms)
        return self.bounds(topic, partition)[1] if found is None else found

    def _reading(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._options.consumer(**{"queued.max.messages.kbytes": 16 << 10}))
        return self._consumer

    def _batches(self, consumer: Consumer, stop: int, found: StoredPartition) -> Iterator[list[Any]]:
        # what lies before `stop`, until that is reached or there is nothing more
        until = time.monotonic() + self._options.timeout
        ended = False
        while not ended:
            messages: list[Any] = []
            for message in consumer.consume(BATCH, STEP):
                error = message.error()
                if error is None:
                    ended = ended or message.offset() >= stop - 1
                    if message.offset() < stop:
                        messages.append(message)
                elif error.code() == END:
                    ended = True
                elif error.code() in OUT_OF_RANGE:
                    raise OffsetOutOfRange(first=found.start, next_offset=found.end)
                else:
                    raise translated(KafkaException(error))
            if messages:
                until = time.monotonic() + self._options.timeout
                yield messages
            elif time.monotonic() > until:
                raise StoreReadOnly("Kafka does not answer")
