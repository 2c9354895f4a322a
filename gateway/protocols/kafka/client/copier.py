"""Publishing what is copied from a gateway's log, so that it is there once whatever is sent again.

Data flow, in one thread:

    batches that wait ──► those not known to be there ──► begin, records, what is there now, commit ──► answers
                               ▲                                                │
                               └── what is there: a group's offset for each log ┘

Which offsets of a log a topic has is kept in Kafka itself, as the offset of a group named after the log, and moves in the
transaction that carries the records: both are there or neither is. Each log (a partition that one forward reads) has a producer
of its own, whose name is the log's: whoever comes next, after a crash, beside one that hangs, or because the log is another
gateway's now, ends its transaction first (its writes are refused from then on), and reads what is there.

One transaction takes all that waits. Where a broker refuses something of it, nothing of it is there, and each batch goes once
more in one of its own: a broker says of records that came together that they are too large, and means one of them.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from gateway.errors import GatewayError, InvalidRequest, TargetLost
from gateway.librdkafka.codes import COORDINATOR_MOVES
from gateway.librdkafka.hop import Hop
from gateway.protocols.kafka.client.publisher import PRODUCER, PublishJob, produce
from gateway.protocols.kafka.wire.copied import CopiedRanges
from gateway.protocols.kafka.wire.mapping import target_error
from gateway.protocols.kafka.wire.records import ids_of
from gateway.requests import Completion, Publish

MOST_MESSAGES = 10_000
MOST_BYTES = 8 << 20
"""Of one transaction: what waits beyond goes in the next one."""
AGAIN_SECONDS = 0.1


@attrs.define(eq=False)
class CopyJob:
    """A batch of copies."""

    publish: PublishJob
    source: str
    offsets: Sequence[int]
    """Where the messages are in the log that they come from."""

    @property
    def request(self) -> Publish:
        return self.publish.request

    @property
    def key(self) -> tuple[str, str]:
        return self.source, self.request.batch.address


class Copier:
    """One transactional producer of the library."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        name: str,
        timeout: float,
        complete: Callable[[Sequence[Completion]], None],
        failed: Callable[[GatewayError], None],
    ) -> None:
        """`name`: the log's, whoever copies it. `failed`: it is of no more use; what is under way ends with that."""
        self._settings = settings
        self._name = name
        self._timeout = timeout
        self._complete = complete
        self._failed = failed
        self._hop: Hop[Completion] = Hop(self._answered)
        self._failure: Hop[GatewayError] = Hop(self._ended)
        self._under_way: set[int] = set()
        self._waiting: queue.SimpleQueue[CopyJob | None] = queue.SimpleQueue()
        self._there: dict[tuple[str, str], CopiedRanges] = {}
        self._groups: dict[str, Any] = {}
        self._producer: Any = None
        self._closing = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka copier", daemon=True)
        self._thread.start()

    def publish(self, request: Publish) -> Sequence[Completion]:
        batch = request.batch
        copies = batch.copies
        assert copies is not None
        if copies.count != batch.columns.count:
            return ((request.id, InvalidRequest("not as many copies as messages")),)
        self._under_way.add(request.id)
        offsets = [number for first, _id, _index, count in copies.ranges for number in range(first, first + count)]
        self._waiting.put(CopyJob(PublishJob.of(request), copies.source.hex(), offsets))
        return ()

    @property
    def idle(self) -> bool:
        return not self._under_way

    def _answered(self, completions: Sequence[Completion]) -> None:
        self._under_way.difference_update(number for number, _outcome in completions)
        self._complete(completions)

    def _ended(self, errors: Sequence[GatewayError]) -> None:
        left, self._under_way = self._under_way, set()
        self._failed(errors[0])
        self._complete([(number, errors[0]) for number in sorted(left)])

    def close(self) -> None:
        """Give up what is under way; blocks until the thread has ended."""
        self._closing = True
        self._ending.set()
        self._hop.closed = self._failure.closed = True
        self._waiting.put(None)
        self._thread.join()

    # --- in the thread ---

    def _run(self) -> None:
        import confluent_kafka

        try:
            while not self._closing:
                self._turn(self._gather())
        except confluent_kafka.KafkaException as error:
            self._failure.put([_lost(error.args[0])])
        finally:
            if self._producer is not None:
                self._producer.purge()

    def _gather(self) -> list[CopyJob]:
        jobs: list[CopyJob] = []
        size = messages = 0
        while messages < MOST_MESSAGES and size < MOST_BYTES:
            try:
                job = self._waiting.get(block=not jobs)
            except queue.Empty:
                break
            if job is None:  # it is to end
                return jobs
            jobs.append(job)
            messages += len(job.offsets)
            size += job.request.batch.columns.value_bytes
        return jobs

    def _turn(self, jobs: Sequence[CopyJob]) -> None:
        if self._producer is None and jobs:
            self._begin()
        for job in jobs:
            if job.key not in self._there:
                self._there[job.key] = self._read(job)
        fresh: dict[tuple[str, str], list[int]] = {}
        failed: list[GatewayError] = []
        begun = False
        for job in jobs:
            there, sent = self._there[job.key], set(fresh.get(job.key, ()))
            ids = list(ids_of(job.request.batch.copies)) if job.request.batch.copies is not None else []
            for index, offset in enumerate(job.offsets):
                if offset in there or offset in sent:
                    continue
                if not begun:
                    self._producer.begin_transaction()
                    begun = True
                told = functools.partial(self._told, job, index, failed)
                self._give(job.request, index, told, ids[index], failed)
                fresh.setdefault(job.key, []).append(offset)
        if begun:
            self._producer.flush(self._timeout)
            if len(self._producer):
                raise self._error(-185, "no answer to what was sent")
            if failed:
                self._patiently(self._producer.abort_transaction)
                # what went down with another one says nothing about why
                self._aborted(jobs, next((one for one in failed if getattr(one, "final", False)), failed[0]))
                return
            self._commit(fresh)
        self._hop.put([(job.request.id, job.publish.outcome()) for job in jobs])

    def _give(
        self,
        request: Publish,
        index: int,
        told: Callable[[Any, Any], None],
        more: tuple[tuple[str, bytes], ...],
        failed: list[GatewayError],
    ) -> None:
        import confluent_kafka

        while True:
            try:
                produce(self._producer, request, index, told, more)
            except BufferError:
                self._producer.poll(self._timeout)
            except confluent_kafka.KafkaException as error:
                failed.append(target_error(error.args[0]))
                return
            else:
                self._producer.poll(0)
                return
            if self._closing:
                return

    def _told(self, job: CopyJob, index: int, failed: list[GatewayError], error: Any, message: Any) -> None:
        if error is not None:
            failed.append(target_error(error))
        else:
            job.publish.places[index] = (message.partition(), message.offset())

    def _aborted(self, jobs: Sequence[CopyJob], error: GatewayError) -> None:
        if len(jobs) == 1 or not getattr(error, "final", False):
            self._hop.put([(job.request.id, error) for job in jobs])
            return
        for job in jobs:
            if not self._closing:
                self._turn([job])

    def _commit(self, fresh: Mapping[tuple[str, str], Sequence[int]]) -> None:
        import confluent_kafka

        moved = {key: self._there[key].and_these(offsets) for key, offsets in fresh.items()}
        for (source, address), copied in moved.items():
            where = confluent_kafka.TopicPartition(address, 0, copied.next_offset, metadata=copied.to_text())
            send = functools.partial(self._producer.send_offsets_to_transaction, [where], self._groups[source])
            self._patiently(send)
        self._patiently(self._producer.commit_transaction)
        self._there.update(moved)

    def _begin(self) -> None:
        import confluent_kafka

        limit = max(1000, round(self._timeout * 1000))
        self._producer = confluent_kafka.Producer(
            {
                **PRODUCER,
                **self._settings,
                "transactional.id": self._name,
                "transaction.timeout.ms": max(limit, 10_000),
                "message.timeout.ms": limit,
                "linger.ms": 5,  # a flush follows, and sends at once
            }
        )
        self._patiently(self._producer.init_transactions)

    def _read(self, job: CopyJob) -> CopiedRanges:
        # What the topic has of a log. Waits for whoever is in the middle of writing that.
        import confluent_kafka

        source, address = job.key
        consumer = confluent_kafka.Consumer(
            {**self._settings, "group.id": f"gateway-copies-{source}", "isolation.level": "read_committed"}
        )
        try:
            self._groups[source] = consumer.consumer_group_metadata()
            ask = functools.partial(consumer.committed, [confluent_kafka.TopicPartition(address, 0)])
            (kept,) = self._while_it_moves(ask)
        finally:
            consumer.close()
        if kept.error is not None:
            raise confluent_kafka.KafkaException(kept.error)
        if kept.offset < 0:
            return CopiedRanges()
        return CopiedRanges.from_text(kept.offset, kept.metadata or "")

    def _while_it_moves(self, call: Callable[[float], Any]) -> Any:
        # a question to a group's coordinator, again while there is none, or it reads its log
        import confluent_kafka

        until = time.monotonic() + self._timeout
        while True:
            try:
                return call(self._timeout)
            except confluent_kafka.KafkaException as error:
                if self._closing or error.args[0].code() not in COORDINATOR_MOVES or time.monotonic() > until:
                    raise
            self._ending.wait(AGAIN_SECONDS)

    def _patiently(self, call: Callable[..., object]) -> None:
        # a step of a transaction, once more while the library says that this is what helps
        import confluent_kafka

        for _ in range(3):
            try:
                call(self._timeout)
            except confluent_kafka.KafkaException as error:
                if self._closing or not error.args[0].retriable():
                    raise
            else:
                return
        raise self._error(-185, "no answer to a transaction")

    @staticmethod
    def _error(code: int, reason: str) -> Exception:
        import confluent_kafka

        error: Exception = confluent_kafka.KafkaException(confluent_kafka.KafkaError(code, reason))
        return error


def _lost(error: Any) -> GatewayError:
    # what was under way may be there or not: who comes next finds out
    found = target_error(error)
    return found if found.status.value == "unauthenticated" else TargetLost(found.message)
