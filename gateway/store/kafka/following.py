"""Reading what is written from here on: a thread that waits for Kafka and comes into the event loop once for each batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import trio
from confluent_kafka import Consumer, KafkaException, TopicPartition

from gateway.librdkafka.codes import PARTITION_END
from gateway.librdkafka.threads import look_up, together
from gateway.store.kafka.options import KafkaOptions

ROWS = 5_000
MESSAGES = 1_000
"""So many come into the event loop together: a few milliseconds of work."""
FEW = 3
"""Topics that are looked up one after the other."""
WAIT = 0.02
"""Seconds in which an order is heard of."""
STATE_FETCHES = {"fetch.wait.max.ms": 20, "fetch.message.max.bytes": 4 << 20}
"""How long Kafka lets a question for more wait, for whoever has a condition decided may wait for the answer; and how much comes
at once, for a start waits for all.
"""

Take = Callable[[Sequence[Any]], None]


class Follower:
    """A consumer in a thread. `take` gets all that came together, ends of partitions included, in the event loop; the thread
    waits for it, so that nothing piles up.
    """

    def __init__(self, options: KafkaOptions, take: Take, most: int, **settings: Any) -> None:
        self._take = take
        self._most = most
        self._token = trio.lowlevel.current_trio_token()
        self._consumer = Consumer(options.consumer(**settings))
        self._new: set[str] = set()
        """Topics that are followed since a moment."""
        self._closing = False
        self._orders: deque[Callable[[], None]] = deque()
        """A consumer belongs to one thread: what is asked of it is done between two looks."""
        self._thread = threading.Thread(target=self._run, name="kafka-follower", daemon=True)
        self._thread.start()

    def add(self, places: Sequence[tuple[str, int, int]]) -> None:
        """Follow these partitions from these offsets on."""
        asked = [TopicPartition(*place) for place in places]

        def assign() -> None:
            self._consumer.incremental_assign(asked)
            self._new.update(place.topic for place in asked)

        self._orders.append(assign)

    def remove(self, places: Sequence[tuple[str, int]]) -> None:
        asked = [TopicPartition(*place) for place in places]
        self._orders.append(lambda: self._consumer.incremental_unassign(asked))

    def close(self) -> None:
        """Blocks."""
        self._closing = True
        self._thread.join(5.0)

    def _run(self) -> None:
        consumer, orders = self._consumer, self._orders
        looking: threading.Thread | None = None
        while not self._closing:
            try:
                while orders:
                    orders.popleft()()
                if self._new and not (looking is not None and looking.is_alive()):
                    looking = self._look_up()
                batch = together(consumer, WAIT, self._most)
            except KafkaException:
                continue
            if not batch:
                continue
            try:
                trio.from_thread.run_sync(self._take, batch, trio_token=self._token)
            except (trio.RunFinishedError, trio.Cancelled):
                break
        if looking is not None:
            looking.join()
        consumer.close()

    def _look_up(self) -> threading.Thread | None:
        # The answer stands behind that to a question for more, which Kafka holds back: meanwhile what comes elsewhere is heard.
        # Of many topics the library asks by itself within a second, of all of them together.
        new, self._new = self._new, set()
        if len(new) > FEW:
            return None
        looking = threading.Thread(target=self._look_at, args=[new], daemon=True)
        looking.start()
        return looking

    def _look_at(self, topics: Iterable[str]) -> None:
        for topic in topics:
            look_up(self._consumer, topic)


def end_of(message: Any) -> int | None:
    """If it is no message but the news that a partition ends here (and everything before is decided): where."""
    error = message.error()
    if error is not None and error.code() == PARTITION_END:
        return int(message.offset())
    return None
