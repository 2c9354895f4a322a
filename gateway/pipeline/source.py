"""Where a log is read from: the directory of a store, or the admin address of a running gateway. One interface for both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import attrs

from gateway.envelope import Run
from gateway.errors import Unsupported
from gateway.pipeline.endpoint import Endpoint, EndpointLog
from gateway.store.interface import Stored
from gateway.store.reader import LogReader, StoredPartition, StoredTopic


@attrs.frozen
class KafkaLog:
    """A log on Kafka."""

    brokers: str
    prefix: str
    settings: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """librdkafka's own: TLS, a login."""


Source = str | Path | Endpoint | KafkaLog
"""A store's directory, an endpoint, or a log on Kafka."""


class ReadableLog(Protocol):
    """What reading needs of a log; `LogReader` and `EndpointLog` are both."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    @property
    def dense_offsets(self) -> bool:
        """Whether a gap between offsets means that something is missing."""
        ...

    @property
    def has_chunks(self) -> bool:
        """Whether it can be had as it is stored (`read_stored`)."""
        ...

    def topics(self) -> Mapping[str, StoredTopic]:
        """Every topic, by name."""
        ...

    def topic(self, name: str) -> StoredTopic:
        """One topic. Raises UnknownTopic."""
        ...

    def partition(self, topic: str, partition: int) -> StoredPartition:
        """One partition. Raises UnknownTopic or UnknownPartition."""
        ...

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """[start, end) of a partition."""
        ...

    def read_chunks(
        self, topic: str, partition: int, start: int | None = None, end: int | None = None, *, epoch: int | None = None
    ) -> Iterator[Run]:
        """The records of [start, end) in order and without a gap. Raises UnknownTopic where the topic has been deleted, and be it
        made anew: since the call, or since it had the epoch that is given.
        """
        ...

    def read_stored(
        self, topic: str, partition: int, start: int, end: int, records: int, size: int, *, epoch: int | None = None
    ) -> Iterator[Sequence[Stored]]:
        """The chunks of [start, end) as they are stored, not checked, about so many records or bytes at a time; the first of
        some may begin before the last one's end, where chunks were merged meanwhile.
        """
        ...

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first offset stored at or after a time; the end if there is none."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def open_log(source: Source) -> ReadableLog:
    """Open a log for reading. Not for use by two threads at a time."""
    if isinstance(source, KafkaLog):
        return _open_kafka(source)
    return EndpointLog(source) if isinstance(source, Endpoint) else LogReader(source)


def _open_kafka(log: KafkaLog) -> ReadableLog:
    try:
        from gateway.store.kafka.options import KafkaOptions
        from gateway.store.kafka.reader import KafkaLogReader
    except ModuleNotFoundError:
        raise Unsupported("a log on Kafka needs its client: pip install 'gateway[kafka]'") from None
    brokers = [one.strip() for one in log.brokers.split(",") if one.strip()]
    return KafkaLogReader(KafkaOptions(brokers, log.prefix, security=log.settings))


def shown(source: Source) -> str:
    """What people call it; no secret is in it."""
    if isinstance(source, KafkaLog):
        return f"kafka://{source.brokers}/{source.prefix}"
    return source.url if isinstance(source, Endpoint) else str(source)
