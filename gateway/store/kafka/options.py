"""What a store on Kafka is told, and how librdkafka is told it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

RECORD_ROOM = 64 << 10
"""What a record may take beside its value: key, headers, and what Kafka itself adds."""


@attrs.frozen
class KafkaOptions:
    """How to reach a cluster, and what to ask of it."""

    brokers: Sequence[str]
    """host:port"""
    prefix: str = "gw."
    """How the names of Kafka's topics begin that are this store's."""
    replication: int = 1
    min_insync: int = 1
    timeout: float = 10.0
    """Seconds after which a write that the brokers do not confirm is given up."""
    largest: int = 16 << 20
    """Bytes of a value."""
    compression: str = "lz4"
    """Of whole batches, by Kafka's own name. What stands before a record's headers is nearly the same in each."""
    security: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """librdkafka's own settings for TLS and SASL."""
    tail_cache: int = 64 << 20
    id: str = "gateway"
    """How this gateway is called in Kafka's own lists of clients."""

    @property
    def state_topic(self) -> str:
        """The log that all tables are in."""
        return f"{self.prefix}__gateway.state"

    @property
    def owners_group(self) -> str:
        """Whose members serve the log."""
        return f"{self.prefix}__gateway.owners"

    @property
    def owners_topic(self) -> str:
        """Nothing is written to it: whose its partitions are says who does what only one may do."""
        return f"{self.prefix}__gateway.owners"

    @property
    def own(self) -> str:
        """How the names of all begin that is the gateways' own: of topics, and of transactional ids."""
        return f"{self.prefix}__gateway."

    def client(self, **others: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": ",".join(self.brokers),
            "client.id": self.id,
            "socket.timeout.ms": int(self.timeout * 1000),
            "socket.nagle.disable": True,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "log_level": 2,
            "topic.metadata.refresh.interval.ms": 60_000,
            **self.security,
            **others,
        }

    def producer(self, **others: Any) -> dict[str, Any]:
        # gapless: who hears that the last record of several is stored knows that all are
        return self.client(
            **{
                "acks": "all",
                "enable.idempotence": True,
                "enable.gapless.guarantee": True,
                "linger.ms": 0,
                "delivery.timeout.ms": int(self.timeout * 1000),
                "topic.metadata.propagation.max.ms": 5_000,
                "message.max.bytes": self.largest + RECORD_ROOM,
                # the gateway's own budget bounds what is under way
                "queue.buffering.max.messages": 0,
                "queue.buffering.max.kbytes": 2_097_151,
                "batch.num.messages": 20_000,
                "compression.type": self.compression,
                **others,
            }
        )

    def consumer(self, **others: Any) -> dict[str, Any]:
        """A reader of partitions that it is given; no group knows of it."""
        return self.client(
            **{
                "group.id": f"{self.prefix}__gateway.reads",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.message.max.bytes": 1 << 20,
                "fetch.max.bytes": max(self.largest + RECORD_ROOM, 16 << 20),
                "receive.message.max.bytes": max(self.largest + RECORD_ROOM, 16 << 20) + (1 << 20),
                "fetch.error.backoff.ms": 50,
                "fetch.queue.backoff.ms": 5,  # a second, unless it is said: for so long nothing would be read ahead
                **others,
            }
        )
