"""Writing without a transaction: records in the order they are handed in, and what became of them in one hop a batch.

What is large is handed in by slices, one in a pass of the event loop, since librdkafka copies each record. What comes to the same
partition meanwhile waits behind it; to others it goes at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import attrs
import trio
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.errors import GatewayError, OutcomeUnknown, StoreReadOnly, TooLarge, UnknownTopic
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.records import KafkaRecord

POLL_SECONDS = 0.5
SLICE_RECORDS = 500
SLICE_BYTES = 4 << 20
"""So much is handed in without a look at anything else: a few milliseconds."""
Done = Callable[[Sequence[tuple[int, int]], GatewayError | None], None]
"""Hears offset and time of each record that was asked about, or why they are not stored."""

_UNSENT = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART})  # noqa: SLF001
_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE})


def translated(error: KafkaError) -> GatewayError:
    """What an error of a write means to whoever asked for it."""
    code = error.code()
    if code in _UNSENT:
        return UnknownTopic(f"the topic is gone from Kafka: {error.str()}")
    if code in _LARGE:
        return TooLarge(f"Kafka takes no record of this size: {error.str()}")
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return StoreReadOnly(f"Kafka does not let this gateway write: {error.str()}")
    return OutcomeUnknown(f"Kafka has not confirmed the write: {error.str()}")


class _Sent:
    """One call of `send`: all of its records that are asked about."""

    __slots__ = ("done", "error", "missing", "placed")

    def __init__(self, done: Done, asked: int) -> None:
        self.done = done
        self.missing = asked
        self.placed: list[tuple[int, int]] = []
        self.error: KafkaError | None = None


@attrs.define(eq=False)
class _Handing:
    """Records on their way to one partition, as far as they are not librdkafka's yet."""

    sent: _Sent
    producer: Producer
    heard: list[_Sent]
    topic: str
    partition: int
    records: Iterator[KafkaRecord]
    count: int
    handed: int = 0


class Sender:
    """A producer that keeps the order, and the thread that hears from it."""

    def __init__(self, options: KafkaOptions, arrived: Callable[[Sequence[Callable[[], None]]], None]) -> None:
        """`arrived` is called in the event loop with all that has become known together."""
        self._options = options
        self._arrived = arrived
        self._token = trio.lowlevel.current_trio_token()
        self._heard: list[_Sent] = []
        self._waiting: dict[tuple[str, int], deque[_Handing]] = {}
        """By partition: what is too large for one slice, and what came behind it."""
        self._producer = self._made()
        self._closing = False
        self._thread = threading.Thread(target=self._listen, name="kafka-sender", daemon=True)
        self._thread.start()

    def send(self, topic: str, partition: int, records: Iterable[KafkaRecord], count: int, done: Done) -> None:
        """Hand in records of one partition. Asked about are the first and the last, or all where there are few: Kafka may put
        records of others between those of one call.
        """
        asked = count if count <= MOST_ASKED else 2
        handing = _Handing(_Sent(done, asked), self._producer, self._heard, topic, partition, iter(records), count)
        waiting = self._waiting.get((topic, partition))
        if waiting is not None:
            waiting.append(handing)
        elif not self._hand_in(handing):
            if not self._waiting:
                self._token.run_sync_soon(self._go_on)
            self._waiting[topic, partition] = deque((handing,))

    def _go_on(self) -> None:
        # another slice, of whoever has waited for the longest
        place = next(iter(self._waiting))
        waiting = self._waiting.pop(place)
        if self._hand_in(waiting[0]):
            waiting.popleft()
        if waiting:
            self._waiting[place] = waiting
        if self._waiting:
            self._token.run_sync_soon(self._go_on)

    def _hand_in(self, handing: _Handing) -> bool:
        # hand in a slice; whether that was the last
        sent, count, topic, partition = handing.sent, handing.count, handing.topic, handing.partition
        index, last, few = handing.handed, handing.count - 1, handing.count <= MOST_ASKED
        produce = handing.producer.produce
        if handing.producer is not self._producer:
            self._refuse(sent, OutcomeUnknown("Kafka's client had to begin anew while this was handed in"))
            return True
        heard = handing.heard

        def delivered(error: KafkaError | None, message: Message) -> None:
            # in the listening thread
            if error is not None:
                sent.error = error
            else:
                sent.placed.append((message.offset() or 0, message.timestamp()[1]))
            sent.missing -= 1
            if not sent.missing:
                heard.append(sent)

        size = 0
        try:
            for value, key, headers, time_ms in islice(handing.records, SLICE_RECORDS):
                asked = delivered if few or not index or index == last else None
                produce(topic, value, key, partition, on_delivery=asked, timestamp=time_ms, headers=headers)
                index += 1
                if value is not None:
                    size += len(value)
                    if size > SLICE_BYTES:
                        break
        except KafkaException as error:
            if _fatal(error.args[0]):
                self._broken(handing.producer)
            self._refuse(sent, translated(error.args[0]))
            return True
        except BufferError:
            self._refuse(sent, OutcomeUnknown("too much is under way to Kafka"))
            return True
        handing.handed = index
        return index == count

    def _refuse(self, sent: _Sent, problem: GatewayError) -> None:
        # not all of it was handed in, so that nobody will hear of all of it
        self._token.run_sync_soon(self._arrived, [lambda: sent.done((), problem)])

    def close(self) -> None:
        """What is under way is waited for, as long as a write may take. Blocks."""
        self._closing = True
        self._thread.join(self._options.timeout + POLL_SECONDS + 1)

    def _made(self) -> Producer:
        return Producer(self._options.producer())

    def _broken(self, producer: Producer) -> None:
        # from here on a new one is used: of this one nothing more can be known
        if self._producer is producer:
            self._producer = self._made()
            self._heard = []

    def _listen(self) -> None:
        producer, heard = self._producer, self._heard
        while True:
            if self._producer is not producer:
                self._last_words(producer, heard)
                producer, heard = self._producer, self._heard
            producer.poll(0.05 if self._closing else POLL_SECONDS)
            if heard:
                told = heard[:]
                del heard[: len(told)]
                if any(one.error is not None and _fatal(one.error) for one in told):
                    self._broken(producer)
                self._tell(told)
            if self._closing and not len(producer):
                return

    def _last_words(self, producer: Producer, heard: list[_Sent]) -> None:
        producer.purge()
        producer.flush(1.0)
        self._tell(heard)

    def _tell(self, told: Sequence[_Sent]) -> None:
        calls = [_telling(one) for one in told]
        try:
            self._token.run_sync_soon(self._arrived, calls)
        except trio.RunFinishedError:
            self._closing = True


MOST_ASKED = 16


def _telling(sent: _Sent) -> Callable[[], None]:
    error = translated(sent.error) if sent.error is not None else None
    return lambda: sent.done(sent.placed, error)


def _fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() in {KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._GAPLESS_GUARANTEE}  # noqa: SLF001
