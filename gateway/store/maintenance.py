"""What happens to chunks after they were written: retention drops the oldest, small neighbours are merged, the chunks of
deleted topics are cleared away. Always in small steps between commits, so that none of them waits for long.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

import msgspec

from gateway.envelope import Run
from gateway.errors import CorruptChunk
from gateway.recorder import MERGED, NOTHING_MERGED, NOTHING_TRIMMED, TRIMMED, Recorder
from gateway.store.catalogue import Log, Topic, row_id
from gateway.store.chunk import HEAD, decode
from gateway.store.committer import Job
from gateway.store.cut import concat
from gateway.store.database import MAX_OFFSET
from gateway.store.plan import CHUNK_RECORDS
from gateway.store.rows import numbers
from gateway.store.visible import MERGE_AFTER, Visible
from gateway.store.writer import Writer, chunk_row

TRIM_CHUNKS = 64
TRIM_BYTES = 4 << 20
"""Bounds of one step of removing: SQLite visits every page that it frees, and commits wait meanwhile."""
MERGE_CHUNKS = 2048
MERGE_BYTES = 256 << 10
"""Bounds of one step of merging."""
LOW_WATER = 31 / 32
"""A topic that is too big is cut to this much of its limit, so that the next cut is not due with the next commit."""
HARD_LIMIT = 2
"""A cursor that must not be passed holds retention up to this many times the topic's limits, and no longer."""

RetentionFloor = Callable[[str, int], int | None]
"""The offset up to which a partition may be trimmed, if somebody still needs what follows."""


class Maintenance:
    def __init__(self, visible: Visible, now_ms: Callable[[], int], recorder: Recorder) -> None:
        self.recorder = recorder
        self.floor: RetentionFloor = lambda _topic, _partition: None
        self._visible = visible
        self._now_ms = now_ms
        self._late: set[Log] = set()
        self._held: set[Log] = set()
        """Due, but a cursor holds them; looked at again by the next sweep."""

    def sweep(self) -> bool:
        """Look for records that have grown too old; says whether there is work."""
        now = self._now_ms()
        visible = self._visible
        self._held.clear()
        for topic in list(visible.catalogue.topics.values()):
            seconds = topic.config.retention_seconds
            if topic.memory:
                visible.announce(visible.memory.trim(topic, now))
            elif seconds is not None:
                before = now - int(seconds * 1000)
                self._late.update(log for log in topic.logs if log.head_ms is not None and log.head_ms < before)
            if topic.config.retention_bytes is not None and not topic.memory:
                visible.bounded.add(topic)
        return bool(self._late or visible.bounded or visible.mergeable or visible.catalogue.dead)

    def next_job(self) -> Job | None:
        """The next step, if there is one to take."""
        visible = self._visible
        while self._late:
            log = self._late.pop()
            if log.topic.name in visible.catalogue.topics and log not in self._held:
                return Trim(self, log, self._now_ms())
        while visible.bounded:
            topic = visible.bounded.pop()
            oldest = self._oldest(topic)
            if oldest is not None:
                return Trim(self, oldest, self._now_ms())
        if visible.mergeable:
            return Merge(visible, visible.mergeable.pop(), self.recorder)
        if visible.catalogue.dead:
            return Clear(visible, next(iter(visible.catalogue.dead)))
        return None

    def _oldest(self, topic: Topic) -> Log | None:
        # where a topic that is too big is to be cut
        if excess(topic) <= 0:
            return None
        logs = [log for log in topic.logs if log.head_ms is not None and log not in self._held]
        # the oldest first, whichever partition it is in: a topic's limit is about the topic
        return min(logs, key=lambda log: (log.head_ms or 0, -log.state.bytes), default=None)

    def hold(self, log: Log) -> None:
        """Leave a partition alone until the next sweep: a cursor needs what would be removed."""
        self._held.add(log)

    def trimmed(self, log: Log, start: int, size: int, slack: int, head_ms: int | None) -> None:
        """A step was taken: apply it, and see whether another one is needed."""
        if start == log.state.start:
            self._held.add(log)
            return
        self._visible.trimmed(log, start, size, slack, head_ms)
        seconds = log.topic.config.retention_seconds
        if seconds is not None and head_ms is not None and head_ms < self._now_ms() - int(seconds * 1000):
            self._late.add(log)
        if excess(log.topic) > 0:
            self._visible.bounded.add(log.topic)


def excess(topic: Topic, times: float = 1.0) -> int:
    """By how many bytes a topic is over (a multiple of) its limit."""
    limit = topic.config.retention_bytes
    return 0 if limit is None else sum([log.state.bytes for log in topic.logs]) - int(limit * times)


class Trim(Job):
    """Drops chunks at the start of a partition that are too old or too many."""

    def __init__(self, owner: Maintenance, log: Log, now_ms: int) -> None:
        self._owner = owner
        self._log = log
        # A partition gives in proportion to what it has; otherwise an even load would be trimmed a chunk at a time.
        share = log.state.bytes / max(sum(each.state.bytes for each in log.topic.logs), 1)
        self._excess = excess(log.topic, LOW_WATER) * share if excess(log.topic) > 0 else 0
        self._hard_excess = excess(log.topic, HARD_LIMIT) * share
        seconds = log.topic.config.retention_seconds
        self._before = now_ms - int(seconds * 1000) if seconds is not None else 0
        self._hard_before = now_ms - int(seconds * 1000 * HARD_LIMIT) if seconds is not None else 0
        self._floor = owner.floor(*log.key)
        self._start = log.state.start
        self._gone = self._size = 0
        self._slack = log.slack
        self._head_ms = log.head_ms

    def write(self, writer: Writer) -> None:
        log = self._log
        rows = writer.connection.execute(
            "SELECT id, count, last_ms, position, size FROM chunks WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (row_id(log.slot, 0), row_id(log.slot + 1, 0), TRIM_CHUNKS + 1),
        ).fetchall()
        gone = size = 0
        for row in rows:
            numbers(row)
        for row in rows[:TRIM_CHUNKS]:
            if size >= TRIM_BYTES or not self._due((row[0] & MAX_OFFSET) + row[1], row[2], size):
                break
            size += row[4]
            gone += 1
        if not gone:
            return
        self._gone = gone
        last = rows[gone - 1]
        follower = rows[gone] if gone < len(rows) else None
        self._start = (last[0] & MAX_OFFSET) + last[1]
        position = follower[3] if follower is not None else log.position
        self._size = size
        self._slack = log.position - position - (log.state.bytes - size)
        self._head_ms = follower[2] if follower is not None else None

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM chunks WHERE id >= ? AND id <= ?", (rows[0][0], last[0]))
            connection.execute(
                "UPDATE partitions SET start = ?, last_ms = ?, position = ?, slack = ? WHERE slot = ?",
                (self._start, log.state.last_time_ms, position, self._slack, log.slot),
            )

        writer.transact(work)

    def _due(self, next_offset: int, last_ms: int, size_before: int) -> bool:
        old, big = last_ms < self._before, size_before < self._excess and next_offset < self._log.state.end
        if not (old or big):
            return False
        if self._floor is None or next_offset <= self._floor:
            return True
        # a reader holds it: beyond twice what was promised nobody may fill the disk by not reading
        return last_ms < self._hard_before or (big and size_before < self._hard_excess)

    def apply(self) -> None:
        self._owner.recorder.upkeep(TRIMMED if self._gone else NOTHING_TRIMMED, self._gone, self._size)
        self._owner.trimmed(self._log, self._start, self._size, self._slack, self._head_ms)

    def give_up(self) -> None:
        # leave it to the next sweep
        self._owner.hold(self._log)


class Neighbours(msgspec.Struct, frozen=True, eq=False):
    """Neighbouring chunks that are to be one."""

    runs: Sequence[Run]
    first: int
    last: int
    """Their keys."""
    chunks: int
    end: int
    """The position behind them."""
    size: int
    number: int
    """The last commit that has written one of them."""


class Merge(Job):
    """Turns neighbouring small chunks into one: one record a chunk costs twice the space and scans thirty times slower."""

    def __init__(self, visible: Visible, log: Log, recorder: Recorder) -> None:
        self._visible = visible
        self._recorder = recorder
        self._log = log
        self._merge_from = max(log.merge_from, log.state.start)
        self._hot = self._in_memory()
        self._merged = 0
        self._replaced = self._size = self._saved = 0
        self._slack = log.slack

    def _in_memory(self) -> list[Run]:
        # what of it need not be read
        runs: list[Run] = []
        records = size = 0
        for run in self._log.hot.since(self._merge_from) or ():
            columns = run.columns
            records += columns.count
            size += len(columns.packed) + HEAD.size
            if records > CHUNK_RECORDS or size > MERGE_BYTES:
                break
            runs.append(run)
        return runs

    def write(self, writer: Writer) -> None:
        log = self._log
        found = self._known(writer.connection) or self._collect(writer.connection)
        if found.chunks < 2:
            return
        run, size = concat(found.runs), found.size
        row = chunk_row(log, run, 0, found.number)
        position = found.end - row[6]  # at the end of its stretch, so that the log's own position stands
        row = (*row[:5], position, *row[6:])
        self._replaced, self._size, self._saved = found.chunks, size, size - row[6]
        before = log.position - log.state.bytes - log.slack  # where the first chunk is
        first = position if run.base_offset == log.state.start else before
        self._slack = log.position - first - (log.state.bytes - self._saved)
        # one that is not half full is begun again with the next: merged chunks would stay small for ever otherwise
        full = run.count >= CHUNK_RECORDS // 2 or row[6] >= MERGE_BYTES // 2
        self._merge_from = run.next_offset if full else run.base_offset

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM chunks WHERE id >= ? AND id <= ?", (found.first, found.last))
            connection.execute("INSERT INTO chunks VALUES (?,?,?,?,?,?,?,?,?)", row)
            connection.execute("UPDATE partitions SET slack = ? WHERE slot = ?", (self._slack, log.slot))

        writer.transact(work)

    def _known(self, connection: sqlite3.Connection) -> Neighbours | None:
        # All of it from memory, if the index says that just these records are on disk: to look at each chunk there costs
        # more than all the rest. Some of them may be in one chunk already.
        runs = self._hot
        if len(runs) < 2:
            return None
        first, last = row_id(self._log.slot, runs[0].base_offset), row_id(self._log.slot, runs[-1].base_offset)
        found = connection.execute(
            "SELECT count(*), min(id), max(id), sum(count), max(position + size), sum(size), max(commit_number)"
            " FROM chunks WHERE id >= ? AND id <= ?",
            (first, last),
        ).fetchone()
        chunks, *index, end, size, number = found
        records = runs[-1].next_offset - runs[0].base_offset
        if chunks < 2 or index != [first, last, records] or any(type(value) is not int for value in found):
            return None
        self._merge_from, self._merged = runs[0].base_offset, chunks
        return Neighbours(runs, first, last, chunks, end, size, number)

    def _collect(self, connection: sqlite3.Connection) -> Neighbours:
        log = self._log
        topic, partition = log.key
        runs: list[Run] = []
        ids: list[int] = []
        end = number = records = size = 0
        cursor = connection.execute(
            "SELECT id, count, size, position, commit_number, data FROM chunks WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (row_id(log.slot, self._merge_from), row_id(log.slot + 1, 0), MERGE_CHUNKS),
        )
        for *row, blob in cursor:
            numbers(row)
            key, count, length, before, commit = row
            base = key & MAX_OFFSET
            if (
                records + count > CHUNK_RECORDS
                or size + length > MERGE_BYTES
                or (runs and runs[-1].next_offset != base)
            ):
                if len(runs) > 1:
                    break
                runs, ids, records, size, number = [], [], 0, 0, 0
            self._merged += 1
            try:
                run = decode(blob, topic, partition, base, count)
            except CorruptChunk:
                self._merge_from = base + count  # it stays as it is, for whoever reads it to be told
                break
            if count > CHUNK_RECORDS // 2 or length > MERGE_BYTES // 2:
                self._merge_from = base + count
                if len(runs) > 1:
                    break
                runs, ids, records, size, number = [], [], 0, 0, 0
                continue
            if not runs:
                self._merge_from = base
            end = before + length
            runs.append(run)
            ids.append(key)
            records, size, number = records + count, size + length, max(number, commit)
        cursor.close()
        first, last = (ids[0], ids[-1]) if ids else (0, 0)
        return Neighbours(runs, first, last, len(runs), end, size, number)

    def apply(self) -> None:
        # go on from there the next time
        log = self._log
        self._recorder.upkeep(MERGED if self._replaced else NOTHING_MERGED, self._replaced, self._size)
        log.state.bytes -= self._saved
        log.slack = self._slack
        log.merge_from = max(log.merge_from, self._merge_from)
        log.small = max(0, log.small - max(self._merged, 1))
        if log.small >= MERGE_AFTER and log.topic.name in self._visible.catalogue.topics:
            self._visible.mergeable.add(log)

    def give_up(self) -> None:
        self._log.merge_from = self._log.state.end
        self._log.small = 0


class Clear(Job):
    """Removes chunks of a deleted topic."""

    def __init__(self, visible: Visible, slot: int) -> None:
        self._visible = visible
        self._slot = slot
        self._done = False

    def write(self, writer: Writer) -> None:
        """Remove some of them, or at last the slot."""
        slot = self._slot
        rows = writer.connection.execute(
            "SELECT id, size FROM chunks WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (row_id(slot, 0), row_id(slot + 1, 0), TRIM_CHUNKS),
        ).fetchall()
        size = 0
        last = None
        for key, length in rows:
            numbers((length,))
            if last is not None and size >= TRIM_BYTES:
                break
            last, size = key, size + length
        self._done = last is None

        def work(connection: sqlite3.Connection) -> None:
            if last is None:
                connection.execute("DELETE FROM partitions WHERE slot = ?", (slot,))
            else:
                connection.execute("DELETE FROM chunks WHERE id >= ? AND id <= ?", (row_id(slot, 0), last))

        writer.transact(work)

    def apply(self) -> None:
        # the slot may be used again once nothing is left in it
        if self._done:
            self._visible.catalogue.free_slot(self._slot)

    def give_up(self) -> None:
        # leave it: the next start of the store tries again
        self._visible.catalogue.dead.discard(self._slot)
