"""What gateways have said of the topics that they made: a table, for those who serve the log and for those who only read it."""

from __future__ import annotations

import msgspec

from gateway.store.interface import Durability, TopicConfig

TOPICS = "topics"


class TopicRow(msgspec.Struct, frozen=True, array_like=True):
    """What a topic is."""

    epoch: int
    partitions: int
    durability: str
    interval: float
    retention_seconds: float | None
    retention_bytes: int | None
    schema: str

    def config(self) -> TopicConfig:
        return TopicConfig(
            self.partitions,
            Durability(self.durability),
            self.interval,
            self.retention_seconds,
            self.retention_bytes,
            self.schema,
        )


def topic_row(epoch: int, config: TopicConfig) -> bytes:
    return msgspec.msgpack.encode(
        TopicRow(
            epoch,
            config.partitions,
            config.durability.value,
            config.interval,
            config.retention_seconds,
            config.retention_bytes,
            config.schema,
        )
    )


def read_topic_row(raw: bytes) -> TopicRow:
    return msgspec.msgpack.decode(raw, type=TopicRow)
