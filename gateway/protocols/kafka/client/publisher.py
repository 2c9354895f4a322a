"""Publishing: messages go to the library at once, its thread collects what became of them.

Each is taken or refused by itself. The library's producer is idempotent: what it sends again is not there twice, and the order
in a partition stays. What is copied from a gateway's log goes another way (`copier`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from gateway.envelope import NO_HEADERS, Headers
from gateway.errors import GatewayError, Throttled
from gateway.librdkafka.hop import Hop
from gateway.librdkafka.threads import PolledProducer
from gateway.protocols.kafka.wire.mapping import target_error
from gateway.requests import Completion, Outcome, Publish, Published


@attrs.define(eq=False)
class PublishJob:
    """A batch, and what has become of its messages so far."""

    request: Publish
    left: int
    places: list[tuple[int, int]]
    """(partition, offset) of each message."""
    refused: dict[int, GatewayError] = attrs.Factory(dict)

    @classmethod
    def of(cls, request: Publish) -> PublishJob:
        count = request.batch.columns.count
        return cls(request, count, [(0, 0)] * count)

    def ends(self, index: int, end: GatewayError | tuple[int, int]) -> bool:
        """What became of one; whether it was the last."""
        if isinstance(end, GatewayError):
            self.refused[index] = end
        else:
            self.places[index] = end
        self.left -= 1
        return not self.left

    def outcome(self) -> Outcome:
        count = len(self.places)
        if self.refused and len(self.refused) == count:
            return self.refused[0]
        partition, first = self.places[0] if count else (0, 0)
        together = not self.refused and all(
            place == (partition, first + index) for index, place in enumerate(self.places)
        )
        return Published(
            self.request.batch.address,
            0,
            partition,
            first,
            scattered=None if together else self.places,
            refused=self.refused,
        )


def produce(
    producer: Any, request: Publish, index: int, on_delivery: Callable[[Any, Any], None], more: Headers
) -> None:
    """Give one message of a batch to the library. Raises what it raises."""
    batch = request.batch
    headers = (*batch.columns.headers_of(index), *more)
    where = {} if batch.partition is None else {"partition": batch.partition}
    producer.produce(
        batch.address,
        batch.columns.value(index),
        batch.columns.key(index),
        headers=list(headers) or None,
        on_delivery=on_delivery,
        **where,
    )


PRODUCER: Mapping[str, Any] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # as Kafka's own clients: a key is in one partition, whoever writes it
    "linger.ms": 0,
    "topic.metadata.propagation.max.ms": 2_000,
    "message.max.bytes": 128 << 20,  # what is too large the broker says
    "queue.buffering.max.kbytes": 256 << 10,
}


class Publisher:
    """One producer of the library."""

    def __init__(
        self, settings: Mapping[str, Any], timeout: float, complete: Callable[[Sequence[Completion]], None]
    ) -> None:
        import confluent_kafka

        self._buffer_full, self._refused = BufferError, confluent_kafka.KafkaException
        self._producer = confluent_kafka.Producer(
            {**PRODUCER, **settings, "message.timeout.ms": max(1, round(timeout * 1000))}
        )
        self._hop: Hop[Completion] = Hop(complete)
        self._counting = threading.Lock()  # a message may be refused here while its neighbour is delivered there
        self._polled = PolledProducer(self._producer, self._hop, "kafka publisher")

    def publish(self, request: Publish) -> Sequence[Completion]:
        """Start it; it has an answer at once if nothing of it can be sent."""
        job = PublishJob.of(request)
        if not job.left:
            return ((request.id, job.outcome()),)
        over = False
        for index in range(job.left):
            try:
                produce(self._producer, request, index, functools.partial(self._delivered, job, index), NO_HEADERS)
            except self._buffer_full:
                over = self._ends(job, index, Throttled("too many messages wait for Kafka"))
            except self._refused as error:
                over = self._ends(job, index, target_error(error.args[0]))
        return ((request.id, job.outcome()),) if over else ()

    def close(self) -> None:
        """Give up what is under way; blocks until the thread has ended."""
        self._hop.closed = True
        self._polled.give_up()
        self._polled.join()

    def _ends(self, job: PublishJob, index: int, end: GatewayError | tuple[int, int]) -> bool:
        with self._counting:
            return job.ends(index, end)

    def _delivered(self, job: PublishJob, index: int, error: Any, message: Any) -> None:
        # in the thread that polls
        end = target_error(error) if error is not None else (message.partition(), message.offset())
        if self._ends(job, index, end):
            self._polled.heard.append((job.request.id, job.outcome()))
