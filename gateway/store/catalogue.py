"""The topics of a store as live objects, and how they are read back from the database.

Loading touches the first and the last chunk of each partition and nothing between, so a restart takes as long with a
million records as with a thousand.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import attrs

from gateway.errors import CorruptChunk, Throttled
from gateway.store.database import MAX_OFFSET, MAX_SLOT, OFFSET_BITS
from gateway.store.hot import RunQueue
from gateway.store.interface import Durability, PartitionState, TopicConfig, TopicState

NO_SLOT = -1
"""Of the partitions of memory topics."""
EPOCH_BITS = 32


@attrs.define(eq=False)
class Log:
    """One partition: what readers see of it (`state`), and what the store needs to know beside that."""

    topic: Topic
    number: int
    slot: int
    state: PartitionState
    position: int = 0
    """Bytes of all chunks it ever had: that of the next chunk."""
    slack: int = 0
    """Bytes between the positions of its chunks that merging has saved."""
    head_ms: int | None = None
    """Time of the last record of the first chunk; None when there is none."""
    hot: RunQueue = attrs.field(factory=RunQueue)
    small: int = 0
    """Small chunks written since the last merge."""
    merge_from: int = 0
    """Merging has finished below this offset."""

    @property
    def key(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic.name, self.number


@attrs.define(eq=False)
class Topic(TopicState):
    """A topic with its logs."""

    id: int
    logs: list[Log]

    @property
    def memory(self) -> bool:
        """Whether it never touches the disk."""
        return self.config.durability is Durability.MEMORY

    def grow(self, slots: list[int]) -> None:
        """Add empty partitions."""
        for slot in slots:
            state = PartitionState()
            self.partitions.append(state)
            self.logs.append(Log(self, len(self.logs), slot, state))


def make_topic(name: str, epoch: int, config: TopicConfig, topic_id: int, slots: list[int]) -> Topic:
    """A new, empty topic."""
    topic = Topic(name, epoch, config, [], topic_id, [])
    topic.grow(slots)
    return topic


class Catalogue:
    """Every topic, and the numbers new ones get."""

    def __init__(self, boot: int) -> None:
        self.topics: dict[str, Topic] = {}
        self.dead: set[int] = set()
        """Slots of deleted topics whose chunks are still there."""
        self._boot = boot
        self._epochs = 0
        self._slots: set[int] = set()
        self._slot = 0
        self._topic_id = 0

    def next_epoch(self) -> int:
        """Never the same twice, over restarts too."""
        self._epochs += 1
        return self._boot << EPOCH_BITS | self._epochs

    def next_topic_id(self) -> int:
        """A number for the topics table."""
        self._topic_id += 1
        return self._topic_id

    def take_slots(self, count: int) -> list[int]:
        """Slots that are in use by nothing."""
        if len(self._slots) + count > MAX_SLOT:
            raise Throttled(f"a store holds at most {MAX_SLOT} partitions")
        taken: list[int] = []
        while len(taken) < count:
            self._slot = self._slot + 1 if self._slot < MAX_SLOT else 1
            if self._slot not in self._slots:
                self._slots.add(self._slot)
                taken.append(self._slot)
        return taken

    def free_slot(self, slot: int) -> None:
        """Its chunks are gone."""
        self._slots.discard(slot)
        self.dead.discard(slot)

    def logs(self) -> Iterator[Log]:
        """The partitions of all topics."""
        for topic in self.topics.values():
            yield from topic.logs

    def log(self, topic: str, partition: int) -> Log | None:
        """One partition."""
        found = self.topics.get(topic)
        return found.logs[partition] if found is not None and 0 <= partition < len(found.logs) else None

    def config_of(self, topic: str) -> TopicConfig | None:
        """The settings of a topic that exists."""
        found = self.topics.get(topic)
        return None if found is None else found.config

    def load(self, connection: sqlite3.Connection) -> int:
        """Read all from the database; returns the number of the last commit there is a trace of."""
        commit: int = connection.execute("SELECT value FROM meta WHERE name = 'commit'").fetchone()[0]
        by_id: dict[int, Topic] = {}
        for topic in load_topics(connection):
            by_id[topic.id] = self.topics[topic.name] = topic
            self._topic_id = max(self._topic_id, topic.id)
        for row in load_partitions(connection):
            self._slots.add(row.slot)
            self._slot = max(self._slot, row.slot)
            commit = max(commit, row.commit)
            if row.topic is None:
                self.dead.add(row.slot)
                continue
            topic = by_id[row.topic]
            if row.number != len(topic.logs):
                raise CorruptChunk(topic.name, len(topic.logs), 0, 0)
            state = PartitionState(row.start, row.end, row.bytes, row.last_ms)
            log = Log(topic, row.number, row.slot, state, row.position, row.slack, row.head_ms, merge_from=row.end)
            topic.partitions.append(state)
            topic.logs.append(log)
        for topic in by_id.values():
            topic.config = attrs.evolve(topic.config, partitions=len(topic.logs))
        return commit


def load_topics(connection: sqlite3.Connection) -> list[Topic]:
    """The topics table, without partitions."""
    rows = connection.execute(
        "SELECT id, name, epoch, durability, interval, retention_seconds, retention_bytes, schema FROM topics"
    )
    return [
        Topic(name, epoch, TopicConfig(1, Durability(durability), interval, seconds, size, schema), [], number, [])
        for number, name, epoch, durability, interval, seconds, size, schema in rows
    ]


@attrs.frozen
class PartitionRow:
    """What the database says about one partition."""

    slot: int
    topic: int | None
    number: int
    start: int
    end: int
    last_ms: int
    bytes: int
    position: int
    slack: int
    head_ms: int | None
    commit: int


_PARTITIONS = """
SELECT p.slot, p.topic, p.partition, p.start, p.last_ms, p.position, p.slack,
       f.id, f.last_ms, f.position, l.id, l.count, l.last_ms, l.position + l.size, l.commit_number
FROM partitions p
LEFT JOIN chunks f ON f.id = (SELECT min(id) FROM chunks WHERE id >= p.slot << 43 AND id < (p.slot + 1) << 43)
LEFT JOIN chunks l ON l.id = (SELECT max(id) FROM chunks WHERE id >= p.slot << 43 AND id < (p.slot + 1) << 43)
"""


def load_partitions(connection: sqlite3.Connection, topic: int | None = None) -> Iterator[PartitionRow]:
    """Every partition of the store, or of one topic, by topic and number."""
    where, values = ("WHERE p.topic = ? ", (topic,)) if topic is not None else ("", ())
    for row in connection.execute(_PARTITIONS + where + "ORDER BY p.topic, p.partition", values):
        (
            slot,
            owner,
            number,
            start,
            last_ms,
            position,
            slack,
            first,
            head_ms,
            first_position,
            last,
            count,
            late,
            total,
            commit,
        ) = row
        if first is None:
            yield PartitionRow(slot, owner, number, start, start, last_ms, 0, position, 0, None, 0)
            continue
        end = (last & MAX_OFFSET) + count
        size = total - first_position - slack
        yield PartitionRow(slot, owner, number, first & MAX_OFFSET, end, late, size, total, slack, head_ms, commit)


def row_id(slot: int, offset: int) -> int:
    """The key of the chunk that starts at an offset."""
    return slot << OFFSET_BITS | offset
