"""Reading a store from another process, live or stopped, without trio: Spark, tools, audits.

Each call is a read transaction of its own, as short as it can be: a long one would keep the write-ahead log of the
serving process from shrinking. What a call returns is a consistent snapshot; the next call may see more, or find that
retention has removed what it asks for.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self, TypeVar

import attrs

from gateway.envelope import Run
from gateway.errors import CorruptChunk, NotAStore, OffsetOutOfRange, StoreDamaged, UnknownPartition, UnknownTopic
from gateway.store.catalogue import LOST_EPOCH, LOST_SLOT, PartitionRow, Topic, load, load_partitions, load_topic
from gateway.store.database import DAMAGE, StoreFiles, connect_read_only, forget_pages, meta_number, snapshot
from gateway.store.interface import Capabilities, Stored, TopicConfig
from gateway.store.journal import JournalTail
from gateway.store.position import Position
from gateway.store.raw import read_stored
from gateway.store.recovery import bring_up_to_date
from gateway.store.rows import RowsPlace, get_row, hole, offset_for_time, read_runs, scan_rows, table_names

READ_CHUNKS_BYTES = 8 << 20
"""About how many bytes of values `read_chunks` takes in one transaction."""

T = TypeVar("T")


@attrs.frozen
class StoredPartition:
    """[start, end) of one partition, and how it is found."""

    number: int
    start: int
    end: int
    last_time_ms: int
    bytes: int
    slot: int
    lost_end: bool = False
    """Its end is damaged: the last offset stands for all that is lost."""

    def before(self, stop: int) -> int:
        """Up to where of [start, stop) records can be had."""
        return min(stop, self.end - self.lost_end)


@attrs.frozen
class StoredTopic:
    """A topic as of one moment."""

    name: str
    epoch: int
    config: TopicConfig
    partitions: Sequence[StoredPartition]

    def partition(self, number: int) -> StoredPartition:
        """One of its partitions. Raises UnknownPartition."""
        if not 0 <= number < len(self.partitions):
            raise UnknownPartition(f"{self.name} has partitions 0 to {len(self.partitions) - 1}")
        return self.partitions[number]


class ReadableLog(ABC):
    """A log as others read it: from the directory of its store, from a running gateway, or from Kafka. Not for use by two
    threads at a time.
    """

    has_chunks: ClassVar[bool]
    """Whether it can be had as it is stored (`read_stored`)."""

    def __init__(self, where: str) -> None:
        """`where`, for who is told that something is not there."""
        self._where = where

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @property
    @abstractmethod
    def dense_offsets(self) -> bool:
        """Whether a gap between offsets means that something is missing."""

    @abstractmethod
    def topics(self) -> Mapping[str, StoredTopic]: ...

    def topic(self, name: str) -> StoredTopic:
        """One topic. Raises UnknownTopic."""
        found = self.topics().get(name)
        if found is None:
            raise self._unknown(name)
        return found

    def _unknown(self, name: str) -> UnknownTopic:
        return UnknownTopic(f"there is no topic {name} {self._where}")

    def partition(self, topic: str, partition: int) -> StoredPartition:
        """Raises UnknownTopic or UnknownPartition."""
        return self.topic(topic).partition(partition)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        found = self.partition(topic, partition)
        return found.start, found.end

    @abstractmethod
    def read_chunks(
        self, topic: str, partition: int, start: int | None = None, end: int | None = None, *, epoch: int | None = None
    ) -> Iterator[Run]:
        """The records of [start, end), in order, and without a gap where offsets are dense; what has expired is among them.

        Without bounds: all there is at the moment of the call. Raises OffsetOutOfRange if the range begins below the
        log's start, also when retention gets there first, CorruptChunk at a damaged chunk, after all before it, and
        UnknownTopic when the topic is deleted meanwhile, or is another one than that of the `epoch` given.
        """

    @abstractmethod
    def read_stored(
        self, topic: str, partition: int, start: int, end: int, records: int, size: int, *, epoch: int | None = None
    ) -> Iterator[Sequence[Stored]]:
        """As `read_chunks`, but chunks as they are stored, whole and not checked, about so many records or bytes at a time.
        The first of each holds the offset where the one before ended, and may begin before it: a store merges small chunks
        meanwhile. The last may reach behind `end`.
        """

    @abstractmethod
    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first offset stored at or after a time; the end if there is none."""


class LogReader(ReadableLog):
    """A store, opened read-only. Raises NotAStore for a path that is none."""

    dense_offsets = Capabilities().dense_offsets
    has_chunks = True

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        super().__init__(f"in {self.path}")
        self._files = StoreFiles(self.path)
        self._journal = JournalTail(self._files.journals)
        self._connection = connect_read_only(self._files)

    def close(self) -> None:
        self._connection.close()

    def topics(self) -> Mapping[str, StoredTopic]:
        """With everything that was acknowledged before the call."""
        self._bring_up_to_date()
        return self._read(_topics)

    def topic(self, name: str) -> StoredTopic:
        self._bring_up_to_date()
        found = self._read(_one_topic, name)
        if found is None:
            raise self._unknown(name)
        return found

    def _bring_up_to_date(self) -> None:
        self._read(lambda connection: bring_up_to_date(self._files, connection, self._journal))

    def read_chunks(
        self, topic: str, partition: int, start: int | None = None, end: int | None = None, *, epoch: int | None = None
    ) -> Iterator[Run]:
        epoch, found = self._found(topic, partition, epoch, end)
        offset = found.start if start is None else start
        stop = found.end if end is None else min(end, found.end)
        place = RowsPlace(topic, partition, found.slot, found.before(stop))
        position = Position(topic, partition, offset)
        while position.offset < stop:
            offset = position.offset
            runs = self._read(_of_epoch, epoch, read_runs, place, offset, stop - offset, READ_CHUNKS_BYTES, 0)
            if not runs:
                self._missing(epoch, place, offset)
            for run in runs:
                yield run.slice(position.skip(run.base_offset, run.next_offset), run.count)

    def read_stored(
        self, topic: str, partition: int, start: int, end: int, records: int, size: int, *, epoch: int | None = None
    ) -> Iterator[Sequence[Stored]]:
        # a transaction's worth at a time
        epoch, found = self._found(topic, partition, epoch, end)
        stop = min(end, found.end)
        place = RowsPlace(topic, partition, found.slot, found.before(stop))
        offset = start
        while offset < stop:
            chunks = self._read(_of_epoch, epoch, read_stored, place, offset, records, size)
            if not chunks:
                self._missing(epoch, place, offset)
            yield chunks
            offset = chunks[-1][0] + chunks[-1][1]

    def _found(self, topic: str, partition: int, epoch: int | None, end: int | None = 0) -> tuple[int, StoredPartition]:
        # what lies before `end` may be in the journal
        found = self._read(_one_topic, topic)
        if found is None or end is None or end > found.partition(partition).end:
            found = self.topic(topic)
        if epoch not in (None, found.epoch):
            raise UnknownTopic(f"{topic} was deleted and made again")
        return found.epoch, found.partition(partition)

    def _missing(self, epoch: int, place: RowsPlace, offset: int) -> None:
        _epoch, found = self._found(place.topic, place.partition, epoch)
        if offset < found.start:
            raise OffsetOutOfRange(first=found.start, next_offset=found.end)
        raise CorruptChunk(place.topic, place.partition, *self._read(hole, place, offset))

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        found = self.partition(topic, partition)
        place = RowsPlace(topic, partition, found.slot, found.end)
        return self._read(offset_for_time, place, found.start, timestamp_ms)

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._read(get_row, table, key)

    def scan(self, table: str, first: bytes = b"", limit: int = 10_000) -> Sequence[tuple[bytes, bytes]]:
        """Rows of a table in key order."""
        return self._read(scan_rows, table, first, limit)

    def rows(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All rows of a table in key order, a page at a time."""
        first = b""
        while page := self.scan(table, first):
            yield from page
            first = page[-1][0] + b"\0"

    def tables(self) -> Sequence[str]:
        """The names of all tables that have rows."""
        return self._read(table_names)

    def commit_number(self) -> int:
        """The last commit there is a trace of."""
        return self._read(commit_number)

    def _read(self, work: Callable[..., T], *args: object) -> T:
        try:
            return work(self._connection, *args)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorname", "") in DAMAGE:
                raise StoreDamaged(f"{self.path}: {error}") from error
            raise NotAStore(f"{self.path} cannot be read: {error}") from error


def _topics(connection: sqlite3.Connection) -> Mapping[str, StoredTopic]:
    # One transaction for both tables: a topic made between them would have partitions and no name.
    with snapshot(connection):
        topics, rows, _damage = load(connection)
    partitions: dict[int, list[PartitionRow]] = {topic.id: [] for topic in topics}
    for row in rows:
        if row.topic is not None:
            partitions[row.topic].append(row)
    return {topic.name: _stored(topic, partitions[topic.id]) for topic in topics}


def _one_topic(connection: sqlite3.Connection, name: str) -> StoredTopic | None:
    with snapshot(connection):
        found = load_topic(connection, name)
    return _topics(connection).get(name) if found is None else _stored(*found)


def _stored(topic: Topic, rows: Sequence[PartitionRow]) -> StoredTopic:
    partitions = [
        StoredPartition(row.number, row.start, row.end, row.last_ms, row.bytes, row.slot, row.lost_end) for row in rows
    ]
    return StoredTopic(topic.name, topic.epoch, attrs.evolve(topic.config, partitions=len(rows)), partitions)


def _of_epoch(
    connection: sqlite3.Connection, epoch: int, work: Callable[..., T], place: RowsPlace, offset: int, *limits: int
) -> T:
    # read chunks of a topic that still is the one that was looked up: its slot may be another one's by now
    with snapshot(connection):
        found = None
        if epoch != LOST_EPOCH:  # of a topic whose row is damaged nothing can be asked
            try:
                found = connection.execute(_EPOCH, (place.slot,)).fetchone()
            except sqlite3.DatabaseError:
                forget_pages(connection)
        if found != (epoch,) and epoch != LOST_EPOCH and place.slot != LOST_SLOT:
            raise UnknownTopic(f"{place.topic} was deleted while it was read")
        return work(connection, place, offset, *limits)


_EPOCH = "SELECT epoch FROM partitions JOIN topics ON topics.id = partitions.topic WHERE slot = ?"


def commit_number(connection: sqlite3.Connection) -> int:
    """The last commit that left a trace, in a chunk or on its own."""
    return max([meta_number(connection, "commit"), *[row.commit for row in load_partitions(connection)[0]]])
