"""What somebody else's client does with a Kafka: makes topics, produces, consumes."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
from typing import Any

import pytest

from tests.kafka.node import PATIENCE, Kafka


def make(kafka: Kafka, topic: str, partitions: int = 1, **settings: str) -> None:
    """Make a topic. Its settings are Kafka's, with _ for each dot."""
    from confluent_kafka.admin import NewTopic

    config = {key.replace("_", "."): value for key, value in settings.items()}
    asked = NewTopic(topic, partitions, config=config)
    (made,) = kafka.admin.create_topics([asked], operation_timeout=PATIENCE).values()
    made.result(PATIENCE)


def produce(topic: str, value: bytes, **settings: Any) -> Any:
    """The message as it was taken, or the error."""
    from confluent_kafka import Producer

    ends: list[tuple[Any, Any]] = []
    producer = Producer({"message.timeout.ms": PATIENCE * 1000, "log_level": 0, **settings})
    producer.produce(
        topic, value, b"key", headers=[("a", b"1"), ("a", b"2")], on_delivery=lambda *end: ends.append(end)
    )
    assert producer.flush(PATIENCE) == 0
    ((error, message),) = ends
    return error or message


def consume(topic: str, count: int, **settings: Any) -> list[Any]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"group.id": "g", "enable.auto.commit": False, **settings})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = [consumer.poll(PATIENCE) for _ in range(count)]
        assert [message.error() for message in messages if message is not None] == [None] * count
        return messages
    finally:
        consumer.close()


def everything(kafka: Kafka, topic: str) -> list[Any]:
    """All that is committed in a topic now, in order within each partition, and what comes while it is read."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": kafka.brokers, "group.id": "g", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        known = consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        # where somebody writes without a pause it is never said that this was all
        ends = {each: consumer.get_watermark_offsets(TopicPartition(topic, each), PATIENCE)[1] for each in known}
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in known])
        found: list[Any] = []
        ended: set[int] = set()
        while len(ended) < len(known):
            message = consumer.poll(PATIENCE)
            assert message is not None
            if message.error() is None:
                found.append(message)
                if message.offset() + 1 >= ends[message.partition()]:
                    ended.add(message.partition())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return found
    finally:
        consumer.close()


def kcat(kafka: Kafka, *arguments: str | bytes, given: bytes = b"") -> bytes:
    """What Debian's client of Kafka says, of which nothing is ours."""
    if shutil.which("kcat") is None:
        pytest.skip("there is no kcat here (Debian: kcat)")
    command = ["kcat", "-b", kafka.brokers, "-q", *arguments]
    return subprocess.run(command, input=given, check=True, capture_output=True, timeout=PATIENCE).stdout  # noqa: TID251


def produce_unreadable(kafka: Kafka, topic: str, value: bytes) -> None:
    """A record with a header whose name is no text, which only others can write."""
    kcat(kafka, "-P", "-t", topic, "-H", b"\xff\xfe=1", given=value)


def produce_all(kafka: Kafka, topic: str, values: list[bytes], key: bytes | None = None) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.brokers, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, key, headers=[("from", b"elsewhere")])
    assert producer.flush(PATIENCE) == 0


def members(kafka: Kafka, group: str) -> list[Any]:
    """Those of a group that is at rest; nobody while it is not."""
    from confluent_kafka import ConsumerGroupState

    described = kafka.admin.describe_consumer_groups([group])[group].result(PATIENCE)
    return list(described.members) if described.state == ConsumerGroupState.STABLE else []


def remove_members(kafka: Kafka, group: str) -> int:
    """As an administrator does with members that hang: the coordinator forgets them, and they find out by themselves. How many
    there were. (LeaveGroup, version 0, written out: the library has no call for it.)
    """
    host, _, port = kafka.brokers.rpartition(":")

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        found = members(kafka, group)
        for member in found:
            asked = struct.pack(">hhi", 13, 0, 1) + text("test") + text(group) + text(member.member_id)
            connection.sendall(struct.pack(">I", len(asked)) + asked)
            assert connection.recv(10, socket.MSG_WAITALL)[-2:] == b"\0\0"
    return len(found)
