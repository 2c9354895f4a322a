"""Which of the slots are this gateway's, as Kafka's group protocol says: every gateway is a member of one group, and the
partitions of an empty topic are what it hands out. A slot that is handed out is not owned yet: see `gateway.broker.ownership`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from gateway.librdkafka.hop import Hop
from gateway.store.kafka.options import KafkaOptions

SLOTS = 32
SESSION_SECONDS = 6.0
"""A gateway that is not heard of for so long loses its slots to others."""
HEARTBEAT_SECONDS = 1.0
UNHEARD_SECONDS = SESSION_SECONDS - 2 * HEARTBEAT_SECONDS
"""After so long without a move of its own a gateway may have lost them: what was heard of it last may be a heartbeat older."""
WAIT = 0.2

Assigned = Callable[[frozenset[int]], None]


class Slots:
    """A member of the group, in a thread. `assigned` hears in the event loop which slots are handed out to it now, and `lost`,
    before that, when the group has taken it for dead.
    """

    def __init__(self, options: KafkaOptions, assigned: Assigned, lost: Callable[[], None], name: bytes) -> None:
        self._options = options
        self._client = f"{options.id}.{name.hex()}"
        self._lost = lost
        self._assigned = assigned
        self._hop: Hop[frozenset[int] | None] = Hop(self._heard)
        self._mine: set[int] = set()
        self._closing = False
        self._seen = time.monotonic()
        self._absent = False
        self._thread = threading.Thread(target=self._run, name="kafka-slots", daemon=True)
        self._thread.start()

    @property
    def absent(self) -> bool:
        """Whether this gateway was away for so long that its slots may be others', and has not heard since that it is a
        member (`present`).
        """
        return self._absent or time.monotonic() - self._seen > UNHEARD_SECONDS

    def present(self) -> None:
        self._absent = False

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
                    "heartbeat.interval.ms": int(HEARTBEAT_SECONDS * 1000),
                    "fetch.wait.max.ms": 5000,
                }
            )
        )
        consumer.subscribe(
            [options.owners_topic], on_assign=self._gained, on_revoke=self._revoked, on_lost=self._thrown_out
        )
        while not (self._closing or self._hop.closed):
            # before it is seen again: whoever asks meanwhile finds one or the other
            self._absent = self.absent
            self._seen = time.monotonic()
            try:
                consumer.poll(WAIT)
            except KafkaException:
                continue
        consumer.close()

    def _gained(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        consumer.incremental_assign(list(places))
        self._mine.update(place.partition for place in places)
        self._tell()

    def _thrown_out(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        self._hop.put([None])
        self._revoked(consumer, places)

    def _revoked(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        self._mine.difference_update(place.partition for place in places)
        self._tell()
        consumer.incremental_unassign(list(places))

    def _heard(self, told: Sequence[frozenset[int] | None]) -> None:
        if None in told:
            self._lost()
        if (slots := told[-1]) is not None:
            self._assigned(slots)

    def _tell(self) -> None:
        self._hop.put([frozenset(self._mine)])


def member_name(client: str) -> bytes | None:
    """What a member of the group is called, by its client's name; None if no gateway has written that."""
    try:
        return bytes.fromhex(client.rpartition(".")[2])
    except ValueError:
        return None
