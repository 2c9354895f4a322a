"""Its producers and consumers block, so each has a thread, and what it hears there comes to the event loop together."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaException

from gateway.librdkafka.hop import Hop

T = TypeVar("T")
POLL_SECONDS = 0.2
"""How long a thread waits for something to hear: as long as it may take to see that it is to end."""
RAISED_WHEN_FATAL = (KafkaException, SystemError)
"""By `poll` and `flush` of a producer of which nothing more can be known. The second is what Python makes of the first
where the library raises it twice.
"""
LOOK_UP_SECONDS = 1.0
LAST_WORDS = 1.0
"""How long a producer that is given up has to say what became of what it had."""


def look_up(consumer: Any, topic: str) -> None:
    """Let a consumer that is given a partition know where it is. One that is up would ask when it looks next what there is to
    ask, which it does once a second. Blocks, and no longer than that.
    """
    with suppress(KafkaException):  # it will find out by itself
        consumer.list_topics(topic, timeout=LOOK_UP_SECONDS)


def together(consumer: Any, wait: float, most: int) -> list[Any]:
    """What a consumer has, up to so many; nothing if there is nothing within `wait`. Its own `consume` would wait for all."""
    first = consumer.poll(wait)
    return [first, *consumer.consume(most - 1, 0)] if first is not None else []


class PolledProducer(Generic[T]):
    """A producer and the thread that polls it. What callbacks put into `heard`, in that thread, comes by the hop."""

    def __init__(self, producer: Any, hop: Hop[T], name: str) -> None:
        self.producer = producer
        self.heard: list[T] = []
        self._hop = hop
        self._finishing = self._given_up = False
        self._thread = threading.Thread(target=self._listen, name=name, daemon=True)
        self._thread.start()

    def finish(self, patience: float) -> None:
        """Nothing more is handed in: blocks until all is heard of what was, for so long at most."""
        self._finishing = True
        self._thread.join(patience)

    def give_up(self) -> None:
        """What is under way is refused, as far as it is not at the brokers; does not wait for that."""
        self._given_up = True

    def join(self) -> None:
        self._thread.join()

    def _listen(self) -> None:
        while not self._given_up:
            # those whose messages it was about are told as each of these is given up
            with suppress(*RAISED_WHEN_FATAL):
                self.producer.poll(POLL_SECONDS / 4 if self._finishing else POLL_SECONDS)
            self._tell()
            if self._finishing and not len(self.producer):
                return
            if self._hop.closed:
                break
        self.producer.purge()
        with suppress(*RAISED_WHEN_FATAL):
            self.producer.flush(LAST_WORDS)
        self._tell()

    def _tell(self) -> None:
        told = self.heard[:]
        del self.heard[: len(told)]
        self._hop.put(told)
