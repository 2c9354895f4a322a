"""What the journal holds, put together for the database: small appends of one partition become one chunk there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from gateway.envelope import Run
from gateway.errors import StoreDamaged
from gateway.store.catalogue import Catalogue, Log
from gateway.store.chunk import decode
from gateway.store.cut import concat
from gateway.store.database import MAX_OFFSET, OFFSET_BITS, WAY_ON
from gateway.store.journal import JournalFrame
from gateway.store.rows_at_hand import RowKey, Written, unpack_rows

POST_RECORDS, POST_BYTES = 4096, 256 << 10
"""Bounds of a chunk that is put together: of those that merging makes."""
POST_SPAN = 1000
"""Milliseconds between its records: what has grown too old goes a chunk at a time."""
_OF_LIMIT = 32
"""So many chunks, at least, make up what a topic may keep: beyond that it goes a chunk at a time, too."""
ROWS = (1 << 64) - 1
"""In the place of a chunk's key, which no chunk has: the piece is the rows of the commit, behind its chunks."""


class WrittenChunk(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A chunk of a commit: its log, the run in it and its size."""

    log: Log
    run: Run
    size: int
    number: int = 0
    """Of the commit, if the journal has it and not the database."""
    rows: Written | None = None
    """What the commit wrote beside its chunks, at the last of them, in the same case."""


class Posting(msgspec.Struct, eq=False):
    """Some of them as one chunk of the database."""

    log: Log
    run: Run
    number: int
    journalled: int
    """What they take in the journal."""
    parts: int
    size: int = 0
    """What it takes in the database."""


def postings(entries: Sequence[WrittenChunk]) -> Sequence[Posting]:
    """What to write for them, in an order in which each partition's chunks follow each other."""
    by_log: dict[Log, list[WrittenChunk]] = {}
    for entry in entries:
        by_log.setdefault(entry.log, []).append(entry)
    found: list[Posting] = []
    for log, its in by_log.items():
        most, limit = POST_BYTES, log.topic.config.retention_bytes
        if limit is not None:
            most = min(most, limit // len(log.topic.logs) // _OF_LIMIT)
        first = count = size = 0
        for index, entry in enumerate(its):
            records = entry.run.columns.count
            if index > first and (
                count + records > POST_RECORDS
                or size + entry.size > most
                or entry.run.times[-1] - its[first].run.times[0] > POST_SPAN
            ):
                found.append(_together(log, its[first:index]))
                first, count, size = index, 0, 0
            count += records
            size += entry.size
        found.append(_together(log, its[first:]))
    return found


def rows_of(entries: Sequence[WrittenChunk]) -> dict[RowKey, bytes | None]:
    """The rows that go with them, as the last commit left them."""
    found: dict[RowKey, bytes | None] = {}
    for entry in entries:
        if entry.rows is not None:
            found.update(entry.rows)
    return found


def _together(log: Log, entries: Sequence[WrittenChunk]) -> Posting:
    run = entries[0].run if len(entries) == 1 else concat([entry.run for entry in entries])
    return Posting(log, run, entries[-1].number, sum([entry.size for entry in entries]), len(entries))


def entries_of(
    frames: Sequence[JournalFrame],
    catalogue: Catalogue,
    unfit: Callable[[Log | None, int, int], None] | None = None,
) -> Sequence[WrittenChunk]:
    """What a journal holds beyond the database. Raises StoreDamaged if it does not go on where that ends, or tells `unfit` of
    which partition which offsets are lost.
    """
    logs = {log.slot: log for log in catalogue.logs()}
    ends = {slot: log.state.end for slot, log in logs.items()}
    found: list[WrittenChunk] = []
    for frame in frames:
        before = len(found)
        for key, blob in frame.pieces:
            if key == ROWS:
                if len(found) > before:  # where none of its records go on, its rows say nothing
                    found[-1] = replace(found[-1], rows=unpack_rows(blob))
                continue
            slot, base = key >> OFFSET_BITS, key & MAX_OFFSET
            log = logs.get(slot)
            count = int.from_bytes(blob[40:44], "little")
            if log is None or log.sealed or base != ends[slot]:
                if unfit is not None:
                    unfit(log, base, base + count)
                    continue
                where = f"partition {slot} of the database" if log is None else f"{log.topic.name}/{log.number}"
                raise StoreDamaged(
                    f"commit {frame.number} in the journal has records for {where} at {base}, where it does not end. {WAY_ON}"
                )
            run = decode(blob, log.topic.name, log.number, base, count)
            ends[slot] = run.next_offset
            found.append(WrittenChunk(log, run, len(blob), frame.number))
    return found
