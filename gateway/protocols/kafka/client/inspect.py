"""Asking a cluster about itself, and reading a topic by offset: requests that wait for an answer in a thread.

Apart from what moves messages: these calls block until a broker has answered, so they have a thread of their own and wait
for one another, not in front of a publish.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.errors import GatewayError, OffsetOutOfRange, TargetError, UnknownTopic
from gateway.librdkafka.codes import LEADER_MOVES, NOBODY_THERE, UNAUTHENTICATED
from gateway.librdkafka.hop import Hop
from gateway.protocols.kafka.wire.mapping import target_error
from gateway.protocols.kafka.wire.records import runs_of, size_of
from gateway.requests import (
    DONE,
    CommitOffset,
    Completion,
    CreateTopic,
    DeleteTopic,
    DescribeTopics,
    Fetch,
    Fetched,
    GroupOffset,
    Outcome,
    PartitionInfo,
    ReadOffset,
    Reply,
    Request,
    TopicCreated,
    TopicInfo,
    Topics,
)

LONGEST_HOLD = 0.5
"""Seconds that a read waits for something to come, at most: others wait behind it."""
POLL_SECONDS = 0.1
LOOK_SECONDS = 0.5
"""Between two looks at what the library says beside answers."""


class Inspector:
    """One consumer of the library that is in no group, and one that administers."""

    def __init__(
        self, settings: Mapping[str, Any], timeout: float, complete: Callable[[Sequence[Completion]], None]
    ) -> None:
        from confluent_kafka.admin import AdminClient

        self._settings = settings
        self._timeout = timeout
        self._hop: Hop[Completion] = Hop(complete)
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._told: list[Any] = []
        self._tell: Callable[[Any], None] = settings["error_cb"]
        self._admin: Any = AdminClient({**settings, "error_cb": self._hears})
        self._consumer: Any = None
        self._thread: threading.Thread | None = None
        self._closing = False

    def reach(self, timeout: float) -> None:
        """Blocks until the cluster has answered. Raises why it has not."""
        import confluent_kafka

        until = time.monotonic() + timeout
        while True:
            try:
                # an answer needs a login where there is one; a topic's name keeps it short, whatever the cluster has
                self._admin.list_topics("gateway-is-it-there", timeout=min(timeout, LOOK_SECONDS))
                break
            except confluent_kafka.KafkaException as error:
                self._admin.poll(0)  # here the library says why
                codes = {one.code(): one for one in self._told}
                for code in codes.keys() & {*UNAUTHENTICATED, NOBODY_THERE}:
                    raise target_error(codes[code]) from None
                if time.monotonic() >= until or self._closing:
                    raise TargetError(f"cannot reach Kafka: {error.args[0].str()}") from None
        self._begin()

    def start(self, request: Request) -> None:
        self._begin()
        self._requests.put(request)

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kafka inspector", daemon=True)
            self._thread.start()

    def _hears(self, error: Any) -> None:
        self._told.append(error)
        self._tell(error)

    def close(self) -> None:
        """Blocks until the thread has ended."""
        self._closing = True
        self._hop.closed = True
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()

    # --- in the thread ---

    def _run(self) -> None:
        while not self._closing:
            try:
                request = self._requests.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                self._admin.poll(0)  # that nobody is there any more is told here, also when nothing is asked
                self._told.clear()
                continue
            if request is not None:
                self._hop.put([(request.id, self._outcome(request))])
        if self._consumer is not None:
            self._consumer.close()

    def _outcome(self, request: Request) -> Outcome:
        import confluent_kafka

        try:
            match request:
                case DescribeTopics():
                    return self._describe(request.address)
                case Fetch():
                    return self._fetch(request)
                case CreateTopic():
                    return self._create(request)
                case ReadOffset() | CommitOffset():
                    return self._group(request)
                case DeleteTopic():
                    (done,) = self._admin.delete_topics([request.address], operation_timeout=self._timeout).values()
                    done.result(self._timeout)
                    return DONE
                case _:
                    raise AssertionError(request)
        except confluent_kafka.KafkaException as error:
            return target_error(error.args[0])
        except TimeoutError:
            return TargetError(f"no answer within {self._timeout:g} s")
        except GatewayError as error:
            return error

    def _describe(self, address: str) -> Reply:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        known = self._admin.list_topics(address or None, timeout=self._timeout).topics
        named = {
            name: sorted(topic.partitions)
            for name, topic in known.items()
            if topic.error is None and not name.startswith("__")
        }
        if address and address not in named:
            raise UnknownTopic
        places = [TopicPartition(name, number) for name, numbers in named.items() for number in numbers]
        starts = self._offsets(places, OffsetSpec.earliest())
        ends = self._offsets(places, OffsetSpec.latest())
        return Topics(
            [
                TopicInfo(name, [PartitionInfo(number, starts[name, number], ends[name, number]) for number in numbers])
                for name, numbers in sorted(named.items())
            ]
        )

    def _offsets(self, places: Sequence[Any], spec: Any) -> Mapping[tuple[str, int], int]:
        # of partitions whose leader changes, or was found just now, it is asked again
        import confluent_kafka

        found: dict[tuple[str, int], int] = {}
        until = time.monotonic() + self._timeout
        while left := [one for one in places if (one.topic, one.partition) not in found]:
            asked = self._admin.list_offsets(dict.fromkeys(left, spec), request_timeout=self._timeout)
            for one, future in asked.items():
                try:
                    found[one.topic, one.partition] = future.result(self._timeout).offset
                except confluent_kafka.KafkaException as error:
                    if error.args[0].code() not in LEADER_MOVES or time.monotonic() > until or self._closing:
                        raise
                    self._admin.poll(POLL_SECONDS)
        return found

    def _group(self, request: ReadOffset | CommitOffset) -> Reply:
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        place = TopicPartition(request.address, request.partition)
        if isinstance(request, CommitOffset):
            place.offset = request.offset
            asked = self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(request.group, [place])])
        else:
            asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(request.group, [place])])
        (done,) = asked.values()
        (kept,) = done.result(self._timeout).topic_partitions
        if isinstance(request, CommitOffset):
            return DONE
        return GroupOffset(kept.offset if kept.offset >= 0 else None, group_exists=kept.offset >= 0)

    def _create(self, request: CreateTopic) -> Reply:
        import confluent_kafka
        from confluent_kafka.admin import NewTopic

        (done,) = self._admin.create_topics(
            [NewTopic(request.address, request.partitions)], operation_timeout=self._timeout
        ).values()
        created = True
        try:
            done.result(self._timeout)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            created = False
        until = time.monotonic() + self._timeout
        while True:  # the brokers hear of it one after the other
            known = self._admin.list_topics(request.address, timeout=self._timeout).topics[request.address]
            if known.error is None and known.partitions:
                return TopicCreated(created=created, partitions=len(known.partitions))
            if time.monotonic() > until or self._closing:
                raise confluent_kafka.KafkaException(known.error)
            self._admin.poll(POLL_SECONDS)

    def _fetch(self, request: Fetch) -> Reply:
        import confluent_kafka

        if self._consumer is None:
            self._consumer = confluent_kafka.Consumer(
                {
                    **self._settings,
                    "group.id": "gateway-reads-by-offset",  # the library wants one; nothing is committed
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "error",
                    # so long the broker says nothing at the end of a partition, and answers nothing else meanwhile
                    "fetch.wait.max.ms": 100,
                }
            )
        place = confluent_kafka.TopicPartition(request.address, request.partition, request.offset)
        start, end = self._consumer.get_watermark_offsets(place, timeout=self._timeout)
        if not start <= request.offset <= end:
            raise OffsetOutOfRange(first=start, next_offset=end)
        self._consumer.assign([place])
        # the deadline is the event loop's clock, which a thread does not know: a reader that waits asks again
        patience = LONGEST_HOLD if request.hold_until is not None else self._timeout
        until = time.monotonic() + patience
        records: list[Any] = []
        room = request.max_bytes
        next_offset = request.offset
        while len(records) < request.max_messages and room > 0 and time.monotonic() < until and not self._closing:
            record = self._consumer.poll(POLL_SECONDS)
            if record is None:
                continue
            if record.error() is not None:
                if record.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001
                    next_offset = max(next_offset, record.offset())
                    if records or request.hold_until is None:
                        break
                    continue
                raise confluent_kafka.KafkaException(record.error())
            records.append(record)
            room -= size_of(record) + request.record_overhead
            next_offset = record.offset() + 1
        self._consumer.unassign()
        return Fetched(list(runs_of(records)), next_offset, start, max(end, next_offset))
