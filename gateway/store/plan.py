"""What a commit will write: units checked one after the other, offsets and times given out, nothing touched yet.

A plan is made in the writer's thread while the event loop goes on. It reads the catalogue and changes nothing in it, so
a commit that fails leaves no trace: the offsets it gave out are given out again.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from gateway.envelope import BatchMeta, Columns, Run
from gateway.errors import (
    ConditionFailed,
    GatewayError,
    InvalidRequest,
    StoreDamaged,
    Throttled,
    UnknownPartition,
    UnknownTopic,
    Unsupported,
)
from gateway.store.catalogue import NO_SLOT, Catalogue, Log, Topic, make_topic, memory_topic
from gateway.store.cut import fit
from gateway.store.database import MAX_OFFSET, WAY_ON
from gateway.store.interface import (
    AlterTopic,
    Append,
    Durability,
    MakeTopic,
    Placement,
    Ticket,
    TopicConfig,
    Unit,
    packed_placements,
)
from gateway.store.rows import get_row
from gateway.store.rows_at_hand import RowKey, RowsAtHand

CHUNK_RECORDS = 4096
CHUNK_BYTES = 1 << 20
"""Bounds of a chunk: beyond them a longer one reads no faster, and a fetch of one record would cost more."""
ALONE_BYTES = 64 << 10
"""An append of this size is a chunk of its own: to put it together with others would be one more copy of it."""
COMMIT_BYTES = 8 << 20
"""A commit ends here and leaves the units behind it to the next, so that the first need not wait for all."""
LAST_APPENDED = MAX_OFFSET - (1 << 32)
"""A partition refuses appends so far before its last offset, so that no commit can run over it."""


def needs_sync(unit: Unit, topic_of: Callable[[str], TopicConfig | None]) -> bool:
    """Whether a unit is stored only when the disk has it."""
    if unit.synced:
        return True
    for append in unit.appends:
        config = topic_of(append.topic)
        if config is None:
            config = next((create.config for create in unit.creates if create.topic == append.topic), None)
        if config is not None and config.durability is Durability.FSYNC:
            return True
    return unit.synced is None and not unit.appends


def stretches(append: Append, at: int) -> list[tuple[int, int, BatchMeta]]:
    """Where the records of an append come from, as `Run.batches` says it, if they start at index `at` of their run."""
    if append.indexes is None:
        return [(at, append.first_index, append.meta)]
    before = itertools.chain((-2,), append.indexes)
    meta = append.meta
    return [
        (at + position, inner, meta)
        for position, (inner, last) in enumerate(zip(append.indexes, before, strict=False))
        if inner != last + 1
    ]


class Growth(msgspec.Struct, eq=False):
    """What one partition gets in one commit: runs that are closed, and the appends that will be the next one."""

    log: Log
    next: int
    time: int
    closed: list[Run] = []
    parts: list[Columns] = []
    batches: list[tuple[int, int, BatchMeta]] = []
    count: int = 0

    def add(self, append: Append) -> Placement:
        columns = append.columns
        if append.as_read is not None:
            return self._take_in(append.as_read)
        placement = Placement(self.next, self.time)
        if columns.count:
            alone = len(columns.packed) >= ALONE_BYTES
            # what is large by itself is a chunk by itself: joined, it would be copied for nothing
            if alone and self.parts:
                self._close()
            if append.indexes is None:
                self.batches.append((self.count, append.first_index, append.meta))
            else:
                self.batches.extend(stretches(append, self.count))
            self.parts.append(columns)
            self.count += columns.count
            self.next += columns.count
            if alone:
                self._close()
        return placement

    def _take_in(self, run: Run) -> Placement:
        if self.parts:
            self._close()
        placement = Placement(self.next, run.times[0])
        topic, number = self.log.topic.name, self.log.number
        self._cut(Run(topic, number, self.next, run.columns, run.times, run.batches))
        self.next += run.count
        return placement

    def runs(self) -> list[Run]:
        """What has grown, in runs of the size of a chunk."""
        if self.parts:
            self._close()
        return self.closed

    def _close(self) -> None:
        topic, number = self.log.topic.name, self.log.number
        columns, count = self.parts[0] if len(self.parts) == 1 else Columns.concat(self.parts), self.count
        # all records of a commit have one time, as they became durable at one
        whole = Run(topic, number, self.next - count, columns, (self.time,) * count, tuple(self.batches))
        self.parts, self.batches, self.count = [], [], 0
        self._cut(whole)

    def _cut(self, whole: Run) -> None:
        columns, count = whole.columns, whole.count
        if count <= CHUNK_RECORDS and len(columns.packed) <= CHUNK_BYTES:
            self.closed.append(whole)
            return
        position = 0
        while position < count:
            stop = min(position + CHUNK_RECORDS, count)
            stop = max(fit(columns, position, stop, CHUNK_BYTES), position + 1)
            self.closed.append(whole.slice(position, stop))
            position = stop


class Lone(msgspec.Struct, frozen=True):
    """All there is to write: records for one partition that is there, which fit into one chunk. Nothing has to be planned."""

    append: Append
    log: Log
    synced: bool
    interval: float | None
    """Within which it must be synced."""
    small: bool
    """Unless it has to be synced it is quicker made in the event loop than handed to the thread."""
    short: bool
    """It is so little that to write it twice costs less than a transaction by itself."""
    writes: ClassVar[bool] = True


def lone(tickets: Sequence[Ticket], catalogue: Catalogue) -> Lone | None:
    """What a commit of these comes to, if it is no more than that: as with every client that waits for its answers."""
    if len(tickets) != 1:
        return None
    unit = tickets[0].unit
    if len(unit.appends) != 1 or unit.puts or unit.requires or unit.creates or unit.alters or unit.deletes:
        return None
    append = unit.appends[0]
    columns = append.columns
    if append.indexes is not None or append.as_read is not None:
        return None
    if not 0 < columns.count <= CHUNK_RECORDS or len(columns.packed) > CHUNK_BYTES:
        return None
    log = appendable(catalogue, append)
    if log is None:
        return None
    config = log.topic.config
    durability = config.durability
    synced = durability is Durability.FSYNC or unit.synced is True
    interval = config.interval if durability is Durability.INTERVAL else None
    size = len(columns.packed)
    return Lone(append, log, synced, interval, size <= INLINE_BYTES, size <= SHORT_BYTES)


def appendable(catalogue: Catalogue, append: Append) -> Log | None:
    """The partition on disk that these records can go to, if nothing is to be said about that."""
    topic = catalogue.topics.get(append.topic)
    if topic is None or topic.memory or not 0 <= append.partition < len(topic.logs):
        return None
    log = topic.logs[append.partition]
    return None if log.sealed or log.state.end > LAST_APPENDED else log


Result = list[Placement] | GatewayError | None
"""Where the appends of a unit go, or why it fails; None: some go to memory topics, when the commit is through."""


class CommitPlan(msgspec.Struct, eq=False):
    """The units of one commit."""

    catalogue: Catalogue
    connection: sqlite3.Connection | None
    """None by the short way: somebody else may be at work with it."""
    at_hand: RowsAtHand
    number: int
    now_ms: int
    results: list[tuple[Ticket, Result]] = []
    growth: dict[tuple[str, int], Growth] = {}
    puts: dict[RowKey, bytes | None] = {}
    kept: set[RowKey] = set()
    """Of those, the ones that stay at hand."""
    created: dict[str, Topic] = {}
    on_disk: dict[Ticket, list[Placement | None]] = {}
    """Of units that append to memory topics: where their appends to others go."""
    altered: dict[str, tuple[TopicConfig, list[int]]] = {}
    """Topic to new settings and the slots of the partitions it gains."""
    deleted: list[Topic] = []
    synced: bool = False
    interval: float | None = None
    """The shortest time within which something in it must be synced."""
    size: int = 0

    def admit(self, ticket: Ticket) -> bool:
        """Add a unit, or note why it fails. False: the plan is full, or what follows must see this commit first."""
        unit = ticket.unit
        placements = self._append_more(unit)
        if placements is not None:
            self.results.append((ticket, placements))
            return self.size < COMMIT_BYTES
        try:
            placements = self._admit(ticket)
        except GatewayError as error:
            self.results.append((ticket, error))
            return True
        self.results.append((ticket, placements))
        if needs_sync(unit, self._config):
            self.synced = True
        # behind a topic that goes or changes the catalogue is another: what comes next is planned by that
        return self.size < COMMIT_BYTES and not unit.deletes and not unit.alters

    def _append_more(self, unit: Unit) -> list[Placement] | None:
        # The placements of a unit that does nothing but append to topics that are there: this is what nearly all units do,
        # and there is little to check, or nothing where this plan appends already. None for any other unit.
        if unit.puts or unit.creates or unit.requires or unit.deletes or unit.alters or not unit.appends:
            return None
        growing = self.growth
        found: list[tuple[Growth, Append]] = []
        for append in unit.appends:
            growth = growing.get((append.topic, append.partition))
            if growth is None:
                if len(unit.appends) > 1:
                    return None  # nothing may be begun for what may be refused
                growth = self._begin(append)
                if growth is None:
                    return None
            found.append((growth, append))
        if unit.synced:
            self.synced = True
        placements: list[Placement] = []
        for growth, append in found:
            placements.append(growth.add(append))
            self.size += len(append.columns.packed)
        return placements

    def _begin(self, append: Append) -> Growth | None:
        # Begin to append to a partition. None where something is to be said about that.
        log = appendable(self.catalogue, append)
        if log is None:
            return None
        config, state = log.topic.config, log.state
        if config.durability is Durability.FSYNC:
            self.synced = True
        elif config.durability is Durability.INTERVAL:
            self.interval = min(config.interval, self.interval or config.interval)
        # a clock that was put back must not make times go back: the search for a time relies on it
        growth = Growth(log, state.end, max(self.now_ms, state.last_time_ms))
        self.growth[append.topic, append.partition] = growth
        return growth

    def _config(self, name: str) -> TopicConfig | None:
        topic = self.topic(name)
        return None if topic is None else topic.config

    def topic(self, name: str) -> Topic | None:
        """A topic as this plan sees it."""
        return self.created.get(name) or self.catalogue.topics.get(name)

    @property
    def writes(self) -> bool:
        return bool(self.growth or self.puts or self.created or self.altered or self.deleted)

    def _admit(self, ticket: Ticket) -> list[Placement] | None:
        unit = ticket.unit
        for condition in unit.requires:
            # units of one commit apply one behind the other: a condition sees the rows of those before it
            table, key = condition.table, condition.key
            value = self.puts.get((table, key), ...)
            if value is ...:
                value = self.at_hand.find(table, key)
            if value is ... and self.connection is not None:
                value = get_row(self.connection, table, key)
            if value != condition.value:  # an ellipsis: whoever was to write it, in this commit, has failed
                raise ConditionFailed(f"a row of {condition.table} has changed")
        memory = check_unit(unit, self.topic)
        for delete in unit.deletes:
            if (topic := self.topic(delete.topic)) is not None and not topic.memory:
                _refuse_if_damaged(self.catalogue, delete.topic)
            if delete.seen is not None and delete.seen != self._seen(delete.topic):
                raise ConditionFailed(f"{delete.topic} has changed meanwhile")
        for create in unit.creates:
            if self.topic(create.topic) is None:
                self._create(create)
        for alter in unit.alters:
            self._alter(alter)
        placements = None
        if memory:
            self.on_disk[ticket] = [
                self._append(append) if not self._in_memory(append) else None for append in unit.appends
            ]
        else:
            placements = [self._append(append) for append in unit.appends]
        for put in unit.puts:
            value = put.value
            if value is not None:
                if put.placed and placements:
                    value += packed_placements(placements)
                self.size += len(value)
            self.puts[put.table, put.key] = value
            if put.at_start:
                self.kept.add((put.table, put.key))
            else:
                self.kept.discard((put.table, put.key))
        for delete in unit.deletes:
            topic = self.topic(delete.topic)
            if topic is not None and topic not in self.deleted:
                self.deleted.append(topic)
        return placements

    def _seen(self, name: str) -> tuple[int, int] | None:
        # a topic's epoch and the sum of its ends, with all that is in this plan
        topic = self.topic(name)
        if topic is None:
            return None
        ends = 0
        for partition, log in enumerate(topic.logs):
            growth = self.growth.get((name, partition))
            ends += growth.next if growth is not None else log.state.end
        if topic.memory:  # appended when the commit is through
            for ticket in self.on_disk:
                ends += sum(one.columns.count for one in ticket.unit.appends if one.topic == name)
        return topic.epoch, ends

    def _create(self, create: MakeTopic) -> None:
        catalogue, name, config = self.catalogue, create.topic, create.config
        if config.durability is Durability.MEMORY:
            self.created[name] = memory_topic(catalogue, name, config)
            return
        _refuse_if_damaged(catalogue, name)
        slots = catalogue.take_slots(config.partitions)
        self.created[name] = make_topic(name, catalogue.next_epoch(), config, catalogue.next_topic_id(), slots)

    def _alter(self, alter: AlterTopic) -> None:
        topic = self.topic(alter.topic)
        if topic is None:
            raise UnknownTopic
        _refuse_if_damaged(self.catalogue, alter.topic)
        more = alter.config.partitions - len(topic.logs)
        slots = [NO_SLOT] * more if topic.memory else self.catalogue.take_slots(more)
        self.altered[alter.topic] = (alter.config, slots)

    def _in_memory(self, append: Append) -> bool:
        topic = self.topic(append.topic)
        return topic is not None and topic.memory

    def _append(self, append: Append) -> Placement:
        key = (append.topic, append.partition)
        growth = self.growth.get(key)
        if growth is None:
            topic = self.topic(append.topic)
            if topic is None:
                raise UnknownTopic
            log = topic.logs[append.partition]
            state = log.state
            growth = self.growth[key] = Growth(log, state.end, max(self.now_ms, state.last_time_ms))
            config = topic.config
            if config.durability is Durability.INTERVAL:
                self.interval = min(config.interval, self.interval or config.interval)
        self.size += len(append.columns.packed)
        return growth.add(append)


def _refuse_if_damaged(catalogue: Catalogue, topic: str) -> None:
    if catalogue.damage:
        raise StoreDamaged(f"{catalogue.damage[0]}: {topic} cannot be made, changed or deleted. {WAY_ON}")


def check_unit(unit: Unit, topic_of: Callable[[str], Topic | None]) -> bool:
    """Refuse a unit that cannot be applied as a whole; says whether it appends to memory topics."""
    memory = False
    fresh: dict[str, TopicConfig] = {}
    for create in unit.creates:
        if create.config.partitions < 1:
            raise InvalidRequest("a topic has at least one partition")
        if topic_of(create.topic) is None:
            fresh[create.topic] = create.config
    for alter in unit.alters:
        topic = topic_of(alter.topic)
        if topic is None:
            raise UnknownTopic
        if alter.config.partitions < len(topic.logs):
            raise InvalidRequest("partitions never shrink")
        if (alter.config.durability is Durability.MEMORY) != topic.memory:
            raise Unsupported("a topic cannot move between memory and disk")
    for append in unit.appends:
        topic = topic_of(append.topic)
        if topic is not None:
            partitions, in_memory = len(topic.logs), topic.memory
        elif append.topic in fresh:
            config = fresh[append.topic]
            partitions, in_memory = config.partitions, config.durability is Durability.MEMORY
        else:
            raise UnknownTopic
        if not 0 <= append.partition < partitions:
            raise UnknownPartition
        if topic is not None:
            log = topic.logs[append.partition]
            if log.sealed:
                raise StoreDamaged(
                    f"the end of {append.topic}/{append.partition} is damaged: nothing is added. {WAY_ON}"
                )
            if log.state.end > LAST_APPENDED:
                raise Throttled("the partition has used up its offsets")
        memory |= in_memory
    for delete in unit.deletes:
        if topic_of(delete.topic) is None:
            raise UnknownTopic
        if delete.topic in fresh:
            raise InvalidRequest("a unit cannot make and drop the same topic")
    return memory


def unit_bytes(unit: Unit) -> int:
    """About how much a unit writes."""
    size = 0
    for append in unit.appends:
        size += len(append.columns.packed)
    for put in unit.puts:
        size += 64 + (len(put.value) if put.value is not None else 0)
    return size


INLINE_BYTES = 64 << 10
INLINE_UNITS = 64
"""Up to here an unsynced commit is made in the event loop."""


def small(tickets: Sequence[Ticket], catalogue: Catalogue) -> bool:
    """Whether a commit is quicker made here than handed to the thread."""
    if len(tickets) > INLINE_UNITS:
        return False
    size = 0
    for ticket in tickets:
        unit = ticket.unit
        if needs_sync(unit, catalogue.config_of):
            return False
        size += unit_bytes(unit)
    return size <= INLINE_BYTES


SHORT_BYTES = 24 << 10
"""Up to here a commit goes the short way: the journal first, the database later."""


def plain(tickets: Sequence[Ticket], catalogue: Catalogue, at_hand: RowsAtHand) -> bool | None:
    """Whether units have to be synced that do nothing but append a little to topics on disk that are there, and write rows that
    nobody reads before a start; None: they do more.
    """
    if len(tickets) > INLINE_UNITS:
        return None
    size, synced = 0, False
    written: set[RowKey] = set()
    for ticket in tickets:
        unit = ticket.unit
        if unit.creates or unit.alters or unit.deletes or not unit.appends:
            return None
        if unit.puts or unit.requires:
            for condition in unit.requires:
                table, key = condition.table, condition.key
                if (table, key) not in written and at_hand.find(table, key) is ...:
                    return None
            for put in unit.puts:
                if not put.at_start or put.placed:
                    return None
                written.add((put.table, put.key))
                size += len(put.value) if put.value is not None else 0
        synced |= unit.synced is True
        for append in unit.appends:
            log = appendable(catalogue, append)
            if log is None or append.as_read is not None:
                return None
            synced |= log.topic.config.durability is Durability.FSYNC
            size += len(append.columns.packed)
    return synced if size <= SHORT_BYTES else None
