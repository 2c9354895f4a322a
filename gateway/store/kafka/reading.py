"""Reading what is no longer in memory: a few consumers, each of which goes on where one of the readers has got to.

Everything here happens in threads; the engine, in the loop, only waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from gateway.errors import GatewayError, OffsetOutOfRange, StoreError, UnknownTopic
from gateway.librdkafka.codes import NO_SUCH_OFFSET, NOT_THERE
from gateway.store.interface import ReadResult
from gateway.store.kafka.following import end_of
from gateway.store.kafka.options import KafkaOptions

Cut = Callable[[list[Any], int], tuple[ReadResult, int]]

Place = tuple[str, int, int]
"""Kafka's name of a topic, a partition, and which life of the topic it is."""

MOST = 8
"""Consumers, and reads at a time."""
MOST_AT_ONCE = 10_000
STEP = 0.1
FIRST_GUESS = 16 << 10
"""Bytes that a record is taken for until one was seen."""


class _Reader:
    """One consumer, somewhere in one partition."""

    def __init__(self, options: KafkaOptions) -> None:
        self._consumer = Consumer(
            options.consumer(
                **{
                    "fetch.wait.max.ms": 20,
                    "fetch.message.max.bytes": 4 << 20,
                    "queued.min.messages": 100_000,
                    "queued.max.messages.kbytes": 32 << 10,
                }
            )
        )
        self.place: Place | None = None
        self.next = -1
        """The offset that comes next from the buffer, or from Kafka."""
        self.buffer: list[Any] = []
        self._last: list[Any] = []
        self._average = FIRST_GUESS
        self.used = 0.0

    def read(
        self, place: Place, offset: int, end: int, messages: int, size: int, until: float
    ) -> tuple[list[Any], int]:
        """Some messages from `offset` on, at least one if there is one before `end`; and where the next read begins."""
        topic, partition, _epoch = place
        if self.place != place or not self.has(offset):
            self._seek(place, offset)
        elif self.next != offset:
            # whoever asked had no room for all of it: what came is at hand, and need not be fetched again
            self.give_back([one for one in self._last if one.offset() >= offset], offset)
        taken, self.buffer = self.buffer[:messages], self.buffer[messages:]
        held = sum(map(_size, taken))
        ended = offset
        while len(taken) < messages and held < size:
            wanted = max(1, min(messages - len(taken), (size - held) // self._average, MOST_AT_ONCE))
            batch = self._consumer.consume(wanted, 0)
            if not batch:
                if ended >= end or (taken and taken[-1].offset() + 1 >= end):
                    break
                # only with nothing at hand it waits, and not for long: what ends the read is looked at in between
                one = self._consumer.poll(STEP)
                if one is None:
                    if time.monotonic() > until:
                        if taken:
                            break
                        raise StoreError(f"Kafka has not delivered {topic}/{partition} from {offset} on in time")
                    continue
                batch = [one]
            for message in batch:
                finished = end_of(message)
                if finished is not None:
                    ended = max(ended, finished)
                    continue
                self._check(message.error())
                taken.append(message)
                one_size = _size(message)
                held += one_size
                # how many fit into what is asked for, by what came of late: the library counts messages, and not bytes
                self._average = max(1, (7 * self._average + one_size) // 8)
        following = taken[-1].offset() + 1 if taken else offset
        if not self.buffer:
            following = max(following, ended)
        self.next = following
        self._last = taken
        return taken, following

    def has(self, offset: int) -> bool:
        """Whether it goes on there, or has just read it: whoever asked may have had no room for all of it."""
        return self.next == offset or (bool(self._last) and self._last[0].offset() <= offset < self.next)

    def give_back(self, messages: list[Any], following: int) -> None:
        # the last messages of a read were not wanted after all
        self.buffer = messages + self.buffer
        self.next = following

    def forget(self) -> None:
        self.place, self.buffer, self._last = None, [], []
        # a consumer that stays assigned goes on fetching what nobody may ever want
        self._consumer.unassign()

    def close(self) -> None:
        self._consumer.close()

    def _seek(self, place: Place, offset: int) -> None:
        self.buffer, self._last = [], []
        self.place, self.next = place, offset
        self._consumer.assign([TopicPartition(place[0], place[1], offset)])

    @staticmethod
    def _check(error: KafkaError | None) -> None:
        if error is None:
            return
        if error.code() in NO_SUCH_OFFSET:
            raise OffsetOutOfRange
        if error.code() in NOT_THERE:
            raise UnknownTopic
        if not error.retriable():
            raise StoreError(f"Kafka does not deliver: {error.str()}")


def _size(message: Any) -> int:
    value, key = message.value(), message.key()
    return (len(value) if value is not None else 0) + (len(key) if key is not None else 0)


class ReaderPool:
    """Whoever reads on gets the consumer that is there already."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._idle: list[_Reader] = []
        self._lock = threading.Lock()
        self._limiter = trio.CapacityLimiter(MOST)

    async def read(
        self, place: Place, offset: int, end: int, messages: int, size: int, cut: Cut
    ) -> tuple[ReadResult, int]:
        """What `cut` makes of some messages, in the thread that reads; and how many were no messages for us."""
        return await trio.to_thread.run_sync(self._read, place, offset, end, messages, size, cut, limiter=self._limiter)

    def tidy(self, idle: float, now: float) -> None:
        """Consumers that nobody has used for so long fetch no more."""
        with self._lock:
            for one in self._idle:
                if one.place is not None and one.used + idle < now:
                    one.forget()

    def close(self) -> None:
        for one in self._idle:
            one.close()

    def _read(self, place: Place, offset: int, end: int, messages: int, size: int, cut: Cut) -> tuple[ReadResult, int]:
        reader = self._take(lambda one: one.place == place and one.has(offset))
        try:
            until = time.monotonic() + self._options.timeout
            taken, following = reader.read(place, offset, end, messages, size, until)
            result, unreadable = cut(taken, following)
            if result.next_offset < following:
                reader.give_back([one for one in taken if one.offset() >= result.next_offset], result.next_offset)
        except KafkaException as error:
            # what a consumer does that has failed once is not known: another is made
            reader.close()
            raise StoreError(f"Kafka does not deliver: {error.args[0].str()}") from error
        except GatewayError:
            reader.forget()
            self._put(reader)
            raise
        self._put(reader)
        return result, unreadable

    def _take(self, fits: Callable[[_Reader], bool]) -> _Reader:
        with self._lock:
            for index, one in enumerate(self._idle):
                if fits(one):
                    return self._idle.pop(index)
            if self._idle and len(self._idle) >= MOST // 2:
                return self._idle.pop(0)  # the one that was unused for the longest
        return _Reader(self._options)

    def _put(self, reader: _Reader) -> None:
        reader.used = time.monotonic()
        with self._lock:
            self._idle.append(reader)
