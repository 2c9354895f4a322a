"""The two kinds of places a store can be in, as somebody who copies sees them: what is there, and a store to write into."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from gateway.errors import InvalidRequest, StoreDamaged, StoreInUse, Unsupported
from gateway.store.database import Lock, StoreFiles, connect_read_only
from gateway.store.interface import Store, TopicConfig
from gateway.store.kafka.names import KAFKA_URL, log_address
from gateway.store.mend import read_lost
from gateway.store.reader import LogReader, StoredTopic
from gateway.store.recovery import recover
from gateway.store.sqlite import open_store

if TYPE_CHECKING:
    from gateway.store.kafka.options import KafkaOptions
    from gateway.store.kafka.reader import KafkaLogReader

GIVEN_UP = 60.0
"""Seconds in which Kafka ends what a copy or a gateway began that is gone: its `timeout`, and ten until somebody looks."""

USUAL_COPIES = 3
"""What `storage.kafka.replication` is, unless it is said."""

CopyReader: TypeAlias = "LogReader | KafkaLogReader"
"""What is read of a store, whatever it is kept in."""


class CopyPlace(Protocol):
    """Where a store is, or is to be."""

    on_kafka: bool

    @property
    def shown(self) -> str:
        """What the place is called to people: a path, or brokers and a prefix; no secret is in it."""
        ...

    def exists(self) -> bool:
        """Whether there is a store."""
        ...

    def occupied(self) -> bool:
        """Whether there is anything in it that a copy would be mixed up with."""
        ...

    def unserved(self) -> AbstractContextManager[None]:
        """While nobody serves it, and, where that can be seen to, nobody begins to. Raises StoreInUse."""
        ...

    def reading(self, *, whole: bool = True) -> AbstractContextManager[CopyReader]:
        """`whole`: what is under way there is waited for. An attempt that was killed may have left something, until it is given
        up: who only looks how far that came need not wait.
        """
        ...

    def identity(self, reader: CopyReader) -> str:
        """What tells this store from all others."""
        ...

    def config(self, reader: CopyReader, topic: StoredTopic) -> TopicConfig: ...

    def own_settings(self, reader: CopyReader, topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        """By topic, what it is set to that only this kind of place knows."""
        ...

    def take_settings(self, settings: Mapping[str, Mapping[str, str]]) -> None:
        """Set what another place of this kind had, as far as this one takes it: an audit says what it has not taken. Blocks."""
        ...

    def refuse_name(self, topic: str) -> None:
        """Raise InvalidRequest where a topic cannot be called so here."""
        ...

    def writing(self) -> AbstractAsyncContextManager[Store]: ...


@attrs.frozen
class DirectoryPlace:
    """A store in a directory."""

    path: Path
    on_kafka = False

    @property
    def shown(self) -> str:
        return str(self.path)

    def exists(self) -> bool:
        return StoreFiles(self.path).database.is_file()

    def occupied(self) -> bool:
        if not self.exists():
            return False
        with self.reading() as reader:
            return bool(reader.topics()) or bool(reader.tables())

    @contextmanager
    def unserved(self) -> Iterator[None]:
        files = StoreFiles(self.path)
        if not files.lock.exists():
            yield  # where there was no store nobody serves one
            return
        with Lock(files.lock):
            recover(files)
            yield

    def reading(self, *, whole: bool = True) -> AbstractContextManager[LogReader]:
        del whole
        with closing(connect_read_only(StoreFiles(self.path))) as connection:
            lost = read_lost(connection)
        if lost.ranges:
            raise StoreDamaged(f"rows of {self.path} are lost with a damaged page. {lost.way_on}")
        return LogReader(self.path)

    def identity(self, reader: CopyReader) -> str:
        del reader
        return f"directory:{self.path.resolve()}"

    def config(self, reader: CopyReader, topic: StoredTopic) -> TopicConfig:
        del reader
        return topic.config

    def own_settings(self, reader: CopyReader, topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        del reader, topics
        return {}

    def take_settings(self, settings: Mapping[str, Mapping[str, str]]) -> None:
        """Here there is nothing that could have them."""

    def refuse_name(self, topic: str) -> None:
        """Here every name will do."""

    def writing(self) -> AbstractAsyncContextManager[Store]:
        return open_store(self.path)


@attrs.frozen
class KafkaPlace:
    """A store on Kafka: all topics that begin with its prefix."""

    options: KafkaOptions
    replication: int | None = None
    """Of what is made there; None: as much as a gateway asks for that nobody tells, where there are so many brokers."""
    min_insync: int | None = None
    on_kafka = True

    @property
    def shown(self) -> str:
        return f"{KAFKA_URL}{','.join(self.options.brokers)}/{self.options.prefix}"

    def _reader(self, *, whole: bool = False) -> KafkaLogReader:
        from gateway.store.kafka.reader import KafkaLogReader

        return KafkaLogReader(self.options, whole=whole, patience=GIVEN_UP if whole else 0.0)

    def exists(self) -> bool:
        return self.occupied()

    def occupied(self) -> bool:
        with self._reader() as reader:
            return bool(reader.topics()) or bool(reader.tables())

    @contextmanager
    def unserved(self) -> Iterator[None]:
        with self._reader() as reader:
            if reader.served():
                raise StoreInUse(f"{self.shown} is served by a gateway: stop those that serve it")
        yield

    def reading(self, *, whole: bool = True) -> AbstractContextManager[KafkaLogReader]:
        return self._reader(whole=whole)

    def identity(self, reader: CopyReader) -> str:
        return _on_kafka(reader).identity()

    def config(self, reader: CopyReader, topic: StoredTopic) -> TopicConfig:
        return _on_kafka(reader).configured(topic)

    def own_settings(self, reader: CopyReader, topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        return _on_kafka(reader).own_settings(topics)

    def take_settings(self, settings: Mapping[str, Mapping[str, str]]) -> None:
        from gateway.store.kafka.cluster import KafkaCluster
        from gateway.store.kafka.names import kafka_name

        cluster = KafkaCluster(self.options)
        for topic, wanted in settings.items():
            for key, value in wanted.items():
                with suppress(InvalidRequest):
                    cluster.set(kafka_name(self.options.prefix, topic), {key: value})

    def refuse_name(self, topic: str) -> None:
        from gateway.store.kafka.names import kafka_name

        kafka_name(self.options.prefix, topic)

    def writing(self) -> AbstractAsyncContextManager[Store]:
        from gateway.store.kafka.cluster import KafkaCluster
        from gateway.store.kafka.opening import open_kafka_store

        copies = self.replication
        if copies is None:
            copies = min(USUAL_COPIES, KafkaCluster(self.options).brokers())
        insync = self.min_insync if self.min_insync is not None else max(1, copies - 1)
        return open_kafka_store(attrs.evolve(self.options, replication=copies, min_insync=min(insync, copies)))


def _on_kafka(reader: CopyReader) -> KafkaLogReader:
    from gateway.store.kafka.reader import KafkaLogReader

    assert isinstance(reader, KafkaLogReader)
    return reader


def place_at(
    text: str,
    *,
    settings: Mapping[str, str] | None = None,
    replication: int | None = None,
    min_insync: int | None = None,
) -> CopyPlace:
    """A directory, or `kafka://host:port,host:port/prefix`. Raises InvalidRequest for what is neither."""
    if not text.startswith(KAFKA_URL):
        if "://" in text:
            raise InvalidRequest(f"{text!r} is neither a directory nor {KAFKA_URL}host:port,.../prefix")
        return DirectoryPlace(Path(text))
    try:
        from gateway.store.kafka.options import KafkaOptions
    except ModuleNotFoundError:
        raise Unsupported("a log on Kafka needs its client: pip install 'gateway[kafka]'") from None
    brokers, prefix = log_address(text)
    return KafkaPlace(
        KafkaOptions(
            brokers,
            prefix=prefix,
            security=dict(settings or {}),
            tail_cache=1 << 20,
            timeout=30.0,
        ),
        replication,
        min_insync,
    )
