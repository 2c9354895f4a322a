"""Going on with a store that has lost something: an explicit decision, made once, by a person."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import attrs

from gateway.errors import CorruptChunk, GatewayError, NotAStore, StoreReadOnly
from gateway.files import sync
from gateway.store.catalogue import EPOCH_BITS, Catalogue, Log, row_id
from gateway.store.chunk import decode
from gateway.store.database import (
    MAX_OFFSET,
    OFFSET_BITS,
    Lock,
    Mark,
    StoreFiles,
    connect,
    connect_read_only,
    make_database,
    meta_number,
)
from gateway.store.interface import TopicConfig
from gateway.store.journal import JournalFrame, read_rest
from gateway.store.pages import TABLE, Lost, Pages, Row, fits
from gateway.store.posting import entries_of
from gateway.store.remains import DamagedRange, Remains
from gateway.store.writer import Writer


@attrs.frozen
class Salvage:
    """What was found, and what was given up."""

    last_commit: int
    lost_commits: int
    damaged: Sequence[DamagedRange]
    notes: Sequence[str] = ()
    """What of the database itself is damaged."""
    rebuilt: Path | None = None
    """Where the damaged database is now; what could be read of it has been written into a new one."""
    journalled: int = 0
    """Commits that the next start brings from the journal into the database."""


def salvage(path: Path | str, *, accept_loss: bool = False) -> Salvage:
    """Examine a store that nobody serves: which commits it has lost, which records are damaged, which pages.

    With `accept_loss` the loss is accepted, so that the store can be served again: without the commits that are lost, and
    where the database itself is damaged, with all that can be read of it in a new one. Damaged chunks stay as they are:
    reading them is refused, everything else is served. Raises NotAStore or StoreInUse.
    """
    files = StoreFiles(Path(path))
    if not files.database.is_file():
        raise NotAStore(f"there is no store at {files.directory}")
    with Lock(files.lock), closing(Mark(files.mark)) as mark:
        with Pages(files.database) as pages:
            found = Remains(pages)
            found.load()
            found.look_at_chunks()
            found.look_at_free_pages()
            if not found.anything:
                raise NotAStore(f"nothing of a store can be read in {files.database}")
            _ask_sqlite(found, files)
            rest = read_rest(files.journals, found.commit)
            commit = found.commit + len(rest.frames)
            if "chunks" in found.lost:
                commit = max(commit, mark.read())  # the last ones may be among what is damaged
            lost = max(0, mark.read() - commit)
            if not rest.frames:  # else the database has less
                found.commit = commit
            fresh = _rebuild(files, found) if accept_loss and found.broken else None
        old = _replace(files, fresh) if fresh is not None else None
        journalled = accept_loss and bool(rest.frames or rest.damage)
        if journalled:
            found.damaged += _post(files, rest.frames)
        if journalled or (lost and accept_loss and fresh is None):
            with closing(connect(files, 1 << 20, writer=True)) as connection:
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute("UPDATE meta SET value = ? WHERE name = 'commit'", (commit,))
        if lost and accept_loss:
            mark.write(commit)
        if journalled:
            _put_aside(files)
    # many rows of one page say the same
    notes = list(dict.fromkeys(found.notes + _pages_of_records(found) + ([rest.damage] if rest.damage else [])))
    return Salvage(commit, lost, found.damaged, notes, old, 0 if journalled else len(rest.frames))


def _post(files: StoreFiles, frames: Sequence[JournalFrame]) -> list[DamagedRange]:
    # what the journal holds goes into the database that there is now, as far as it goes on there; returns what does not
    unfit: list[DamagedRange] = []

    def note(log: Log | None, first: int, next_offset: int) -> None:
        if log is not None:
            unfit.append(DamagedRange(log.topic.name, log.number, first, next_offset))

    with closing(connect_read_only(files)) as connection:
        catalogue = Catalogue(meta_number(connection, "boot"))
        catalogue.load(connection, 0)
    with closing(Writer(files, 1 << 20, 0)) as writer:
        writer.unposted = list(entries_of(frames, catalogue, note))
        if writer.unposted:
            writer.dropped(writer.post(len(writer.unposted), synced=True))
    return unfit


def _put_aside(files: StoreFiles) -> None:
    # kept, as the damaged database is: what is behind the damage may be worth something to somebody
    for path in files.journals:
        if path.exists():
            path.rename(_free_name(path))
    sync(files.directory)


def _free_name(path: Path) -> Path:
    return next(
        one for number in range(1, 1 << 20) if not (one := path.with_name(f"{path.name}.damaged-{number}")).exists()
    )


def _pages_of_records(found: Remains) -> list[str]:
    return [f"the table of records: {lost.reason}" for lost in found.lost.get("chunks", ())]


def _ask_sqlite(found: Remains, files: StoreFiles) -> None:
    try:
        with closing(connect_read_only(files)) as connection:
            found.ask_sqlite(connection)
    except GatewayError as error:
        if not found.broken:
            found.notes.append(error.message)


def _rebuild(files: StoreFiles, found: Remains) -> Path:
    # a new database with everything that can be read of the damaged one
    fresh = files.database.with_suffix(".salvaged")
    try:
        make_database(fresh)
        with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
            # if it is interrupted it begins anew: nothing is to be rolled back
            connection.execute("PRAGMA journal_mode=OFF")
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN")
            _fill(connection, found)
            connection.execute("COMMIT")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA journal_mode=WAL")
        sync(fresh)
    except (OSError, sqlite3.Error) as error:
        raise StoreReadOnly(f"a new database cannot be made in {files.directory}: {error}") from error
    return fresh


def _replace(files: StoreFiles, fresh: Path) -> Path:
    # Put the new database in the place of the damaged one, which is kept. At no moment there is none.
    kept = _free_name(files.database)
    os.link(files.database, kept)
    log = files.database.with_name(files.database.name + "-wal")
    if log.exists():
        log.rename(kept.with_name(kept.name + "-wal"))  # it would be carried over into the new one
    files.database.with_name(files.database.name + "-shm").unlink(missing_ok=True)
    fresh.rename(files.database)
    sync(files.directory)
    return kept


def _fill(connection: sqlite3.Connection, found: Remains) -> None:
    for row in found.pages.walk(found.roots["chunks"], TABLE):
        if isinstance(row, Row) and fits("chunks", row):
            _insert_chunk(connection, row)
    for tree, row in found.strays():
        if tree != "chunks":
            found.keep(tree, row)
        elif _was_lost(row, found.lost["chunks"]) and _intact(row):
            _insert_chunk(connection, row)
    slots = [slot for (slot,) in connection.execute("SELECT DISTINCT id >> ? FROM chunks", (OFFSET_BITS,))]
    topics, partitions = _complete(found, slots)
    (number,) = connection.execute("SELECT coalesce(max(commit_number), 0) FROM chunks").fetchone()
    found.commit = max(found.commit, number)
    connection.executemany("INSERT INTO topics VALUES (?,?,?,?,?,?,?,?)", topics)
    for slot, topic, number, start, last_ms, position in partitions:
        slack = _tidy(connection, slot)
        # what is lost before the first chunk is accepted to be
        (first,) = connection.execute(_FIRST, (row_id(slot, 0), row_id(slot + 1, 0))).fetchone()
        values = (slot, topic, number, start if first is None else first & MAX_OFFSET, last_ms, position, slack)
        connection.execute("INSERT INTO partitions VALUES (?,?,?,?,?,?,?)", values)
    connection.executemany("INSERT INTO rows VALUES (?,?,?)", [(*key, value) for key, value in found.rows.items()])
    for name, value in (("boot", _boot(found) + 1), ("commit", found.commit)):
        connection.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))


_FIRST = "SELECT min(id) FROM chunks WHERE id >= ? AND id < ?"


def _insert_chunk(connection: sqlite3.Connection, row: Row) -> None:
    connection.execute("INSERT OR IGNORE INTO chunks VALUES (?,?,?,?,?,?,?,?,?)", (row.key, *row.values[1:]))


def _was_lost(row: Row, stretches: Sequence[Lost]) -> bool:
    return any(lost.low < row.key <= lost.high for lost in stretches)


def _intact(row: Row) -> bool:
    try:
        decode(row.values[8], "", 0, row.key & MAX_OFFSET, row.values[1])
    except CorruptChunk:
        return False
    return True


def _boot(found: Remains) -> int:
    # how often the store was started, at least: no epoch may be given out twice
    known = found.meta.get("boot", 0)
    epochs: list[int] = [row[2] >> EPOCH_BITS for row in found.topics.values()]
    return max([known if isinstance(known, int) else 0, *epochs])


def _tidy(connection: sqlite3.Connection, slot: int) -> int:
    # Remove chunks that lie within others, which can only be left over from before they were merged. Returns the bytes
    # between the positions of the rest.
    expected: int = 0
    size: int = 0
    first: int | None = None
    last = 0
    rows = connection.execute(
        "SELECT id, count, position, size FROM chunks WHERE id >= ? AND id < ? ORDER BY id",
        (row_id(slot, 0), row_id(slot + 1, 0)),
    ).fetchall()
    for key, count, position, length in rows:
        if key & MAX_OFFSET < expected:
            connection.execute("DELETE FROM chunks WHERE id = ?", (key,))
            continue
        expected = (key & MAX_OFFSET) + count
        first = position if first is None else first
        last, size = position + length, size + length
    return 0 if first is None else last - first - size


def _complete(found: Remains, slots: Sequence[int]) -> tuple[list[tuple[object, ...]], list[tuple[int, ...]]]:
    # topics and partitions as they were; what has lost its name gets a new one, and every topic all of its partitions
    boot = _boot(found) + 1
    topics = {number: (number, *row[1:]) for number, row in found.topics.items()}
    partitions = {slot: list(row[1:6]) for slot, row in found.partitions.items()}
    unknown = max([0, *topics, *found.names, *[row[0] or 0 for row in partitions.values()]])
    for slot in slots:
        if slot not in partitions:
            unknown += 1
            partitions[slot] = [unknown, 0, 0, 0, 0]
    needed = {row[0] for row in partitions.values() if row[0] is not None} | set(found.names)
    taken = {str(row[1]) for row in topics.values()}
    for number in sorted(needed - topics.keys()):
        name = found.name(number)
        while name in taken:
            name += "-"
        taken.add(name)
        one = TopicConfig()
        topics[number] = (number, name, boot << EPOCH_BITS | number, one.durability.value, one.interval, None, None, "")
    free = max([0, *partitions])
    for number in topics:
        there = {row[1] for row in partitions.values() if row[0] == number}
        for missing in sorted(set(range(max([0, *there]) + 1)) - there):
            free += 1
            partitions[free] = [number, missing, 0, 0, 0]
    return list(topics.values()), [(slot, *row) for slot, row in sorted(partitions.items())]
