"""Units of several partitions, or of records and rows: one transaction of Kafka for all that wait.

Everything here blocks, and is called by one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.errors import CommitFailed, GatewayError, OutcomeUnknown, StoreReadOnly, TooLarge, UnknownTopic
from gateway.librdkafka.codes import FENCED
from gateway.librdkafka.threads import RAISED_WHEN_FATAL
from gateway.store.kafka.cluster import BUSY_SECONDS
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.records import KafkaRecord
from gateway.store.kafka.sending import translated

Placed = list[tuple[int, int]]
"""Offset and time of each record; filled by `flush`."""


class Transactions:
    """The producer of this gateway's transactions. Its transactional id is the gateway's, and Kafka lets only the latest that
    began under an id end anything: whoever takes over from a gateway that died or froze begins under its id (`fence`).
    """

    def __init__(self, options: KafkaOptions, member: bytes) -> None:
        self._options = options
        self._member = member
        self._producer: Producer | None = None
        self._problem: KafkaError | None = None
        self._anew = False
        self._begun = False
        """Whether there was a coordinator to begin with, since this gateway was started."""
        self.fenced = False
        """Whether Kafka has refused something since somebody looked, because another began under this id."""

    def fence(self, member: bytes) -> None:
        """Whatever a gateway has begun is not stored when this returns, or was committed before; it can end nothing of it any
        more. Raises StoreReadOnly if that is not to be had.
        """
        try:
            self._made(member)
        except KafkaException as error:
            raise StoreReadOnly(f"Kafka does not end another gateway's transactions: {error.args[0].str()}") from error

    def begin_anew(self) -> None:
        """The next transaction: by a producer that nobody can have fenced yet."""
        self._anew = True

    def begin(self) -> None:
        """Raises CommitFailed."""
        self._problem = None
        if self._anew:
            self._producer, self._anew = None, False
        try:
            if self._producer is None:
                self._producer = self._made(self._member)
            self._producer.begin_transaction()
        except KafkaException as error:
            self._gone(error)
            raise CommitFailed(f"no transaction can be begun: {error.args[0].str()}") from error

    def _made(self, member: bytes) -> Producer:
        limit = int(self._options.timeout * 1000)
        name = self._options.transactions + member.hex()
        settings = self._options.producer(**{"transactional.id": name, "transaction.timeout.ms": limit})
        del settings["enable.gapless.guarantee"]  # a transaction is whole or nothing anyway
        made = Producer(settings)
        until = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                made.init_transactions(self._options.timeout)
            except KafkaException as error:
                # whoever is the first on a cluster waits for it to make the log of its coordinators, and to read it
                if self._begun or not error.args[0].retriable() or time.monotonic() > until:
                    raise
            else:
                self._begun = True
                return made

    def write(self, topic: str, partition: int, records: Iterable[KafkaRecord]) -> Placed:
        placed: Placed = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._problem = error
            else:
                placed.append((message.offset() or 0, message.timestamp()[1]))

        assert self._producer is not None
        try:
            for value, key, headers, time_ms in records:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=delivered,
                    timestamp=time_ms,
                    headers=headers,
                )
            self._producer.poll(0)
        except (*RAISED_WHEN_FATAL, BufferError) as error:
            raise self._failed(error) from error
        return placed

    def flush(self) -> None:
        """Until everything that was added is in the log, where nobody sees it yet. Raises CommitFailed."""
        assert self._producer is not None
        try:
            left = self._producer.flush(self._options.timeout)
        except RAISED_WHEN_FATAL as error:
            raise self._failed(error) from error
        if left or self._problem is not None:
            raise self._failed(self._problem)

    def commit(self) -> None:
        """Raises CommitFailed where nothing of it is stored, and OutcomeUnknown where nobody knows."""
        assert self._producer is not None
        while True:
            try:
                self._producer.commit_transaction(self._options.timeout)
            except KafkaException as error:
                problem = error.args[0]
                if problem.retriable() and problem.code() != KafkaError._TIMED_OUT:  # noqa: SLF001
                    continue
                if problem.txn_requires_abort():
                    self.abort()
                    raise CommitFailed(f"Kafka has not committed it: {problem.str()}") from error
                self._gone(error)
                if problem.fatal():
                    raise OutcomeUnknown(f"this gateway was taken for dead: {problem.str()}") from error
                raise OutcomeUnknown(f"Kafka has not said whether it is committed: {problem.str()}") from error
            return

    def abort(self) -> None:
        if self._producer is None:
            return
        try:
            self._producer.purge()
            self._producer.abort_transaction(self._options.timeout)
        except KafkaException as error:
            self._gone(error)  # it ends by itself

    def _gone(self, error: KafkaException) -> None:
        # the next transaction needs another producer
        self._producer = None
        self.fenced = self.fenced or error.args[0].code() in FENCED

    def _failed(self, problem: KafkaError | Exception | None) -> GatewayError:
        # end it; what to tell whoever wanted it
        self.abort()
        if isinstance(problem, KafkaException):
            problem = problem.args[0]
        if isinstance(problem, KafkaError):
            found = translated(problem)
            if isinstance(found, UnknownTopic | TooLarge):
                return found
            return CommitFailed(f"Kafka has not taken it: {problem.str()}")
        return CommitFailed("Kafka has not taken it in time")
