"""Which of the slots are this gateway's, as Kafka's group protocol says: every gateway is a member of one group, and the
partitions of an empty topic are what it hands out. A slot that is handed out is not owned yet: see `gateway.broker.ownership`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from gateway.librdkafka.hop import Hop
from gateway.store.kafka.options import KafkaOptions

SLOTS = 32
SESSION_SECONDS = 6.0
"""A gateway that is not heard of for so long loses its slots to others."""
WAIT = 0.2

Assigned = Callable[[frozenset[int]], None]


class Slots:
    """A member of the group, in a thread. `assigned` hears in the event loop which slots are handed out to it now."""

    def __init__(self, options: KafkaOptions, assigned: Assigned, name: bytes) -> None:
        self._options = options
        self._client = f"{options.id}.{name.hex()}"
        self._hop: Hop[frozenset[int]] = Hop(lambda told: assigned(told[-1]))
        self._mine: set[int] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kafka-slots", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Others have them at once. Blocks."""
        self._closing = True
        self._thread.join(5.0)

    def _run(self) -> None:
        options = self._options
        consumer = Consumer(
            options.client(
                **{
                    "group.id": options.owners_group,
                    "client.id": self._client,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "latest",
                    "partition.assignment.strategy": "cooperative-sticky",
                    "session.timeout.ms": int(SESSION_SECONDS * 1000),
                    "heartbeat.interval.ms": 1000,
                    "fetch.wait.max.ms": 5000,
                }
            )
        )
        consumer.subscribe([options.owners_topic], on_assign=self._gained, on_revoke=self._lost, on_lost=self._lost)
        while not (self._closing or self._hop.closed):
            try:
                consumer.poll(WAIT)
            except KafkaException:
                continue
        consumer.close()

    def _gained(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        consumer.incremental_assign(list(places))
        self._mine.update(place.partition for place in places)
        self._tell()

    def _lost(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        self._mine.difference_update(place.partition for place in places)
        self._tell()
        consumer.incremental_unassign(list(places))

    def _tell(self) -> None:
        self._hop.put([frozenset(self._mine)])


def member_name(client: str) -> bytes | None:
    """What a member of the group is called, by its client's name; None if no gateway has written that."""
    try:
        return bytes.fromhex(client.rpartition(".")[2])
    except ValueError:
        return None
