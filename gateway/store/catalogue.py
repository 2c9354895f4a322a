"""The topics of a store as live objects, and how they are read back from the database.

Loading touches the first and the last chunk of each partition and nothing between, so a restart takes as long with a
million records as with a thousand.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import attrs

from gateway.envelope import Run
from gateway.errors import StoreDamaged, Throttled
from gateway.store.database import (
    DAMAGE,
    MAX_OFFSET,
    MAX_SLOT,
    OFFSET_BITS,
    forget_pages,
    snapshot,
)
from gateway.store.hot import RunQueue
from gateway.store.interface import Durability, PartitionState, TopicConfig, TopicState
from gateway.store.lost import FREE_LIST, NOTHING_LOST, LostRows
from gateway.store.pages import HIGHEST, INDEX, LOWEST, TABLE, TOPIC_INDEX, BadPageError, Pages, Row, fits

T = TypeVar("T")
NO_SLOT = -1
"""What partitions of memory topics have for a slot: the database knows nothing of them."""
EPOCH_BITS = 32
_NAMED = 100
"""So many damaged partitions are named at a start; `store check` names all."""


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
    sealed: bool = False
    """Nothing is added: its end is damaged, so that nobody knows which offset would be next, or its topic's row is."""
    lost_end: bool = False
    """The last offset stands for all that is lost."""
    unposted: list[Run] = attrs.field(factory=list)
    """The last records, as long as they are in the journal and not in the database."""

    @property
    def stored_end(self) -> int:
        """Behind what the database has, and can give."""
        if self.lost_end:
            return self.state.end - 1
        return self.unposted[0].base_offset if self.unposted else self.state.end

    @property
    def key(self) -> tuple[str, int]:
        return self.topic.name, self.number


@attrs.define(eq=False)
class Topic(TopicState):
    id: int
    logs: list[Log]
    memory: bool = attrs.field(init=False)
    """Whether it never touches the disk. It is one or the other for good."""

    def __attrs_post_init__(self) -> None:
        self.memory = self.config.durability is Durability.MEMORY

    def grow(self, slots: list[int]) -> None:
        for slot in slots:
            state = PartitionState()
            self.partitions.append(state)
            self.logs.append(Log(self, len(self.logs), slot, state))


def make_topic(name: str, epoch: int, config: TopicConfig, topic_id: int, slots: list[int]) -> Topic:
    topic = Topic(name, epoch, config, [], topic_id, [])
    topic.grow(slots)
    return topic


def memory_topic(catalogue: Catalogue, name: str, config: TopicConfig) -> Topic:
    """A new, empty topic of which the database knows nothing."""
    return make_topic(name, catalogue.next_epoch(), config, 0, [NO_SLOT] * config.partitions)


class Catalogue:
    """Every topic, and the numbers new ones get."""

    def __init__(self, boot: int) -> None:
        self.topics: dict[str, Topic] = {}
        self.dead: set[int] = set()
        """Slots of deleted topics whose chunks are still there."""
        self.damage: Sequence[str] = ()
        """What is damaged of the tables of topics and partitions, in words: nothing may be made that could be there already."""
        self.lost: LostRows = NOTHING_LOST
        """What damaged pages have taken along of the small tables."""
        self._free_list = ""
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
        self._topic_id += 1
        return self._topic_id

    def take_slots(self, count: int) -> list[int]:
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
        # its chunks are gone
        self._slots.discard(slot)
        self.dead.discard(slot)

    def logs(self) -> Iterator[Log]:
        for topic in self.topics.values():
            yield from topic.logs

    def notes(self) -> Sequence[str]:
        """What people are to be told of its damage."""
        sealed = [
            f"the end of {log.topic.name}/{log.number} is damaged: nothing is added"
            for log in self.logs()
            if log.sealed
        ]
        more = [f"so are those of {len(sealed) - _NAMED} more partitions"] if len(sealed) > _NAMED else []
        topics = [f"{one}: no topic can be made, changed or deleted" for one in self.damage]
        free = [f"{self._free_list}: what needs a new page cannot be stored"] if self._free_list else []
        return [*topics, *free, *sealed[:_NAMED], *more]

    def log(self, topic: str, partition: int) -> Log | None:
        found = self.topics.get(topic)
        return found.logs[partition] if found is not None and 0 <= partition < len(found.logs) else None

    def config_of(self, topic: str) -> TopicConfig | None:
        found = self.topics.get(topic)
        return None if found is None else found.config

    def load(self, connection: sqlite3.Connection, commit: int) -> int:
        """Read all from the database. Returns the number of the last commit there is a trace of, `commit` at least."""
        topics, partitions, self.damage = load(connection)
        self._free_list = _damage_of_free_list(connection)
        for topic in topics:
            self.topics[topic.name] = topic
            self._topic_id = max(self._topic_id, topic.id)
        by_id = {topic.id: topic for topic in topics}
        for row in partitions:
            if row.slot != LOST_SLOT:
                self._slots.add(row.slot)
            self._slot = max(self._slot, row.slot)
            commit = max(commit, row.commit)
            if row.topic is None:
                self.dead.add(row.slot)
                continue
            topic = by_id[row.topic]
            state = PartitionState(row.start, row.end, row.bytes, row.last_ms)
            log = Log(topic, row.number, row.slot, state, row.position, row.slack, row.head_ms, merge_from=row.end)
            log.sealed, log.lost_end = row.sealed, row.lost_end
            topic.partitions.append(state)
            topic.logs.append(log)
        for topic in topics:
            topic.config = attrs.evolve(topic.config, partitions=len(topic.logs))
        return commit


def load(connection: sqlite3.Connection) -> tuple[list[Topic], list[PartitionRow], Sequence[str]]:
    """Topics without partitions; the partitions of all of them, by topic and number; what is damaged of their tables, in words.

    What is lost of these tables is made up for, sealed, so that it can be refused by its name.
    """
    rows, topics_whole = _rows(connection, "topics", _TOPICS)
    partitions, partitions_whole = load_partitions(connection)
    topics = [_topic(*row) for row in rows]
    known = {topic.id for topic in topics}
    damage = [] if topics_whole else ["the table of topics, or the index of their names, is damaged"]
    if not partitions_whole or not {row.topic for row in partitions} - {None} <= known:
        damage.append("the table of partitions is damaged")
    if lost_behind(connection, HIGHEST):
        damage.append("the end of the table of records is damaged")
    if topics_whole and partitions_whole and {row.topic for row in partitions} - {None} == known:
        return topics, partitions, damage
    # the index has the names of topics that their table has lost
    names = {} if topics_whole else {row.values[1]: row.values[0] for row in walk(connection, TOPIC_INDEX)}
    called = Counter(topic.name for topic in topics)
    for topic in topics:
        if (other := names.get(topic.id, topic.name)) != topic.name:
            damage.append(f"topic {topic.name} is {other} in the index of names")
            if called[topic.name] > 1:  # it is what the other one is called
                topic.name = other
    topics += [
        Topic(name, LOST_EPOCH, TopicConfig(), [], number, []) for number, name in names.items() if number not in known
    ]
    known |= names.keys()
    rowless = names.keys() - {number for number, *_rest in rows}
    there: dict[int, set[int]] = {topic.id: set() for topic in topics}
    found: list[PartitionRow] = []
    for row in partitions:
        if row.topic is None or row.topic in known:
            found.append(attrs.evolve(row, sealed=True) if row.topic in rowless else row)
        if row.topic in there:
            there[row.topic].add(row.number)
    found += [
        PartitionRow(LOST_SLOT, topic, number, 0, 1, 0, 0, 0, 0, None, 0, sealed=True, lost_end=True)
        for topic, numbers in there.items()
        for number in set(range(max(numbers, default=0) + 1)) - numbers
    ]
    return topics, sorted(found, key=lambda row: (row.topic or 0, row.number)), damage


def load_topic(connection: sqlite3.Connection, name: str) -> tuple[Topic, list[PartitionRow]] | None:
    """One topic with its partitions; None where it is not whole, or not there: then `load` tells which."""
    try:
        row = connection.execute(f"{_TOPICS} WHERE name = ?", (name,)).fetchone()
        if row is None or not fits("topics", Row(row[0], row)):
            return None
        topic = _topic(*row)
        query = f"{_PARTITIONS} WHERE p.topic = ? ORDER BY p.partition"
        found = [_partition(*one) for one in connection.execute(query, (topic.id,))]
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") not in DAMAGE:
            raise
    except StoreDamaged:
        pass
    else:
        whole = found and [one.number for one in found] == list(range(len(found)))
        return (topic, found) if whole and not _lost_ends(connection, [one.slot for one in found]) else None
    forget_pages(connection)
    return None


LOST_EPOCH = 0
"""Of a topic whose row is lost."""
LOST_SLOT = MAX_SLOT + 1
"""Of a partition whose row is lost: no chunk is there."""

_TOPICS = "SELECT id, name, epoch, durability, interval, retention_seconds, retention_bytes, schema FROM topics"


def _topic(
    number: int,
    name: str,
    epoch: int,
    durability: str,
    interval: float,
    seconds: float | None,
    size: int | None,
    schema: str,
) -> Topic:
    return Topic(name, epoch, TopicConfig(1, Durability(durability), interval, seconds, size, schema), [], number, [])


def _rows(connection: sqlite3.Connection, table: str, query: str) -> tuple[Sequence[Sequence[Any]], bool]:
    """The rows of a table with its key first, as far as they can be read, and whether those are all."""
    if is_whole(connection, table):
        with suppress(sqlite3.OperationalError):  # text that is none
            rows = connection.execute(query).fetchall()
            if all(fits(table, Row(row[0], row)) for row in rows):
                return rows, True
    return [(row.key, *row.values[1:]) for row in walk(connection, table)], False


def is_whole(connection: sqlite3.Connection, table: str) -> bool:
    """Whether SQLite finds nothing wrong with a small table and its index: what it gives without a word may be nonsense."""
    try:
        said = connection.execute(f"PRAGMA integrity_check({table})").fetchall()
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") not in DAMAGE:
            raise
        said = []
    if said == [("ok",)]:
        return True
    forget_pages(connection)
    return False


def walk(connection: sqlite3.Connection, tree: str) -> Sequence[Row]:
    """The rows of a damaged tree that can be read, page by page."""
    with _pages(connection) as pages:
        kinds = INDEX if tree == TOPIC_INDEX else TABLE
        return [row for row in pages.walk(_root(connection, tree), kinds) if isinstance(row, Row) and fits(tree, row)]


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
    sealed: bool = False
    """Whether nothing may be added."""
    lost_end: bool = False
    """Whether the partition's end is damaged: the last offset before `end` stands for all that may have followed."""


_PARTITIONS = """
SELECT p.slot, p.topic, p.partition, p.start, p.last_ms, p.position, p.slack,
       f.id, f.last_ms, f.position, l.id, l.count, l.last_ms, l.position + l.size, l.commit_number
FROM partitions p
LEFT JOIN chunks f ON f.id = (SELECT min(id) FROM chunks WHERE id >= p.slot << 43 AND id < (p.slot + 1) << 43)
LEFT JOIN chunks l ON l.id = (SELECT max(id) FROM chunks WHERE id >= p.slot << 43 AND id < (p.slot + 1) << 43)
"""


def _partition(
    slot: int,
    topic: int | None,
    number: int,
    start: int,
    last_ms: int,
    position: int,
    slack: int,
    first: int | None,
    head_ms: int,
    first_position: int,
    last: int | None,
    count: int,
    late: int,
    total: int,
    commit: int,
) -> PartitionRow:
    if first is None and last is None:
        return PartitionRow(slot, topic, number, start, start, last_ms, 0, position, 0, None, 0)
    if (
        first is None
        or not isinstance(last, int)
        or any(type(value) is not int for value in (head_ms, first_position, count, late, total, commit))
        or not 0 < count <= MAX_OFFSET - (last & MAX_OFFSET)
    ):
        raise StoreDamaged(f"the first or last chunk of slot {slot} is damaged")
    if topic is not None and first & MAX_OFFSET != start:
        raise StoreDamaged(f"the first chunk of slot {slot} is lost")
    end = (last & MAX_OFFSET) + count
    size = total - first_position - slack
    return PartitionRow(slot, topic, number, first & MAX_OFFSET, end, late, size, total, slack, head_ms, commit)


def load_partitions(connection: sqlite3.Connection) -> tuple[list[PartitionRow], bool]:
    """Every partition that their table has, by topic and number; whether it has lost none."""
    query = "SELECT slot, topic, partition, start, last_ms, position, slack FROM partitions"
    known, whole = _rows(connection, "partitions", query)
    found = _all_at_once(connection) if whole else None
    lost = _lost_ends(connection, [slot for slot, *_rest in known])
    if found is None or lost:
        # one of them that lies in a damaged page hides all of them: one by one, the others are there
        found = [_load_one(connection, lost.get(row[0]), *row) for row in known]
    return sorted(found, key=lambda row: (row.topic or 0, row.number)), whole


def _all_at_once(connection: sqlite3.Connection) -> list[PartitionRow] | None:
    every = f"{_PARTITIONS} ORDER BY p.topic, p.partition"
    return _unless_damaged(connection, lambda: [_partition(*row) for row in connection.execute(every)])


def _unless_damaged(connection: sqlite3.Connection, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") not in DAMAGE:
            raise
    except StoreDamaged:
        pass
    forget_pages(connection)
    return None


def _lost_ends(connection: sqlite3.Connection, slots: Sequence[int]) -> dict[int, int]:
    # Where the ends of these partitions lie: behind which key all that there is may be lost. SQLite says nothing of a page whose
    # rows are well-formed and not where they belong, as in a sector that has become zeros.
    found: dict[int, int] = {}
    sure = LOWEST
    with _pages(connection) as pages:
        root = _root(connection, "chunks")
        for slot in sorted(slots):
            if (key := row_id(slot + 1, 0) - 1) > sure:
                lost, until = pages.lost_before(root, key, _BEFORE_ALL)
                if lost is None:
                    sure = until
                else:
                    found[slot] = lost[0]
    return found


def _load_one(
    connection: sqlite3.Connection,
    lost_behind: int | None,
    slot: int,
    topic: int | None,
    number: int,
    start: int,
    last_ms: int,
    position: int,
    slack: int,
) -> PartitionRow:
    low, sealed = row_id(slot + 1, 0) - 1, False
    if lost_behind is None:
        this = f"{_PARTITIONS} WHERE p.slot = ?"
        found = _unless_damaged(connection, lambda: _partition(*connection.execute(this, (slot,)).fetchone()))
        if found is not None:
            return found
    else:
        low, sealed = min(lost_behind, low - 1), True
    end, commit = start, 0
    while low >= row_id(slot, start):
        try:
            last = connection.execute(_LAST, (low, row_id(slot, start))).fetchone()
        except sqlite3.DatabaseError:
            forget_pages(connection)
            low, sealed = min(unreadable(connection, low)[0], low - 1), True
            continue
        if last is not None and all(type(value) is int for value in last):
            key, count, last_ms, commit, total = last
            end = (key & MAX_OFFSET) + count
            if not sealed:  # it is its beginning that is damaged
                return PartitionRow(
                    slot, topic, number, start, end, last_ms, total - position - slack, total, slack, last_ms, commit
                )
        break
    # the record that may have followed stands for all that can no longer be told
    return PartitionRow(slot, topic, number, start, end + 1, last_ms, 0, 0, 0, None, commit, sealed=True, lost_end=True)


_LAST = """
SELECT id, count, last_ms, commit_number, position + size FROM chunks WHERE id <= ? AND id >= ? ORDER BY id DESC LIMIT 1
"""


def unreadable(connection: sqlite3.Connection, key: int) -> tuple[int, int]:
    """The keys (low, high] of the chunks that SQLite cannot read where it has met damage on its way to one of them."""
    with _pages(connection) as pages:
        return pages.lost_around(_root(connection, "chunks"), key)


def lost_behind(connection: sqlite3.Connection, key: int) -> bool:
    """Whether chunks may be lost on the way to the last one up to a key."""
    with _pages(connection) as pages:
        return pages.lost_before(_root(connection, "chunks"), key, _BEFORE_ALL)[0] is not None


def _damage_of_free_list(connection: sqlite3.Connection) -> str:
    with _pages(connection) as pages:
        try:
            pages.free()
        except BadPageError as error:
            return f"{FREE_LIST} is damaged ({error})"
    return ""


@contextmanager
def _pages(connection: sqlite3.Connection) -> Iterator[Pages]:
    (_number, _name, path) = connection.execute("PRAGMA database_list").fetchone()
    with snapshot(connection):
        # while a read transaction is open, no page that it may need is overwritten
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        with Pages(Path(path), live=True) as pages:
            yield pages


def _root(connection: sqlite3.Connection, tree: str) -> int:
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (tree,)).fetchone()
    return int(root)


def row_id(slot: int, offset: int) -> int:
    """The key of the chunk that starts at an offset."""
    return slot << OFFSET_BITS | offset


_BEFORE_ALL = row_id(1, 0) - 1
"""Slots begin at 1: the rows of another table have keys below that."""
