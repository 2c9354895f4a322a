"""What a gateway that was killed has left in its journal goes into the database before anybody is told what the store holds.

Whoever opens a store does this, under its lock: the next gateway, or a reader who finds nobody serving it. Importable without
trio.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing

from gateway.errors import StoreDamaged, StoreError, StoreInUse
from gateway.store.catalogue import Catalogue
from gateway.store.database import (
    BUSY_SECONDS,
    WAY_ON,
    Lock,
    Mark,
    StoreFiles,
    connect_read_only,
    meta_number,
)
from gateway.store.journal import JournalFrame, JournalTail, read_rest
from gateway.store.posting import entries_of
from gateway.store.writer import Writer

WRITER_CACHE = 1 << 20
LOOK_AGAIN = 0.002
"""Seconds between looks at a database that a gateway is about to bring up to date."""
ASK_AFTER = 0.2
"""Seconds after which it is asked whether there is such a gateway."""


def load_store(files: StoreFiles) -> tuple[Catalogue, int, Sequence[JournalFrame]]:
    """The catalogue, the last number that was given to a commit, and what the journal has beyond the database. Refuses a store
    that is behind its mark.

    On a read-only connection: one that may write would carry over a damaged write-ahead log when it closes, and with it
    what could still be found in it.
    """
    with closing(connect_read_only(files)) as connection, closing(Mark(files.mark)) as mark:
        try:
            catalogue = Catalogue(meta_number(connection, "boot") + 1)
            number = catalogue.load(connection, meta_number(connection, "commit"))
        except sqlite3.DatabaseError as error:
            raise StoreDamaged(f"{files.database}: {error}. {WAY_ON}") from error
        rest = read_rest(files.journals, number)
        if rest.damage:
            raise StoreDamaged(f"{files.directory}: {rest.damage}. {WAY_ON}")
        number += len(rest.frames)
        if any(log.sealed for log in catalogue.logs()):
            number = max(number, mark.read())  # the last commits may be in what is damaged, which is refused by name
        missing = mark.read() - number
    if missing > 0:
        raise StoreDamaged(
            f"{files.directory} has lost its last {missing} commits (it ends with commit {number}); "
            f"they were acknowledged. To go on without them: gateway store salvage --path {files.directory} --accept-loss"
        )
    return catalogue, max(number, rest.highest), rest.frames


def post_rest(
    files: StoreFiles, writer: Writer, catalogue: Catalogue, frames: Sequence[JournalFrame]
) -> tuple[Catalogue, int]:
    """Write it to the database; the catalogue as it is then."""
    writer.unposted = list(entries_of(frames, catalogue))
    writer.dropped(writer.post(len(writer.unposted), synced=True, number=writer.number))
    catalogue, number, left = load_store(files)
    if left:
        raise StoreDamaged(f"{files.directory}: what the journal holds does not stay in the database. {WAY_ON}")
    return catalogue, number


def recover(files: StoreFiles) -> None:
    """The same for a store that nobody serves, by who has its lock. Raises StoreError."""
    wanted = JournalTail(files.journals).last()
    if not wanted:
        return
    catalogue, number, frames = load_store(files)
    with closing(connect_read_only(files)) as connection:
        if meta_number(connection, "commit") >= wanted:
            return
    with closing(Writer(files, WRITER_CACHE, 0)) as writer:
        writer.number = number
        if frames:
            post_rest(files, writer, catalogue, frames)
        else:  # what is left in the journal nobody was told of: it counts on what the power has taken
            writer.transact(lambda _connection: None, synced=True)


def bring_up_to_date(files: StoreFiles, connection: sqlite3.Connection, tail: JournalTail) -> None:
    """Return when the database has all that the journal had at the call. A gateway that serves the store sees to that within a
    moment; where there is none it is done here. Raises StoreError.
    """
    wanted = tail.last()
    began, pause = time.monotonic(), threading.Event()
    while wanted and meta_number(connection, "commit") < wanted:
        waited = time.monotonic() - began
        if waited > ASK_AFTER:
            try:
                with Lock(files.lock):
                    recover(files)
            except StoreInUse:
                pass
            except (OSError, StoreError) as error:
                raise StoreError(
                    f"{files.directory} was not closed: what it acknowledged last is in its journal, up to commit {wanted}, and "
                    f"cannot be brought into the database here ({error}). A start of its gateway does so"
                ) from error
            else:
                continue
            if waited > BUSY_SECONDS:
                raise StoreError(
                    f"{files.directory}: the gateway that serves it has not brought commit {wanted} from its journal into the "
                    f"database for {BUSY_SECONDS:g} s. Its health says why"
                )
        pause.wait(LOOK_AGAIN)
