"""Going on with a store that has lost commits: an explicit decision, made once, by a person."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import attrs

from gateway.errors import CorruptChunk, NotAStore, StoreDamaged
from gateway.store.catalogue import Catalogue, Log, row_id
from gateway.store.chunk import decode
from gateway.store.database import MAX_OFFSET, Lock, Mark, StoreFiles, connect, connect_read_only
from gateway.store.reader import commit_number


@attrs.frozen
class DamagedRange:
    """Offsets that cannot be served any more."""

    topic: str
    partition: int
    first: int
    next_offset: int


@attrs.frozen
class Salvage:
    """What was found, and what was given up."""

    last_commit: int
    lost_commits: int
    damaged: Sequence[DamagedRange]


def salvage(path: Path | str, *, accept_loss: bool = False) -> Salvage:
    """Examine a store that nobody serves: which commits it has lost, which chunks are damaged.

    With `accept_loss` the loss of commits is accepted, so that the store can be served again. Damaged chunks stay as
    they are: reading them is refused, everything else is served. Raises NotAStore, StoreInUse, or StoreDamaged if the
    database cannot be read at all.
    """
    files = StoreFiles(Path(path))
    if not files.database.is_file():
        raise NotAStore(f"there is no store at {files.directory}")
    with Lock(files.lock), closing(Mark(files.mark)) as mark:
        try:
            with closing(connect_read_only(files)) as connection:
                number = commit_number(connection)
                catalogue = Catalogue(0)
                catalogue.load(connection)
                damaged = [found for log in catalogue.logs() for found in _damaged(connection, log)]
            lost = max(0, mark.read() - number)
            if lost and accept_loss:
                with closing(connect(files, 1 << 20, writer=True)) as connection:
                    connection.execute("PRAGMA synchronous=FULL")
                    connection.execute("UPDATE meta SET value = ? WHERE name = 'commit'", (number,))
                mark.write(number)
        except sqlite3.DatabaseError as error:
            raise StoreDamaged(f"{files.database}: {error}") from error
    return Salvage(number, lost, damaged)


def _damaged(connection: sqlite3.Connection, log: Log) -> list[DamagedRange]:
    """Check every chunk of a partition, and that they follow each other."""
    found: list[DamagedRange] = []
    topic, partition = log.key
    expected = log.state.start
    key = row_id(log.slot, 0) - 1
    while True:  # a chunk at a time: the transaction stays short
        row = connection.execute(
            "SELECT id, count, data FROM chunks WHERE id > ? AND id < ? ORDER BY id LIMIT 1",
            (key, row_id(log.slot + 1, 0)),
        ).fetchone()
        if row is None:
            return found
        key, count, blob = row
        base = key & MAX_OFFSET
        if base != expected:
            found.append(DamagedRange(topic, partition, min(expected, base), max(expected, base)))
        try:
            decode(blob, topic, partition, base, count)
        except CorruptChunk as error:
            found.append(DamagedRange(topic, partition, error.first, error.next_offset))
        expected = base + count
