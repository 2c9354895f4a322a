"""Units of several partitions, or of records and rows: one transaction of Kafka for all that wait.

Everything here blocks, and is called by one thread at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.errors import CommitFailed, GatewayError, OutcomeUnknown, TooLarge, UnknownTopic
from gateway.librdkafka.threads import RAISED_WHEN_FATAL
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.records import KafkaRecord
from gateway.store.kafka.sending import translated

Placed = list[tuple[int, int]]
"""Offset and time of each record; filled by `flush`."""


class Transactions:
    """The producer of this process's transactions. Nobody else ever uses its name: what a process leaves open when it dies or
    is frozen ends by Kafka's own clock, and from then on it can end nothing of it.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._producer: Producer | None = None
        self._problem: KafkaError | None = None

    def begin(self) -> None:
        """Raises CommitFailed."""
        self._problem = None
        try:
            if self._producer is None:
                self._producer = self._made()
            self._producer.begin_transaction()
        except KafkaException as error:
            self._producer = None
            raise CommitFailed(f"no transaction can be begun: {error.args[0].str()}") from error

    def _made(self) -> Producer:
        limit = int(self._options.timeout * 1000)
        name = self._options.transactions + uuid.uuid4().hex
        settings = self._options.producer(**{"transactional.id": name, "transaction.timeout.ms": limit})
        del settings["enable.gapless.guarantee"]  # a transaction is whole or nothing anyway
        made = Producer(settings)
        made.init_transactions(self._options.timeout)
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
                self._producer = None
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
        except KafkaException:
            self._producer = None  # it ends by itself

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
