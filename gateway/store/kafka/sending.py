"""Writing without a transaction: records in the order they are handed in, and what became of them in one hop a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import trio
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.errors import GatewayError, OutcomeUnknown, StoreReadOnly, TooLarge, UnknownTopic
from gateway.store.kafka.options import KafkaOptions

POLL_SECONDS = 0.5
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes]] | None]
"""Value, key, headers."""
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


class Sender:
    """A producer that keeps the order, and the thread that hears from it."""

    def __init__(self, options: KafkaOptions, arrived: Callable[[Sequence[Callable[[], None]]], None]) -> None:
        """`arrived` is called in the event loop with all that has become known together."""
        self._options = options
        self._arrived = arrived
        self._token = trio.lowlevel.current_trio_token()
        self._heard: list[_Sent] = []
        self._producer = self._made()
        self._closing = False
        self._thread = threading.Thread(target=self._listen, name="kafka-sender", daemon=True)
        self._thread.start()

    def send(self, topic: str, partition: int, records: Iterable[Record], count: int, time_ms: int, done: Done) -> None:
        """Hand in records of one partition. Asked about are the first and the last, or all where there are few: Kafka may put
        records of others between those of one call.
        """
        few = count <= MOST_ASKED
        sent = _Sent(done, count if few else 2)
        producer, heard = self._producer, self._heard

        def delivered(error: KafkaError | None, message: Message) -> None:
            # in the listening thread
            if error is not None:
                sent.error = error
            else:
                sent.placed.append((message.offset() or 0, message.timestamp()[1]))
            sent.missing -= 1
            if not sent.missing:
                heard.append(sent)

        try:
            produce, last = producer.produce, count - 1
            for index, (value, key, headers) in enumerate(records):
                asked = delivered if few or not index or index == last else None
                produce(topic, value, key, partition, on_delivery=asked, timestamp=time_ms, headers=headers)
        except KafkaException as error:
            self._broken(producer)
            problem = translated(error.args[0])
            self._token.run_sync_soon(self._arrived, [lambda: done((), problem)])
        except BufferError:
            self._broken(producer)
            self._token.run_sync_soon(
                self._arrived, [lambda: done((), OutcomeUnknown("too much is under way to Kafka"))]
            )

    def close(self) -> None:
        """What is under way is waited for, as long as a write may take. Blocks."""
        self._closing = True
        self._thread.join(self._options.timeout + POLL_SECONDS + 1)

    def _made(self) -> Producer:
        return Producer(self._options.producer())

    def _broken(self, producer: Producer) -> None:
        """From here on a new one is used: of this one nothing more can be known."""
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
