"""Writing to the database: one transaction per plan, with as few steps as it takes.

Each step lets go of the interpreter lock and has to win it back from a busy event loop, so a plan that only appends is a
single statement, which is a transaction of its own.
"""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from gateway.envelope import Run
from gateway.errors import CommitFailed, OutcomeUnknown, StoreDamaged, StoreError, StoreReadOnly
from gateway.files import sync
from gateway.store.catalogue import Log, Topic
from gateway.store.chunk import encode
from gateway.store.database import (
    DAMAGE,
    LAYOUT_VERSION,
    OFFSET_BITS,
    PAGE_SIZE,
    WAY_ON,
    Mark,
    StoreFiles,
    connect,
    forget_pages,
    set_layout,
)
from gateway.store.journal import Journal, Piece
from gateway.store.plan import CommitPlan
from gateway.store.posting import ROWS, Posting, WrittenChunk, postings, rows_of
from gateway.store.rows_at_hand import Written, pack_rows

CHECKPOINT_PAGES = 256
"""The write-ahead log is carried over into the database about every 4 MiB: commits go on beside it, but on the same disk, and
wait there for as long as it takes to put that down.
"""
REST_PAGES = 64
"""So little of it is carried over between two commits, which takes no longer than one of them: then it begins anew."""
_ONE_STATEMENT = 32
"""Chunks that go into one INSERT: each statement has a price of its own."""
_INSERT = [
    ",".join(["INSERT INTO chunks VALUES (?,?,?,?,?,?,?,?,?)"] + ["(?,?,?,?,?,?,?,?,?)"] * (rows - 1))
    for rows in range(_ONE_STATEMENT + 1)
]
_ANCHOR = "SELECT name FROM meta"
"""As long as nobody asks for the rest of its rows, a read transaction is open, and goes along with what we write: to begin and
end one for each commit takes four of its six locks.
"""
_CARRY_OVER = "PRAGMA wal_checkpoint(PASSIVE)"
_LATEST_EXPIRY = slice(32, 40)  # of a chunk's head
_MODES = ("NORMAL", "FULL")
"""SQLite's `synchronous` for commits that need not be on the disk, and for those that do."""
_REFUSED = frozenset({"SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_BUSY", "SQLITE_TOOBIG"})
"""Failures after which nothing of a transaction can be there; after any other one it may turn up again."""
_FLOOR_SHARE = 20
"""On a small volume the floor of free space is a twentieth of it."""
_CHECK_BYTES = 8 << 20
_CHECK_SECONDS = 0.2
"""Free space is looked at this often, and after so much has been written, or sooner where little is left: asking costs as much as
a small commit.
"""
_COPIES = 3
"""What is stored is in the journal, in the write-ahead log and in the database before the first two are used anew."""
PROBE_BYTES = 4 * PAGE_SIZE
MARK_BEHIND = 1000
"""So many commits the mark may be behind those that were synced in the background, while others follow."""

ChunkRow = tuple[int, int, int, int, int, int, int, int, bytes]


def chunk_row(log: Log, run: Run, position: int, number: int) -> ChunkRow:
    blob = encode(run)
    expires = int.from_bytes(blob[_LATEST_EXPIRY], "little", signed=True)
    return (
        log.slot << OFFSET_BITS | run.base_offset,
        run.columns.count,
        run.times[0],
        run.times[-1],
        expires,
        position,
        len(blob),
        number,
        blob,
    )


def counting_floor(floor: int, volume: int) -> int:
    """How much has to stay free on a volume of this size."""
    return min(floor, volume // _FLOOR_SHARE)


class Writer:
    """The one connection that writes. Whoever uses it sees to it that nobody else does at the same time."""

    def __init__(self, files: StoreFiles, cache: int, floor: int) -> None:
        self.connection = connect(files, cache, writer=True)
        self.mark = Mark(files.mark)
        self.number = 0
        """The number of the last commit."""
        self.synced = 0
        """The number of the last commit that is on disk for certain."""
        self.journal: Journal | None = None
        self.unposted: list[WrittenChunk] = []
        """What the journal has and the database has not, of commits that are through: whole ones."""
        self.unposted_bytes = 0
        self._marked = 0
        """What a background sync has last noted in the mark."""
        self._stored = 0
        self._posted = 0
        """The same, on the disk."""
        self._sound = True
        """False from a transaction that failed to the next one: until that has taken its place, it may turn up after a crash."""
        self._direct = 0
        """The last commit that is in the database alone: without it nothing behind it in the journal can be posted."""
        self._files = files
        self._log = files.database.with_name(files.database.name + "-wal")
        self._log_file: int | None = None
        self._database_file: int | None = None
        self._carrier: sqlite3.Connection | None = None
        """Carries over while this connection writes."""
        self._floor = floor
        self._mode = ""
        self.pages = 0
        """About so many have gone to the write-ahead log since it was carried over."""
        self._left = 0
        """So many of those before are not in the database yet: they are being carried over, or a reader holds them back."""
        self._anchor: sqlite3.Cursor | None = None
        self._loose = False
        """No anchor is to hold up who carries over beside commits."""
        self._unchecked = 0
        self._check_after = 0
        """So many bytes may be written before the next look at the free space."""
        self._check_at = 0.0

    # --- transactions ---

    def write(self, plan: CommitPlan, *, short: bool = False) -> tuple[Sequence[WrittenChunk], Sequence[Posting]]:
        """Commit a plan, by the `short` way or with all that the journal holds. Raises CommitFailed if nothing of it is stored,
        OutcomeUnknown if it may be.
        """
        written: list[WrittenChunk] = []
        if not plan.writes:
            return written, ()
        self.check_space(plan.size)
        posted: Sequence[Posting] = ()
        rows: list[ChunkRow] = []
        positions: dict[Log, int] = {}
        if self.unposted and not short:
            posted, rows, positions = self._posting(self.unposted)
        for growth in plan.growth.values():
            position = positions.get(growth.log, growth.log.position)
            for run in growth.runs():
                row = chunk_row(growth.log, run, position, plan.number)
                position += row[6]
                rows.append(row)
                written.append(WrittenChunk(growth.log, run, row[6], plan.number if short else 0))
        if short:
            pieces = [(row[0], row[8]) for row in rows]
            if plan.puts:
                pieces.append((ROWS, pack_rows(plan.puts)))
                written[-1] = replace(written[-1], rows=plan.puts)
            self._to_journal(pieces, plan.number, plan.synced)
            return written, ()
        puts = {**rows_of(self.unposted), **plan.puts} if posted else plan.puts
        only_chunks = rows and not (posted or plan.puts or plan.created or plan.altered or plan.deleted)
        synced = plan.synced or self.must_sync
        if self._mode != _MODES[synced]:
            self._set_mode(synced)
        try:
            # a statement by itself is a transaction: nearly all commits are this, and are spared BEGIN and COMMIT
            if only_chunks and len(rows) <= _ONE_STATEMENT:
                values = rows[0] if len(rows) == 1 else [value for row in rows for value in row]
                self.connection.execute(_INSERT[len(rows)], values)
            else:
                self.connection.execute("BEGIN IMMEDIATE")
                self._write_topics(plan)
                self.connection.executemany(_INSERT[1], rows)
                self._write_rows(puts)
                self._delete_topics(plan)
                # a chunk carries the number of its commit; those of a deleted topic are removed, and their numbers with them
                if not rows or posted or plan.deleted:
                    self._note(plan.number)
                self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self.undo(error) from error
        for row in rows:
            self.pages += 1 + row[6] // PAGE_SIZE
        if puts:
            self.pages += 1 + len(puts) // 8
        self._committed(plan.number, synced)
        self.dropped(posted)
        return written, posted

    def append(self, log: Log, run: Run, synced: bool) -> WrittenChunk:
        """Commit one chunk and nothing else; nothing is in the journal. Raises as `write`."""
        row = chunk_row(log, run, log.position, self.number + 1)
        size = row[6]
        self.check_space(size)
        synced = synced or self.must_sync
        if self._mode != _MODES[synced]:
            self._set_mode(synced)
        try:
            self.connection.execute(_INSERT[1], row)
        except sqlite3.Error as error:
            raise self.undo(error) from error
        self.pages += 1 + size // PAGE_SIZE
        self._committed(self.number + 1, synced)
        if self._anchor is None and not self._loose:
            with suppress(sqlite3.Error):  # it is stored, whatever becomes of that: the next commit takes its own locks
                self._anchor = self.connection.execute(_ANCHOR)
        return WrittenChunk(log, run, size)

    # --- the short way ---

    @property
    def takes_short(self) -> bool:
        """Whether what does nothing but append may go to the journal now."""
        journal = self.journal
        if journal is None or not (journal.usable and self._sound):
            return False
        return journal.position < journal.limit or journal.begin_anew(self._posted)

    @property
    def must_sync(self) -> bool:
        """Whether the database is to be synced with what it gets next, so that the journal can begin anew."""
        return self.journal is not None and self.journal.half_full and self.journal.last > self._posted

    def append_short(self, log: Log, run: Run, synced: bool) -> WrittenChunk:
        """Commit one chunk and nothing else, by the short way. Raises as `write`."""
        blob = encode(run)
        size = len(blob)
        self.check_space(size)
        number = self.number + 1
        self._to_journal(((log.slot << OFFSET_BITS | run.base_offset, blob),), number, synced)
        return WrittenChunk(log, run, size, number)

    def _to_journal(self, pieces: Sequence[Piece], number: int, synced: bool) -> None:
        journal = self.journal
        assert journal is not None
        journal.append(number, self.synced, pieces)
        if synced:
            self._sync_files()
        self.number = number
        if synced:
            self.synced = number
            self.mark.write(number)

    @property
    def stored(self) -> int:
        """Up to this commit the database has everything."""
        return self._stored

    def journalled(self, written: Sequence[WrittenChunk]) -> None:
        """A commit that has gone the short way is through. Not before: what is posted is whole, and readers know of it."""
        self.unposted += written
        for chunk in written:
            self.unposted_bytes += chunk.size

    def post(self, count: int, *, synced: bool, number: int = 0) -> Sequence[Posting]:
        """Write to the database what has been in the journal longest; others may go on to write to that meanwhile. Whoever calls
        this calls `dropped` where nobody else does. `number`: of the last commit, if what the journal has behind these counts no
        more.
        """
        entries = self.unposted[:count]
        posted, rows, _positions = self._posting(entries)
        number = number or entries[-1].number
        try:
            self._set_mode(synced)
            self.connection.execute("BEGIN IMMEDIATE")
            self.connection.executemany(_INSERT[1], rows)
            self._write_rows(rows_of(entries))
            self._note(number)
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self.undo(error) from error
        for row in rows:
            self.pages += 1 + row[6] // PAGE_SIZE
        self._sound = True
        self._stored = number
        if synced:
            self._posted = number
        return posted

    def dropped(self, posted: Sequence[Posting]) -> None:
        """They are in the database: the journal need not keep them."""
        for posting in posted:
            self.unposted_bytes -= posting.journalled
        del self.unposted[: sum([posting.parts for posting in posted])]

    def _posting(self, entries: Sequence[WrittenChunk]) -> tuple[Sequence[Posting], list[ChunkRow], dict[Log, int]]:
        # what to write for them, and where each partition goes on
        positions: dict[Log, int] = {}
        rows: list[ChunkRow] = []
        found = postings(entries)
        for posting in found:
            log = posting.log
            row = chunk_row(log, posting.run, positions.get(log, log.position), posting.number)
            posting.size = row[6]
            positions[log] = row[5] + row[6]
            rows.append(row)
        return found, rows, positions

    def _sync_files(self) -> None:
        # everything that is written, wherever it is
        if self._direct > self._posted:
            self._sync_write_ahead_log()
        if self.journal is not None:
            self.journal.sync()

    def _sync_write_ahead_log(self) -> None:
        stored = self._stored
        try:
            if self._log_file is None:  # SQLite keeps the file as long as this connection is open
                self._log_file = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC)
            os.fdatasync(self._log_file)
        except OSError as error:
            raise OutcomeUnknown(f"the write-ahead log cannot be synced: {error}") from error
        self._posted = max(self._posted, stored)

    def open_journal(self) -> None:
        """From here on plain appends may go the short way. The layout says so already, for programs that know of none."""
        try:
            self._sync_write_ahead_log()  # which opens it: later two threads might
            self.journal = Journal(self._files.journals)
            sync(self._files.directory)
        except OSError as error:
            raise StoreReadOnly(f"a journal cannot be made in {self._files.directory}: {error}") from error

    def retire_journal(self) -> None:
        """The database has everything, and says so. Raises what a commit would raise."""
        journal, self.journal = self.journal, None
        if journal is not None:
            journal.close()
            self.transact(functools.partial(set_layout, LAYOUT_VERSION), synced=True)
            for path in self._files.journals:
                path.unlink(missing_ok=True)

    def _let_go(self) -> None:
        # without this nothing that was written since would be carried over
        anchor, self._anchor = self._anchor, None
        if anchor is not None:
            anchor.close()

    def transact(self, work: Callable[[sqlite3.Connection], None], *, synced: bool = False) -> None:
        """Commit something else than a plan: a step of maintenance, a probe."""
        if self.unposted:
            raise RuntimeError("what the journal holds comes first")
        number = self.number + 1
        self._set_mode(synced)
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            work(self.connection)
            self._note(number)
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self.undo(error) from error
        except StoreError:
            self.rollback()
            raise
        self.pages += 4
        self._committed(number, synced)

    def undo(self, error: sqlite3.Error) -> StoreError:
        """End a failed transaction; returns what to tell."""
        name = getattr(error, "sqlite_errorname", "")
        self._sound = False
        try:
            self._let_go()
            self.rollback()
        except sqlite3.Error as again:
            error.add_note(f"the rollback failed too: {again}")
        if name in DAMAGE:
            forget_pages(self.connection)
            return StoreDamaged(f"{name}: {error}. {WAY_ON}")
        text = f"{name or type(error).__name__}: {error}"
        # only what SQLite refuses before it writes is certain not to be there after a crash
        return CommitFailed(text) if name in _REFUSED else OutcomeUnknown(text)

    def rollback(self) -> None:
        """Give up a transaction that was not SQLite's fault."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def _set_mode(self, synced: bool) -> None:
        # Never OFF: a checkpoint under OFF moves pages that other commits have promised without syncing them.
        mode = _MODES[synced]
        if mode != self._mode:
            self.connection.execute(f"PRAGMA synchronous={mode}")
            self._mode = mode

    def _committed(self, number: int, synced: bool) -> None:
        # in the database, with all that was before it
        self.number = self._stored = self._direct = number
        self._sound = True
        if synced:
            self.synced = self._posted = number
            self.mark.write(number)

    def _note(self, number: int) -> None:
        # keep the number of a commit that leaves no chunk behind to carry it
        self.connection.execute("UPDATE meta SET value = ? WHERE name = 'commit'", (number,))

    # --- the parts of a plan ---

    def _write_topics(self, plan: CommitPlan) -> None:
        for topic in plan.created.values():
            if topic.memory:
                continue
            config = topic.config
            self.connection.execute(
                "INSERT INTO topics VALUES (?,?,?,?,?,?,?,?)",
                (
                    topic.id,
                    topic.name,
                    topic.epoch,
                    config.durability.value,
                    config.interval,
                    config.retention_seconds,
                    config.retention_bytes,
                    config.schema,
                ),
            )
            self._write_partitions(topic, 0, [log.slot for log in topic.logs])
        for name, (config, slots) in plan.altered.items():
            changed = plan.topic(name)
            if changed is None or changed.memory:
                continue
            self.connection.execute(
                "UPDATE topics SET durability=?, interval=?, retention_seconds=?, retention_bytes=?, schema=? WHERE id=?",
                (
                    config.durability.value,
                    config.interval,
                    config.retention_seconds,
                    config.retention_bytes,
                    config.schema,
                    changed.id,
                ),
            )
            self._write_partitions(changed, len(changed.logs), slots)

    def _write_partitions(self, topic: Topic, first: int, slots: list[int]) -> None:
        self.connection.executemany(
            "INSERT INTO partitions VALUES (?,?,?,0,0,0,0)",
            [(slot, topic.id, first + index) for index, slot in enumerate(slots)],
        )

    def _write_rows(self, puts: Written) -> None:
        written = [(name, key, value) for (name, key), value in puts.items() if value is not None]
        removed = [name_and_key for name_and_key, value in puts.items() if value is None]
        if written:
            self.connection.executemany(
                "INSERT INTO rows VALUES (?,?,?) ON CONFLICT DO UPDATE SET value = excluded.value", written
            )
        if removed:
            self.connection.executemany("DELETE FROM rows WHERE name = ? AND key = ?", removed)

    def _delete_topics(self, plan: CommitPlan) -> None:
        for topic in plan.deleted:
            if not topic.memory:
                self.connection.execute("DELETE FROM topics WHERE id = ?", (topic.id,))
                self.connection.execute("UPDATE partitions SET topic = NULL WHERE topic = ?", (topic.id,))

    # --- around them ---

    def check_space(self, size: int) -> None:
        """Refuse before the disk does: with a full disk nothing could be deleted either."""
        self._unchecked += size + PAGE_SIZE  # the least that is written
        if self._unchecked < self._check_after and time.monotonic() < self._check_at:
            return
        usage = shutil.disk_usage(self._files.directory)
        floor = counting_floor(self._floor, usage.total)
        # what was stored before is still on its way into the database, where it takes room once more
        owed = (self.pages + self._left) * PAGE_SIZE + (_COPIES - 1) * self.unposted_bytes
        spare = usage.free - floor - owed - _COPIES * size
        if spare < 0:
            raise StoreReadOnly(f"{usage.free >> 20} MiB free on the disk of the store, the floor is {floor >> 20} MiB")
        self._unchecked = 0
        self._check_after = min(_CHECK_BYTES, spare // _COPIES)
        self._check_at = time.monotonic() + _CHECK_SECONDS

    def probe(self) -> None:
        """Write something that needs room and remove it again. Raises what a commit would raise."""
        self.check_space(0)

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('probe', zeroblob(?))", (PROBE_BYTES,))
            connection.execute("DELETE FROM meta WHERE name = 'probe'")

        self.transact(work, synced=True)

    def sync(self) -> None:
        """Put on disk what unsynced commits have written."""
        self.transact(lambda _connection: None, synced=True)

    def sync_log(self) -> None:
        """The same from another thread, while commits go on: what they have written so far is in the journal or in the
        write-ahead log, so syncing these files is enough, and needs nothing of the connection.
        """
        number = self.number
        if number == self.synced:
            return
        self._sync_files()
        # a synced commit may have overtaken this one meanwhile, and the mark must not go back
        if number > self.synced:
            # As long as commits go on, the frame of each says how far the disk had it. One more call that lets go of the
            # interpreter lock costs as much as the sync.
            if number == self.number or number - self._marked >= MARK_BEHIND:
                self._marked = number
                self.mark.write(number)
            self.synced = number

    def checkpoint(self) -> None:
        """Carry the write-ahead log over into the database as far as readers allow. If that is all of it, the next commit begins
        it anew.
        """
        self.pages = 0
        try:
            self._let_go()
            _busy, there, carried = self.connection.execute(_CARRY_OVER).fetchone()
            self._left = there - carried
        except sqlite3.Error:
            # Nothing is lost: the log is still whole, and the next commit will meet the same disk and tell.
            return

    def prepare_to_carry(self) -> None:
        """Call this where commits are made, and then `carry_over` in another thread."""
        self._let_go()
        self._loose = True
        self._left += self.pages
        self.pages = 0

    def carry_over(self) -> bool:
        """The same while commits go on: what they write meanwhile is left, and the log goes on behind it. False if a reader, or
        the disk, holds back more than that.
        """
        try:
            return self._carry_over()
        finally:
            self._loose = False

    def _carry_over(self) -> bool:
        try:
            if self._carrier is None:
                self._carrier = connect(self._files, 0, writer=False)
                # Closed last: to close any handle of a file lets go of all locks on it that this process has.
                self._database_file = os.open(self._files.database, os.O_RDONLY | os.O_CLOEXEC)
            busy, there, carried = self._carrier.execute(_CARRY_OVER).fetchone()
            self._left = there - carried
            if self._database_file is not None:  # SQLite leaves this to who carries over the end of the log
                os.fdatasync(self._database_file)
        except (sqlite3.Error, StoreError, OSError):
            return False  # as above
        # a commit that is just ending counts as a reader, too
        return not busy and there - carried <= REST_PAGES

    def close(self) -> None:
        """Close the files. SQLite carries over the rest of the write-ahead log if nobody else reads it."""
        if self._log_file is not None:
            os.close(self._log_file)
            self._log_file = None
        self._let_go()
        if self._carrier is not None:
            self._carrier.close()
        self.connection.close()
        if self._database_file is not None:
            os.close(self._database_file)
            self._database_file = None
        if self.journal is not None:  # as it is: the next start goes on with it
            self.journal.close()
        self.mark.close()
