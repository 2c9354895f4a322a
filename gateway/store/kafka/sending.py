"""Writing without a transaction: records in the order they are handed in, and what became of them in one hop a batch.

What is large is handed in by slices, one in a pass of the event loop, since librdkafka copies each record. What comes to the same
partition meanwhile waits behind it; to others it goes at once.
"""

from __future__ import annotations

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


class _Sent:
    """One call of `send`: all of its records that are asked about."""

    __slots__ = ("done", "error", "missing", "placed", "polled")

    def __init__(self, polled: PolledProducer[_Sent], done: Done, asked: int) -> None:
        self.polled = polled
        self.done = done
        self.missing = asked
        self.placed: list[tuple[int, int]] = []
        self.error: KafkaError | None = None


@attrs.define(eq=False)
class _Handing:
    """Records on their way to one partition, as far as they are not librdkafka's yet."""

    sent: _Sent
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
        self._hop: Hop[_Sent] = Hop(self._heard)
        self._waiting: dict[tuple[str, int], deque[_Handing]] = {}
        """By partition: what is too large for one slice, and what came behind it."""
        self._polled = self._made()

    def send(self, topic: str, partition: int, records: Iterable[KafkaRecord], count: int, done: Done) -> None:
        """Hand in records of one partition. Asked about are the first and the last, or all where there are few: Kafka may put
        records of others between those of one call.
        """
        asked = count if count <= MOST_ASKED else 2
        handing = _Handing(_Sent(self._polled, done, asked), topic, partition, iter(records), count)
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
        polled = sent.polled
        produce, heard = polled.producer.produce, polled.heard
        if polled is not self._polled:
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
        self._token.run_sync_soon(self._arrived, [lambda: sent.done((), problem)])

    def close(self) -> None:
        """What is under way is waited for, as long as a write may take. Blocks."""
        self._polled.finish(self._options.timeout + 1)

    def _made(self) -> PolledProducer[_Sent]:
        return PolledProducer(Producer(self._options.producer()), self._hop, "kafka-sender")

    def _begin_anew(self, polled: PolledProducer[_Sent]) -> None:
        # with another producer: of this one nothing more can be known
        if self._polled is polled:
            self._polled = self._made()
            polled.give_up()

    def _heard(self, told: Sequence[_Sent]) -> None:
        for one in told:
            if one.error is not None and _fatal(one.error):
                self._begin_anew(one.polled)
        self._arrived([_telling(one) for one in told])


MOST_ASKED = 16


def _telling(sent: _Sent) -> Callable[[], None]:
    error = translated(sent.error) if sent.error is not None else None
    return lambda: sent.done(sent.placed, error)


def _fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() in OVER
