"""What can be read of a store whose database may be damaged, and the names of what cannot.

Apart from `salvage`: this reads a damaged file and never writes, that makes a whole one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import attrs

from gateway.errors import CorruptChunk
from gateway.store.catalogue import row_id
from gateway.store.chunk import decode
from gateway.store.database import MAX_OFFSET, OFFSET_BITS, TABLES
from gateway.store.lost import FREE_LIST, LOST, META, ROWS, LostRange, lost_rows
from gateway.store.pages import INDEX, TABLE, TOPIC_INDEX, BadPageError, Lost, Pages, Row, fits

_CALLED = {
    "meta": META,
    "topics": "the table of topics",
    TOPIC_INDEX: "the index of topic names",
    "partitions": "the table of partitions",
    "chunks": "the table of records",
    "rows": ROWS,
}
_LOST_COLUMNS = 6
_LISTED = 10
"""Lines of what SQLite says that are shown."""


@attrs.frozen
class DamagedRange:
    """Offsets that cannot be served any more; without `next_offset` nobody knows where they end."""

    topic: str
    partition: int
    first: int
    next_offset: int | None


@attrs.define(eq=False)
class Remains:
    """What can be read of a damaged store, without the records, which may be many."""

    pages: Pages
    roots: dict[str, int] = attrs.Factory(dict)
    meta: dict[str, Any] = attrs.Factory(dict)
    topics: dict[int, Sequence[Any]] = attrs.Factory(dict)
    names: dict[int, str] = attrs.Factory(dict)
    """By the index of names, which knows topics that their own table has lost."""
    partitions: dict[int, Sequence[Any]] = attrs.Factory(dict)
    rows: dict[tuple[str, bytes], bytes] = attrs.Factory(dict)
    seen: set[int] = attrs.Factory(set)
    """Pages of all trees."""
    lost: dict[str, list[Lost]] = attrs.Factory(dict)
    """Which pages of which tree are damaged."""
    notes: list[str] = attrs.Factory(list)
    """What is damaged beside ranges of records."""
    damaged: list[DamagedRange] = attrs.Factory(list)
    commit: int = 0
    """The last one there is a trace of."""
    mended: bool = False
    """A table was damaged and was made anew; what it was is kept, and out of date."""
    anything: bool = False
    """Whether there was any row at all."""

    @property
    def broken(self) -> bool:
        """Whether the database itself is damaged, not only records in it."""
        return bool(self.lost or self.notes)

    def load(self) -> None:
        self._find_roots()
        for tree in ("meta", "topics", TOPIC_INDEX, "partitions", "rows"):
            before: Row | None = None
            reasons: list[str] = []
            for row in [*self.walk(tree), None]:
                if isinstance(row, Lost):
                    reasons += [row.reason] if row.reason not in reasons else []
                    continue
                if reasons:
                    gone = _between(before, row) if tree == "rows" else "something"
                    self.notes.append(f"{_CALLED[tree]} has lost {gone}: {', '.join(reasons)}")
                    reasons = []
                if row is not None:
                    self.keep(tree, row)
                before = row
        if not {TOPIC_INDEX, "topics"} & self.lost.keys():
            for number in self.names.keys() ^ self.topics.keys():
                self.notes.append(f"{_CALLED[TOPIC_INDEX]} and {_CALLED['topics']} contradict each other: {number}")
        self._read_lost()
        commit = self.meta.get("commit", 0)
        self.commit = max(self.commit, commit if isinstance(commit, int) else 0)

    def _read_lost(self) -> None:
        # what was written down when damage was met at a start, and accepted by nobody yet
        if LOST not in self.roots:
            return
        self.mended = True
        written = [
            one.values[1:] for one in self.pages.walk(self.roots[LOST], TABLE, self.seen) if isinstance(one, Row)
        ]
        self.notes += lost_rows([row for row in written if len(row) == _LOST_COLUMNS]).texts

    def keep(self, tree: str, row: Row) -> None:
        """Take a row; the first of a kind counts."""
        values = row.values
        match tree:
            case "meta":
                self.meta.setdefault(values[0], values[1])
            case "topics":
                self.topics.setdefault(row.key, values)
            case "partitions":
                self.partitions.setdefault(row.key, values)
            case "rows":
                self.rows.setdefault((values[0], values[1]), values[2])
            case _:
                self.names.setdefault(values[1], values[0])

    def walk(self, tree: str) -> Iterator[Row | Lost]:
        """The rows of a tree, and what is lost between them, which is noted."""
        kinds = TABLE if tree in {"topics", "partitions", "chunks"} else INDEX
        for found in self.pages.walk(self.roots[tree], kinds, self.seen):
            one: Row | Lost = found
            if isinstance(found, Row) and not fits(tree, found):
                one = Lost(self.roots[tree], f"a row of {_CALLED[tree]} is damaged", found.key - 1, found.key)
            self.anything |= one is found and isinstance(one, Row)
            if isinstance(one, Lost):
                self.lost.setdefault(tree, []).append(one)
            yield one

    def name(self, topic: int) -> str:
        """What a topic is called, or was."""
        row = self.topics.get(topic)
        return row[1] if row is not None else self.names.get(topic, f"recovered-{topic}")

    def look_at_chunks(self) -> None:
        ends: dict[int, int] = {}
        for row in self.walk("chunks"):
            if isinstance(row, Row):
                self._look_at(row, ends)
        slots = sorted(self.partitions)
        for lost in self.lost.get("chunks", ()):
            for slot in slots:
                end = ends.get(slot, self.partitions[slot][3])
                if self.partitions[slot][1] is not None and (
                    lost.low < row_id(slot, MAX_OFFSET) and row_id(slot, end) <= lost.high
                ):
                    self._damage(slot, end, None)
        if "partitions" in self.lost:
            self.damaged += self._nowhere()
        self.damaged = list(dict.fromkeys(self.damaged))

    def _nowhere(self) -> Iterator[DamagedRange]:
        # partitions of which nobody knows where their records are
        there: dict[int, set[int]] = {number: set() for number in {*self.topics, *self.names}}
        for _slot, topic, number, *_rest in self.partitions.values():
            if topic is not None:  # else it was deleted
                there.setdefault(topic, set()).add(number)
        for topic, numbers in there.items():
            for missing in sorted(set(range(max([0, *numbers]) + 1)) - numbers):
                yield DamagedRange(self.name(topic), missing, 0, None)

    def _look_at(self, row: Row, ends: dict[int, int]) -> None:
        slot, base = row.key >> OFFSET_BITS, row.key & MAX_OFFSET
        known = self.partitions.get(slot)
        _key, count, first_ms, last_ms, _expires, _position, size, commit, blob = row.values
        self.commit = max(self.commit, commit)
        if known is None:
            if "partitions" not in self.lost:
                note = f"the records behind key {slot << OFFSET_BITS} belong to no partition"
                self.notes += [note] if self.notes[-1:] != [note] else []
            return
        if known[1] is None:
            return  # its topic was deleted
        expected = ends.get(slot, known[3])
        if base != expected:
            self._damage(slot, min(expected, base), max(expected, base))
        ends[slot] = base + count
        try:
            run = decode(blob, "", 0, base, count)
        except CorruptChunk:
            self._damage(slot, base, base + count)
        else:
            if (run.times[0], run.times[-1], len(blob)) != (first_ms, last_ms, size):
                self._damage(slot, base, base + count)

    def _damage(self, slot: int, first: int, next_offset: int | None) -> None:
        row = self.partitions[slot]
        self.damaged.append(DamagedRange(self.name(row[1]), row[2], first, next_offset))

    def _find_roots(self) -> None:
        # by the list of tables; where it is damaged, by where a new store has them
        self.roots = _roots_of_a_new_store()
        wanted = {*self.roots, LOST}
        for found in self.pages.walk(1, TABLE, self.seen):
            if isinstance(found, Lost):
                self.notes.append(f"the list of tables is damaged: {found.reason}")
            elif list(map(type, found.values)) in ([str, str, str, int, str], [str, str, str, int, type(None)]):
                _type, name, _table, root, _sql = found.values
                self.roots.update({name: root} if name in wanted else {})
                wanted.discard(name)
        wanted.discard(LOST)
        if wanted and not self.notes:
            self.notes.append(f"the list of tables does not name {', '.join(sorted(wanted))}")

    def look_at_free_pages(self) -> None:
        """Whether what is free is known, and is not in use. SQLite meets this list when it writes; where a database has a view,
        its own check may pass over it.
        """
        try:
            used = self.pages.free() & self.seen
        except BadPageError as error:
            self.notes.append(f"{FREE_LIST} is damaged: {error}")
        else:
            self.notes += [f"{FREE_LIST} names pages that are in use: {sorted(used)[:_LISTED]}"] if used else []

    def ask_sqlite(self, connection: sqlite3.Connection) -> None:
        """What SQLite finds, if we have found nothing: then it is in what we have not looked at, such as the free list."""
        if self.broken:
            return
        try:
            said = [str(line) for (line,) in connection.execute(f"PRAGMA integrity_check({_LISTED})")]
        except sqlite3.DatabaseError as error:
            said = [str(error)]
        if said != ["ok"]:
            self.notes += [f"SQLite says: {' '.join(line.split())}" for line in said]

    def strays(self) -> Iterator[tuple[str, Row]]:
        """Rows in pages that no tree leads to any more, though nobody has freed them: of the trees that have lost some."""
        try:
            left = set(range(1, self.pages.count + 1)) - self.seen - self.pages.free()
        except BadPageError:
            return  # what was deleted could not be told from what was lost
        for number in sorted(left):
            for row in self.pages.leaf(number):
                # of a table that was made anew once they may be older than what it has lost now
                for tree in self.lost.keys() - {"meta", "rows" if self.mended else ""}:
                    if fits(tree, row):
                        yield tree, row


def _between(before: Row | None, after: Row | None) -> str:
    # which rows of the small tables lay between two that are there
    low, high = ((row.values[0], row.values[1]) if row is not None else None for row in (before, after))
    gone = LostRange(low, high)
    return "something" if gone.all else f"what lay {gone}"


def _roots_of_a_new_store() -> dict[str, int]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES)
        return dict(connection.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage > 0"))
