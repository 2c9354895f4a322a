"""Writing without a transaction: records in the order they are handed in, and what became of them in one hop a batch.

What is large is handed in by slices, one in a pass of the event loop, since librdkafka copies each record. What comes to the same
partition meanwhile waits behind it; to others it goes at once.

There are two producers. One sends what it has at once. It is woken by nearly each record of a large append, and makes many small
requests of it, so that such an append goes by another, which waits for a millisecond: about as long as handing it in takes. While
one of them has something under way to a partition, what comes goes by the same one, and so the order is kept.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import attrs
import trio
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.errors import GatewayError, OutcomeUnknown, StoreReadOnly, TooLarge, UnknownTopic
from gateway.librdkafka.codes import NOT_THERE, OVER, TOO_LARGE, TOPIC_DENIED
from gateway.librdkafka.hop import Hop
from gateway.librdkafka.threads import PolledProducer
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.records import KafkaRecord

SLICE_RECORDS = 500
SLICE_BYTES = 4 << 20
"""So much is handed in without a look at anything else: a few milliseconds."""
LINGER_MS = 1
Done = Callable[[Sequence[tuple[int, int]], GatewayError | None], None]
"""Hears offset and time of each record that was asked about, or why they are not stored."""


def translated(error: KafkaError) -> GatewayError:
    """What an error of a write means to whoever asked for it."""
    code = error.code()
    if code in NOT_THERE:
        return UnknownTopic(f"the topic is gone from Kafka: {error.str()}")
    if code in TOO_LARGE:
        return TooLarge(f"Kafka takes no record of this size: {error.str()}")
    if code == TOPIC_DENIED:
        return StoreReadOnly(f"Kafka does not let this gateway write: {error.str()}")
    return OutcomeUnknown(f"Kafka has not confirmed the write: {error.str()}")


@attrs.define(eq=False)
class _Way:
    """The producer by which everything goes to a partition, as long as it has something of it under way."""

    place: tuple[str, int]
    polled: PolledProducer[_Sent]
    under_way: int = 0


class _Sent:
    """One call of `send`: all of its records that are asked about."""

    __slots__ = ("done", "error", "missing", "placed", "way")

    def __init__(self, way: _Way, done: Done, asked: int) -> None:
        self.way = way
        self.done = done
        self.missing = asked
        self.placed: list[tuple[int, int]] = []
        self.error: KafkaError | None = None


@attrs.define(eq=False)
class _Handing:
    """Records on their way to one partition, as far as they are not librdkafka's yet."""

    sent: _Sent
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
        self._hop: Hop[_Sent] = Hop(self._heard)
        self._waiting: dict[tuple[str, int], deque[_Handing]] = {}
        """By partition: what is too large for one slice, and what came behind it."""
        self._ways: dict[tuple[str, int], _Way] = {}
        self._quick = self._made(0, "kafka-sender")
        self._patient: PolledProducer[_Sent] | None = None
        """Made when there is something large for the first time."""

    def send(self, topic: str, partition: int, records: Iterable[KafkaRecord], count: int, done: Done) -> None:
        """Hand in records of one partition. Asked about are the first and the last, or all where there are few: Kafka may put
        records of others between those of one call.
        """
        asked = count if count <= MOST_ASKED else 2
        place = topic, partition
        handing = _Handing(_Sent(self._way(place, count), done, asked), iter(records), count)
        waiting = self._waiting.get(place)
        if waiting is not None:
            waiting.append(handing)
        elif not self._hand_in(handing):
            if not self._waiting:
                self._token.run_sync_soon(self._go_on)
            self._waiting[place] = deque((handing,))

    def _way(self, place: tuple[str, int], count: int) -> _Way:
        way = self._ways.get(place)
        if way is None or not self._lives(way.polled):
            if count < SLICE_RECORDS:
                polled = self._quick
            else:
                polled = self._patient = self._patient or self._made(LINGER_MS, "kafka-patient-sender")
            way = self._ways[place] = _Way(place, polled)
        way.under_way += 1
        return way

    def _over(self, way: _Way) -> None:
        # one of those that went this way is decided
        way.under_way -= 1
        if not way.under_way and self._ways.get(way.place) is way:
            del self._ways[way.place]

    def _lives(self, polled: PolledProducer[_Sent]) -> bool:
        return polled is self._quick or polled is self._patient

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
        sent, count = handing.sent, handing.count
        topic, partition = sent.way.place
        index, last, few = handing.handed, handing.count - 1, handing.count <= MOST_ASKED
        polled = sent.way.polled
        produce, heard = polled.producer.produce, polled.heard
        if not self._lives(polled):
            self._refuse(sent, OutcomeUnknown("Kafka's client had to begin anew while this was handed in"))
            return True

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
                self._begin_anew(polled)
            self._refuse(sent, translated(error.args[0]))
            return True
        except BufferError:
            self._refuse(sent, OutcomeUnknown("too much is under way to Kafka"))
            return True
        handing.handed = index
        return index == count

    def _refuse(self, sent: _Sent, problem: GatewayError) -> None:
        # not all of it was handed in, so that nobody will hear of all of it
        self._over(sent.way)
        self._token.run_sync_soon(self._arrived, [lambda: sent.done((), problem)])

    def close(self) -> None:
        """What is under way is waited for, as long as a write may take. Blocks."""
        until = time.monotonic() + self._options.timeout + 1
        for one in (self._quick, self._patient):
            if one is not None:
                one.finish(max(0.0, until - time.monotonic()))

    def _made(self, linger_ms: int, name: str) -> PolledProducer[_Sent]:
        return PolledProducer(Producer(self._options.producer(**{"linger.ms": linger_ms})), self._hop, name)

    def _begin_anew(self, polled: PolledProducer[_Sent]) -> None:
        # with another producer: of this one nothing more can be known
        if polled is self._quick:
            self._quick = self._made(0, "kafka-sender")
        elif polled is self._patient:
            self._patient = None
        else:
            return
        polled.give_up()

    def _heard(self, told: Sequence[_Sent]) -> None:
        for one in told:
            self._over(one.way)
            if one.error is not None and _fatal(one.error):
                self._begin_anew(one.way.polled)
        self._arrived([_telling(one) for one in told])


MOST_ASKED = 16


def _telling(sent: _Sent) -> Callable[[], None]:
    error = translated(sent.error) if sent.error is not None else None
    return lambda: sent.done(sent.placed, error)


def _fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() in OVER
