"""What somebody else's client does with a Kafka: makes topics, produces, consumes."""

from __future__ import annotations

from typing import Any

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
    """All that is committed in a topic now, in order within each partition."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": kafka.brokers, "group.id": "g", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        known = consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in known])
        found: list[Any] = []
        ended: set[int] = set()
        while len(ended) < len(known):
            message = consumer.poll(PATIENCE)
            assert message is not None
            if message.error() is None:
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return found
    finally:
        consumer.close()


def produce_all(kafka: Kafka, topic: str, values: list[bytes], key: bytes | None = None) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.brokers, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, key, headers=[("from", b"elsewhere")])
    assert producer.flush(PATIENCE) == 0
