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
from gateway.store.kafka.tables import place_key

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
        more, and stands in line no longer. Raises StoreReadOnly if that is not to be had.
        """
        try:
            producer = self._made(member)
            # under its own id: if it has begun anew since, it is not this that takes it out of the line
            producer.begin_transaction()
            producer.produce(self._options.state_topic, None, place_key(member), 0)
            _commit(producer, self._options.timeout)
        except KafkaException as error:
            raise StoreReadOnly(f"Kafka does not end another gateway's transactions: {error.args[0].str()}") from error

    def begin_anew(self) -> None:
        """The next that gets `ready`: with a producer that nobody can have fenced yet."""
        self._anew = True

    def ready(self) -> bool:
        """Have a producer. Whoever fences this gateway from here on ends what it begins; says whether it is another producer
        than before, and what was fenced before is past. Raises CommitFailed.
        """
        if self._anew:
            self._producer, self._anew = None, False
        if self._producer is not None:
            return False
        try:
            self._producer = self._made(self._member)
        except KafkaException as error:
            self._gone(error)
            raise CommitFailed(f"no transaction can be begun: {error.args[0].str()}") from error
        return True

    def begin(self) -> None:
        """When it is `ready`. Raises CommitFailed."""
        self._problem = None
        assert self._producer is not None
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            self._gone(error)
            raise CommitFailed(f"no transaction can be begun: {error.args[0].str()}") from error

    def _made(self, member: bytes) -> Producer:
        limit = int(self._options.timeout * 1000)
        name = self._options.own + member.hex()
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
        try:
            _commit(self._producer, self._options.timeout)
        except KafkaException as error:
            problem = error.args[0]
            if problem.txn_requires_abort():
                self.abort()
                raise CommitFailed(f"Kafka has not committed it: {problem.str()}") from error
            self._gone(error)
            if problem.fatal():
                raise OutcomeUnknown(f"this gateway was taken for dead: {problem.str()}") from error
            raise OutcomeUnknown(f"Kafka has not said whether it is committed: {problem.str()}") from error

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


def _commit(producer: Producer, timeout: float) -> None:
    while True:
        try:
            producer.commit_transaction(timeout)
        except KafkaException as error:
            problem = error.args[0]
            if problem.retriable() and problem.code() != KafkaError._TIMED_OUT:  # noqa: SLF001
                continue
            raise
        return
