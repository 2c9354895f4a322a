"""Reading a log on Kafka from another process, without trio: Spark, tools, audits. The face of `gateway.store.reader.LogReader`.

Nothing is written, no group is joined. What a call says was so when it was made; records of transactions that are not
committed are not there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from confluent_kafka import Consumer, KafkaException, TopicPartition

from gateway.envelope import Run
from gateway.errors import OffsetOutOfRange, StoreReadOnly, UnknownTopic, Unsupported
from gateway.librdkafka.codes import NO_SUCH_OFFSET, PARTITION_END
from gateway.librdkafka.threads import look_up, together
from gateway.store.interface import Stored, TopicConfig
from gateway.store.kafka.cluster import Bounds, KafkaCluster, Known, translated
from gateway.store.kafka.names import kafka_name, topic_name
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.records import AT_ONCE, RunReader
from gateway.store.kafka.tables import Tables
from gateway.store.kafka.topic_rows import TOPICS, read_topic_row
from gateway.store.reader import ReadableLog, StoredPartition, StoredTopic

OURS = "__gateway."
"""How the topics begin, behind the prefix, that hold no messages."""
ASKED_AT_ONCE = 500
STEP = 0.2


class KafkaLogReader(ReadableLog):
    """A log on Kafka. Raises StoreReadOnly where its brokers cannot be reached.

    What was acknowledged when it is asked where the log ends is there: for that it waits up to `timeout` for transactions under
    way. Behind one that nobody ends there may be more, which counts when Kafka has ended it.
    """

    dense_offsets = False
    has_chunks = False

    def __init__(self, options: KafkaOptions, *, whole: bool = False, patience: float | None = None) -> None:
        """`whole`: raise StoreReadOnly, too, where a transaction is not over in time; `patience`: another one for that."""
        super().__init__(f"under {options.prefix} on Kafka")
        self._options = options
        self._whole = whole
        self._patience = options.timeout if patience is None else patience
        self._cluster = KafkaCluster(options)
        self._consumer: Consumer | None = None
        self._read_tables: Tables | None = None

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def topics(self) -> Mapping[str, StoredTopic]:
        names = {
            kafka: topic
            for kafka in self._cluster.names()
            if (topic := topic_name(self._options.prefix, kafka)) is not None and not topic.startswith(OURS)
        }
        return self._stored(names)

    def topic(self, name: str) -> StoredTopic:
        found = self._stored({kafka_name(self._options.prefix, name): name}).get(name)
        if found is None:
            raise self._unknown(name)
        return found

    def _stored(self, names: Mapping[str, str]) -> dict[str, StoredTopic]:
        # of these names of Kafka's, and what they are called here, those that there are
        described: dict[str, Known] = {}
        asked = list(names)
        for begin in range(0, len(asked), ASKED_AT_ONCE):
            described |= self._cluster.describe(asked[begin : begin + ASKED_AT_ONCE])
        places = [(name, number) for name, one in described.items() for number in range(one.partitions)]
        bounds = self._bounds(places)
        found: dict[str, StoredTopic] = {}
        for name, one in described.items():
            partitions = [
                StoredPartition(number, *bounds.get((name, number), (0, 0)), 0, 0, 0)
                for number in range(one.partitions)
            ]
            found[names[name]] = StoredTopic(names[name], one.epoch, TopicConfig(one.partitions), partitions)
        return found

    def _bounds(self, places: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], Bounds]:
        bounds, undecided = self._cluster.settled_bounds(places, self._patience)
        if undecided and self._whole:
            name, number = undecided[0]
            raise StoreReadOnly(
                f"a transaction that nobody ends is open in {name}/{number} from offset {bounds[name, number][1]} on, and what"
                " was acknowledged may stand behind it. Kafka ends it by itself when its time is over"
            )
        return bounds

    def configured(self, topic: StoredTopic) -> TopicConfig:
        """What a topic is set to: as a gateway has said, or else as Kafka has it."""
        row = self._tables().get(TOPICS, topic.name.encode())
        if row is not None and (known := read_topic_row(row)).epoch == topic.epoch:
            return attrs.evolve(known.config(), partitions=len(topic.partitions))
        settings = self._cluster.settings(kafka_name(self._options.prefix, topic.name))
        kept, size = int(settings.get("retention.ms", -1)), int(settings.get("retention.bytes", -1))
        return attrs.evolve(
            topic.config,
            retention_seconds=kept / 1000 if kept >= 0 else None,
            retention_bytes=size * len(topic.partitions) if size >= 0 else None,
        )

    def own_settings(self, topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        """By topic, what Kafka alone knows of it: compaction, segments and the like."""
        names = {kafka_name(self._options.prefix, topic): topic for topic in topics}
        return {names[kafka]: found for kafka, found in self._cluster.own_settings(names).items()}

    def served(self) -> bool:
        """Whether there are gateways that serve the log."""
        return bool(self._cluster.members(self._options.owners_group))

    def identity(self) -> str:
        """What tells this log from all others, however its brokers are named."""
        return f"kafka:{self._cluster.identity()}/{self._options.prefix}"

    def tables(self) -> Sequence[str]:
        """The names of all tables that have rows."""
        return self._tables().names()

    def rows(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All rows of a table in key order."""
        return iter(sorted(self._tables().table(table).items()))

    def _tables(self) -> Tables:
        # as they were when they were first asked for
        if self._read_tables is None:
            self._read_tables = Tables()
            state = self._options.state_topic
            bounds = self._bounds([(state, 0)]).get((state, 0)) if state in self._cluster.names() else None
            if bounds is not None and bounds[0] < bounds[1]:
                consumer = self._reading()
                consumer.assign([TopicPartition(state, 0, bounds[0])])
                for messages in self._batches(consumer, bounds[1], StoredPartition(0, *bounds, 0, 0, 0)):
                    self._read_tables.take_in(messages)
                consumer.unassign()
        return self._read_tables

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
        consumer, place = self._reading(), TopicPartition(kafka_name(self._options.prefix, topic), partition, offset)
        look_up(consumer, place.topic)
        consumer.assign([place])
        decoder = RunReader(topic, partition, known.epoch)
        for messages in self._batches(consumer, stop, found):
            yield from decoder.take(messages)[0]
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
            # a question that Kafka holds back at the end of one partition holds up the first one about the next
            settings = {"fetch.wait.max.ms": 20, "queued.max.messages.kbytes": 16 << 10}
            self._consumer = Consumer(self._options.consumer(**settings))
        return self._consumer

    def _batches(self, consumer: Consumer, stop: int, found: StoredPartition) -> Iterator[list[Any]]:
        # what lies before `stop`, until that is reached or there is nothing more
        until = time.monotonic() + self._options.timeout
        ended = False
        while not ended:
            batch = together(consumer, STEP, AT_ONCE)
            messages = [message for message in batch if message.error() is None]
            for error in [message.error() for message in batch] if len(messages) < len(batch) else ():
                if error is None:
                    continue
                if error.code() in NO_SUCH_OFFSET:
                    raise OffsetOutOfRange(first=found.start, next_offset=found.end)
                if error.code() != PARTITION_END:
                    raise translated(KafkaException(error))
                ended = True
            if messages and messages[-1].offset() >= stop - 1:
                ended = True
                messages = [message for message in messages if message.offset() < stop]
            if messages:
                until = time.monotonic() + self._options.timeout
                yield messages
            elif time.monotonic() > until:
                raise StoreReadOnly("Kafka does not answer")
