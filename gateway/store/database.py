"""The database file: where it lies, its tables, how connections to it are set up, who may write it.

One SQLite database in write-ahead mode. A chunk's row is found by one integer, the partition's slot above its base
offset, so that an append touches a single page: with a separate index it would touch two, and the log of a synced
commit would be half as fast. Slots have 20 bits (a million partitions alive at a time), offsets 43 (a partition that
takes 100 000 records a second reaches the end after 2.8 years).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import attrs

from gateway.errors import NotAStore, StoreDamaged, StoreInUse, StoreReadOnly
from gateway.files import open_private, sync

LAYOUT_VERSION = 1
"""The version of the tables' layout. Chunks have one of their own."""
JOURNALLED = 2
"""The same layout, of a store that is served or was not closed: there is a journal beside it, without which it may not be all."""
LAYOUTS = frozenset({LAYOUT_VERSION, JOURNALLED})
PAGE_SIZE = 16384
OFFSET_BITS = 43
"""A chunk's key is one 64-bit integer, slot and offset: a million partitions with 2**43 records each."""
MAX_OFFSET = (1 << OFFSET_BITS) - 1
MAX_SLOT = (1 << (63 - OFFSET_BITS)) - 2
"""One less than fits, so that `slot + 1` is still a valid bound."""
JOURNAL_LIMIT = 64 << 20
"""The write-ahead log is cut back to this after a long reader has made it grow."""
BUSY_SECONDS = 5.0
"""How long SQLite waits for a lock of another process: Spark and tools read the store while it is served."""
CELL_CHECK = "PRAGMA cell_size_check=ON"
"""Without it SQLite takes some pages full of nonsense for good ones, and finds nothing where there is something."""
DAMAGE = frozenset({"SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CORRUPT_VTAB", "SQLITE_CORRUPT_INDEX"})
"""Names of SQLite's errors that mean that the file itself is damaged."""
WAY_ON = (
    "`gateway store check` names all that is damaged; `gateway store salvage --accept-loss` goes on with what is left"
)

TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE topics (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, epoch INTEGER NOT NULL, durability TEXT NOT NULL,
    interval REAL NOT NULL, retention_seconds REAL, retention_bytes INTEGER, schema TEXT NOT NULL
);
-- topic NULL: deleted, its chunks are being removed. start, last_ms and position are those of an empty partition.
-- slack: bytes between its chunks' positions that merging has saved.
CREATE TABLE partitions (
    slot INTEGER PRIMARY KEY, topic INTEGER, partition INTEGER NOT NULL,
    start INTEGER NOT NULL, last_ms INTEGER NOT NULL, position INTEGER NOT NULL, slack INTEGER NOT NULL
);
-- id: slot << BITS | base offset. position: bytes of the chunks before it, ever.
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, count INTEGER NOT NULL, first_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL, position INTEGER NOT NULL, size INTEGER NOT NULL, commit_number INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE TABLE rows (name TEXT, key BLOB, value BLOB NOT NULL, PRIMARY KEY (name, key)) WITHOUT ROWID;
-- for people with the sqlite3 shell
CREATE VIEW log AS
    SELECT topics.name AS topic, partition, chunks.id & MASK AS base, count, first_ms, chunks.last_ms, size
    FROM chunks JOIN partitions ON slot = chunks.id >> BITS JOIN topics ON topics.id = partitions.topic;
INSERT INTO meta VALUES ('layout', LAYOUT), ('boot', 0), ('commit', 0);
"""
for _word, _number in (("BITS", OFFSET_BITS), ("MASK", MAX_OFFSET), ("LAYOUT", LAYOUT_VERSION)):
    TABLES = TABLES.replace(_word, str(_number))


@attrs.frozen
class StoreFiles:
    """The files of a store in its directory."""

    directory: Path

    @property
    def database(self) -> Path:
        """The database; SQLite keeps its `-wal` and `-shm` beside it."""
        return self.directory / "log.sqlite"

    @property
    def lock(self) -> Path:
        return self.directory / "lock"

    @property
    def all(self) -> Sequence[Path]:
        beside = [self.database.with_name(self.database.name + ending) for ending in ("-wal", "-shm")]
        return [self.database, *beside, self.lock, self.mark, self.serving, *self.journals]

    @property
    def journals(self) -> Sequence[Path]:
        """What was acknowledged and is not in the database yet (`gateway.store.journal`)."""
        return [self.directory / "journal-0", self.directory / "journal-1"]

    @property
    def serving(self) -> Path:
        return self.directory / "serving.json"

    @property
    def mark(self) -> Path:
        """The number of the last synced commit, to notice that the database lost one."""
        return self.directory / "committed"


class Lock:
    """Held by the one process that may write a store. The kernel lets go of it when the process dies."""

    def __init__(self, path: Path) -> None:
        self._file = open_private(path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise StoreInUse(f"{path.parent} is served by another process") from None

    def release(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()


class Mark:
    """The commit number that is kept beside the database.

    It is written, unsynced, after each synced commit: so it can only lie behind what the disk has. A database that is
    behind its mark has lost commits that were acknowledged, which SQLite itself cannot tell: it takes a write-ahead log
    that is damaged in the middle for one that ends there.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_private(path)

    def read(self) -> int:
        """The number; 0 if there is none, as after a power cut before the file reached the disk."""
        text = os.pread(self._file, 64, 0).strip(b"\x00 \n")
        return int(text) if text.isdigit() else 0

    def write(self, number: int) -> None:
        os.pwrite(self._file, b"%020d\n" % number, 0)

    def close(self) -> None:
        os.close(self._file)


def create(files: StoreFiles) -> None:
    """Make an empty store unless there is one.

    Under another name first: a crash half-way leaves nothing that looks like a store. What exists is not even opened, as
    closing it would carry over a write-ahead log that nobody has judged yet.
    """
    if files.database.exists():
        return
    fresh = files.database.with_suffix(".new")
    try:
        make_database(fresh)
    except sqlite3.Error as error:
        raise StoreReadOnly(f"a store cannot be made in {files.directory}: {error}") from error
    fresh.rename(files.database)
    sync(files.directory)


def make_database(path: Path) -> None:
    """A database without topics, in the place of a file that may be there."""
    path.unlink(missing_ok=True)
    os.close(open_private(path))  # SQLite takes over its mode for the files beside it
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.execute("PRAGMA synchronous=FULL")
        connection.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")
        connection.execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()


def connect(files: StoreFiles, cache: int, *, writer: bool) -> sqlite3.Connection:
    """A connection of the process that serves the store. Threads take turns with it."""
    try:
        connection = sqlite3.connect(
            files.database,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
        )
        connection.execute(f"PRAGMA cache_size=-{max(cache >> 10, 64)}")
        connection.execute(CELL_CHECK)
        if writer:
            connection.execute("PRAGMA journal_mode=WAL")
            # Checkpoints are ours to time: an automatic one would fall into a write that must not wait for the disk.
            connection.execute("PRAGMA wal_autocheckpoint=0")
            connection.execute(f"PRAGMA journal_size_limit={JOURNAL_LIMIT}")
            connection.execute("PRAGMA secure_delete=OFF")
            connection.execute("PRAGMA temp_store=MEMORY")
        else:
            connection.execute("PRAGMA query_only=ON")
        check_layout(connection, files)
    except sqlite3.DatabaseError as error:
        raise StoreDamaged(f"{files.database}: {error}. {WAY_ON}") from error
    return connection


def connect_read_only(files: StoreFiles, *, checked: bool = True) -> sqlite3.Connection:
    """A connection for another process: it never writes, and works on a live store as on a stopped one. `checked`: it is one of
    this layout.
    """
    if not files.database.is_file():
        raise NotAStore(f"there is no store at {files.directory}")
    address = files.database.absolute().as_uri() + "?mode=ro"
    if not os.access(files.directory, os.W_OK) and not files.database.with_name("log.sqlite-wal").exists():
        address += "&immutable=1"  # a stopped store on read-only media: SQLite cannot make its shared-memory file
    try:
        connection = sqlite3.connect(
            address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute(CELL_CHECK)
        if checked:
            check_layout(connection, files)
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name in DAMAGE and name != "SQLITE_NOTADB":
            raise StoreDamaged(f"{files.database}: {error}. {WAY_ON}") from error
        raise NotAStore(f"{files.database} cannot be read as a store: {error}. If it was one: {WAY_ON}") from error
    return connection


def forget_pages(connection: sqlite3.Connection) -> None:
    """Call this when a statement has met damage: a page that has failed its check counts as checked when it is met again, as
    long as it is in memory.
    """
    connection.execute("PRAGMA shrink_memory")


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """One read transaction for all that is asked within; part of the one that is open, if there is one."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        with suppress(sqlite3.Error):  # SQLite says here again what a statement that met damage has said
            connection.execute("ROLLBACK")


def meta_number(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    if row is None or not isinstance(row[0], int):
        raise StoreDamaged(f"the store has lost its number of the {name}. {WAY_ON}")
    return row[0]


def set_layout(version: int, connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE name = 'layout'", (version,))


def check_layout(connection: sqlite3.Connection, files: StoreFiles) -> None:
    """Refuse what is not a store, or one that a later version has written."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'layout'").fetchone()
    if row is None or row[0] not in LAYOUTS:
        raise NotAStore(f"{files.database} has layout {row and row[0]}, this program knows {JOURNALLED}")
