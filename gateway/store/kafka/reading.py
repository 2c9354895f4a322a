"""Reading what is no longer in memory: a few consumers, each of which goes on where one of the readers has got to.

Everything here happens in threads; the engine, in the loop, only waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import attrs
import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from gateway.envelope import Run, total_count
from gateway.errors import GatewayError, LogUnavailable, OffsetOutOfRange, UnknownTopic
from gateway.librdkafka.codes import NO_SUCH_OFFSET, NOT_THERE
from gateway.librdkafka.threads import look_up
from gateway.store.cut import gather, value_bytes
from gateway.store.interface import ReadResult
from gateway.store.kafka.following import end_of
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.records import AT_ONCE, RunReader


@attrs.frozen
class KafkaPartition:
    """A partition, of one life of its topic."""

    topic: str
    kafka: str
    """What the topic is called there."""
    partition: int
    epoch: int


@attrs.frozen
class ReadBounds:
    """What somebody asks to read: from where on, where the partition is known to end, and how much."""

    offset: int
    end: int
    messages: int
    size: int
    now_ms: int


MOST = 8
"""Consumers, and reads at a time."""
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
        self._looked_up = ""
        self.place: KafkaPartition | None = None
        self._decoder = RunReader("", 0, 0)
        self._runs: list[Run] = []
        """What was read, from the offset last asked for on: whoever asked may have had no room for all of it."""
        self._from = self._next = -1
        """All that there is from the one to before the other is in the runs."""
        self._average = FIRST_GUESS
        self.used = 0.0

    def read(self, place: KafkaPartition, wanted: ReadBounds, until: float) -> tuple[ReadResult, int]:
        """Some messages, at least one if there is one before the end; and how many were no messages for us."""
        offset = wanted.offset
        if self.place != place or not self.has(offset):
            self._seek(place, offset)
        self._runs = [run for run in self._runs if run.next_offset > offset]
        self._from = offset
        unreadable = 0
        count, held = self._at_hand(offset)
        while count < wanted.messages and held < wanted.size:
            most = max(1, min(wanted.messages - count, (wanted.size - held) // self._average, AT_ONCE))
            batch = self._consumer.consume(most, 0)
            if not batch:
                if self._next >= wanted.end:
                    break
                # only with nothing at hand it waits, and not for long: what ends the read is looked at in between
                one = self._consumer.poll(STEP)
                if one is None:
                    if time.monotonic() > until:
                        if count:
                            break
                        raise LogUnavailable(
                            f"Kafka has not delivered {place.kafka}/{place.partition} from {offset} on in time"
                        )
                    continue
                batch = [one]
            messages, ended = parted(batch)
            runs, unread = self._decoder.take(messages)
            unreadable += unread
            self._runs += runs
            self._next = max(self._next, ended, messages[-1].offset() + 1 if messages else 0)
            if runs:
                taken, size = (
                    total_count(runs),
                    sum(run.columns.value_bytes + run.columns.beside_values() for run in runs),
                )
                count, held = count + taken, held + size
                # how many fit into what is asked for, by what came of late: the library counts messages, and not bytes
                self._average = max(1, (self._average + size // taken) // 2)
        result = gather(self._runs, offset, wanted.messages, wanted.size, wanted.now_ms)
        if not self._runs or result.next_offset >= self._runs[-1].next_offset:
            # and behind them there is nothing up to there
            result = ReadResult(result.runs, max(self._next, offset), result.expired)
        return result, unreadable

    def has(self, offset: int) -> bool:
        """Whether it goes on there, or has just read it."""
        return self._from <= offset <= self._next

    def forget(self) -> None:
        self.place, self._runs = None, []
        # a consumer that stays assigned goes on fetching what nobody may ever want
        self._consumer.unassign()

    def close(self) -> None:
        self._consumer.close()

    def _at_hand(self, offset: int) -> tuple[int, int]:
        # how many messages, and bytes of them, are there already from an offset on
        count = size = 0
        for run in self._runs:
            skipped = max(0, offset - run.base_offset)
            count += run.count - skipped
            size += value_bytes(run.columns, skipped, run.count)
        return count, size

    def _seek(self, place: KafkaPartition, offset: int) -> None:
        if place.kafka != self._looked_up:
            look_up(self._consumer, place.kafka)
            self._looked_up = place.kafka
        self._runs = []
        self._decoder = RunReader(place.topic, place.partition, place.epoch)
        self.place, self._from, self._next = place, offset, offset
        self._consumer.assign([TopicPartition(place.kafka, place.partition, offset)])


def parted(batch: list[Any]) -> tuple[list[Any], int]:
    """What came from one partition as messages, and where it ends, or 0; raises what else Kafka has said."""
    news = [one for one in batch if one.error() is not None]
    if not news:
        return batch, 0
    ended = 0
    for one in news:
        finished = end_of(one)
        if finished is None:
            _check(one.error())
        else:
            ended = max(ended, finished)
    return [one for one in batch if one.error() is None], ended


def _check(error: KafkaError) -> None:
    if error.code() in NO_SUCH_OFFSET:
        raise OffsetOutOfRange
    if error.code() in NOT_THERE:
        raise UnknownTopic
    if not error.retriable():
        raise LogUnavailable(f"Kafka does not deliver: {error.str()}")


class ReaderPool:
    """Whoever reads on gets the consumer that is there already."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._idle: list[_Reader] = []
        self._lock = threading.Lock()
        self._limiter = trio.CapacityLimiter(MOST)

    async def read(self, place: KafkaPartition, wanted: ReadBounds) -> tuple[ReadResult, int]:
        """Some messages from there on; and how many were no messages for us."""
        return await trio.to_thread.run_sync(self._read, place, wanted, limiter=self._limiter)

    def tidy(self, idle: float, now: float) -> None:
        """Consumers that nobody has used for so long fetch no more."""
        with self._lock:
            for one in self._idle:
                if one.place is not None and one.used + idle < now:
                    one.forget()

    def close(self) -> None:
        for one in self._idle:
            one.close()

    def _read(self, place: KafkaPartition, wanted: ReadBounds) -> tuple[ReadResult, int]:
        reader = self._take(lambda one: one.place == place and one.has(wanted.offset))
        try:
            found = reader.read(place, wanted, time.monotonic() + self._options.timeout)
        except KafkaException as error:
            # what a consumer does that has failed once is not known: another is made
            reader.close()
            raise LogUnavailable(f"Kafka does not deliver: {error.args[0].str()}") from error
        except GatewayError:
            reader.forget()
            self._put(reader)
            raise
        self._put(reader)
        return found

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
