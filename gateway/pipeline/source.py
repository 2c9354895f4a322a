"""Where a log is read from: the directory of a store, the admin address of a running gateway, or the brokers of a Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from gateway.errors import Unsupported
from gateway.pipeline.endpoint import Endpoint, EndpointLog
from gateway.store.reader import LogReader, ReadableLog


@attrs.frozen
class KafkaLog:
    """A log on Kafka."""

    brokers: str
    prefix: str
    settings: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """librdkafka's own: TLS, a login."""


Source = str | Path | Endpoint | KafkaLog
"""A store's directory, an endpoint, or a log on Kafka."""


def open_log(source: Source) -> ReadableLog:
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


def identified(source: Source) -> str:
    """The same, told apart from others of the name: what an archive keeps of where its records come from."""
    return str(Path(source).resolve()) if isinstance(source, str | Path) else shown(source)
