"""A store with a damaged small table is served with what can be read of it.

Data flow, at the start, before anything is written:

    the table is read through ── good ──► nothing to do
        │ damaged
        ▼
    its pages, one by one (`pages`): the rows that can be read, and between which of them something is gone
        ▼
    one transaction: the damaged table gets another name and stays as it is; a new one gets the rows;
                     what is gone is written down in the table `lost`

So a crash leaves the one or the other, and `store check` names what is gone until `store salvage --accept-loss` makes a
database without the damaged table and without that list.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import attrs

from gateway.errors import StoreDamaged
from gateway.store.catalogue import EPOCH_BITS, Catalogue
from gateway.store.database import (
    BUSY_SECONDS,
    DAMAGE,
    LAYOUT_VERSION,
    TABLES,
    WAY_ON,
    Mark,
    StoreFiles,
    connect_read_only,
    forget_pages,
    meta_number,
    snapshot,
)
from gateway.store.journal import read_rest
from gateway.store.lost import LOST, META, NOTHING_LOST, LostRange, LostRows, lost_rows
from gateway.store.pages import INDEX, BadPageError, Lost, Pages, Row, fits
from gateway.store.writer import Writer

KEPT = "damaged_"
"""What the name of a table begins with that was damaged and is kept."""
BOOTS_AHEAD = 1 << 16
"""How many starts there may have been that left no trace in any topic."""
_WHOLE = """
SELECT count(*) FROM rows WHERE typeof(name) <> 'text' OR typeof(key) <> 'blob' OR typeof(value) <> 'blob'
"""
_MAKE_LOST = """
CREATE TABLE IF NOT EXISTS lost (
    number INTEGER PRIMARY KEY, low_name TEXT, low_key BLOB, high_name TEXT, high_key BLOB, since INTEGER NOT NULL,
    what TEXT NOT NULL
)
"""


@attrs.frozen
class _Salvaged:
    rows: Sequence[tuple[str, bytes, bytes]]
    gone: Sequence[LostRange]


def mend_rows(files: StoreFiles, writer: Writer) -> LostRows:
    """Make the table of rows whole, if it is not. Returns what is gone of it, now and from earlier times."""
    connection = writer.connection
    since = meta_number(connection, "boot") + 1 << EPOCH_BITS
    if not _is_whole(connection):
        with snapshot(connection):
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            found = _readable(files.database, connection)

        def work(connection: sqlite3.Connection) -> None:
            _set_aside(connection, "rows")
            connection.executemany("INSERT INTO rows VALUES (?,?,?)", found.rows)
            for one in found.gone:
                low, high = one.low or (None, None), one.high or (None, None)
                connection.execute("INSERT INTO lost VALUES (NULL,?,?,?,?,?,'rows')", (*low, *high, since))

        writer.transact(work, synced=True)
    return read_lost(connection)


def mend_meta(files: StoreFiles) -> None:
    """Make the table of the layout and the last commit anew if it cannot be read: all that it says follows from the others.
    Raises StoreDamaged where it does not follow.
    """
    # one that may write would carry over a write-ahead log that nobody has judged yet
    with closing(connect_read_only(files, checked=False)) as connection:
        if _meta_is_whole(connection):
            return
        try:
            ours = _has_our_tables(connection)
        except sqlite3.DatabaseError as error:
            raise StoreDamaged(
                f"{files.database}: page 1 is damaged ({error}), which says where everything else is. {WAY_ON}"
            ) from error
        if not ours:
            return  # if it is no store, whoever opens it next says so
        catalogue = Catalogue(0)
        try:
            number = catalogue.load(connection, 0)
        except sqlite3.DatabaseError as error:
            raise StoreDamaged(f"{files.database}: {error}. {WAY_ON}") from error
    log = files.database.with_name(files.database.name + "-wal")
    if log.exists() and log.stat().st_size:
        # it may end before its time, and without the number of the last commit nobody would know
        raise StoreDamaged(
            f"{files.database}: {META} is damaged, and so may be the write-ahead log, which is not empty. {WAY_ON}"
        )
    if (rest := read_rest(files.journals, number)).frames or rest.damage:
        raise StoreDamaged(f"{files.database}: {META} is damaged, and the journal beside it is not empty. {WAY_ON}")
    with closing(Mark(files.mark)) as mark:
        number = max(number, mark.read())
    boot = max([0, *[topic.epoch >> EPOCH_BITS for topic in catalogue.topics.values()]]) + BOOTS_AHEAD
    with closing(sqlite3.connect(files.database, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        _set_aside(connection, "meta")
        values = [("layout", LAYOUT_VERSION), ("boot", boot), ("commit", number)]
        connection.executemany("INSERT INTO meta VALUES (?,?)", values)
        connection.execute("INSERT INTO lost VALUES (NULL,NULL,NULL,NULL,NULL,0,'meta')")
        connection.execute("COMMIT")


# --- inside ---


def read_lost(connection: sqlite3.Connection) -> LostRows:
    """What was written down."""
    if not _tables(connection, LOST):
        return NOTHING_LOST
    query = "SELECT low_name, low_key, high_name, high_key, since, what FROM lost ORDER BY number"
    return lost_rows(connection.execute(query), WAY_ON)


def _meta_is_whole(connection: sqlite3.Connection) -> bool:
    try:
        found = connection.execute("SELECT name FROM meta WHERE typeof(value) = 'integer'").fetchall()
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") not in DAMAGE:
            raise
        forget_pages(connection)
        return False
    return {name for (name,) in found} >= {"layout", "boot", "commit"}


def _tables(connection: sqlite3.Connection, pattern: str) -> Sequence[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB ?"
    return [name for (name,) in connection.execute(query, (pattern,))]


def _has_our_tables(connection: sqlite3.Connection) -> bool:
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    return all(found.get(name) == sql for name, sql in _statements().items())


def _statements() -> dict[str, str]:
    # by table: how it is made, as the database remembers it
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES)
        return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())


def _is_whole(connection: sqlite3.Connection) -> bool:
    try:
        (strange,) = connection.execute(_WHOLE).fetchone()
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") not in DAMAGE:
            raise
        forget_pages(connection)
        return False
    return not strange


def _set_aside(connection: sqlite3.Connection, table: str) -> None:
    # give a table another name, without reading it, and make an empty one in its place
    names = _tables(connection, f"{KEPT}{table}_*")
    connection.execute(f"ALTER TABLE {table} RENAME TO {KEPT}{table}_{len(names) + 1}")
    connection.execute(_statements()[table])
    connection.execute(_MAKE_LOST)


def _readable(database: Path, connection: sqlite3.Connection) -> _Salvaged:
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'rows'").fetchone()
    # what an earlier damage has left in pages that no tree leads to is out of date
    leftovers = not _tables(connection, f"{KEPT}rows_*")
    with Pages(database, live=True) as pages:
        seen: set[int] = set()
        stretches, holes = _walked(pages, root, seen)
        if holes and leftovers:
            inside = _found_again(pages, seen)
            return _put_together(stretches, holes, inside)
        return _put_together(stretches, holes, [])


Stretch = list[tuple[str, bytes, bytes]]
"""Rows that followed each other."""


def _walked(pages: Pages, root: int, seen: set[int]) -> tuple[Stretch, list[LostRange]]:
    # the rows that the tree leads to, in order, and between which of them something is gone
    rows: Stretch = []
    holes: list[LostRange] = []
    broken = False
    for one in pages.walk(root, INDEX, seen):
        if isinstance(one, Lost) or not fits("rows", one):
            broken = True
            continue
        row = _values(one)
        if rows and row[:2] <= rows[-1][:2]:  # it belongs elsewhere, and so may what follows
            broken = True
            continue
        if broken:
            holes.append(LostRange(rows[-1][:2] if rows else None, row[:2]))
            broken = False
        rows.append(row)
    if broken:
        holes.append(LostRange(rows[-1][:2] if rows else None, None))
    return rows, holes


def _values(row: Row) -> tuple[str, bytes, bytes]:
    name, key, value = row.values
    return name, key, value


def _found_again(pages: Pages, seen: set[int]) -> list[Stretch]:
    # leaves that hung on a page that is gone: nobody has freed them, and nothing leads there
    try:
        free = pages.free()
    except BadPageError:
        return []  # what was deleted could not be told from what was lost
    found: list[Stretch] = []
    for number in range(2, pages.count + 1):
        if number not in seen and number not in free and pages.is_index_leaf(number):
            rows = list(pages.leaf(number))
            if rows and all(fits("rows", row) for row in rows):
                found.append([_values(row) for row in rows])
    return sorted(found)


def _put_together(rows: Stretch, holes: Sequence[LostRange], inside: Sequence[Stretch]) -> _Salvaged:
    # what was found again goes where something is missing; what is still missing lies between that
    found = list(rows)
    gone: list[LostRange] = []
    for hole in holes:
        low = hole.low
        for stretch in inside:
            first, last = stretch[0][:2], stretch[-1][:2]
            if hole.holds(first) and hole.holds(last) and (low is None or low < first):
                gone.append(LostRange(low, first))
                found += stretch
                low = last
        gone.append(LostRange(low, hole.high))
    return _Salvaged(sorted(found), gone)
