"""Store to Parquet, exactly once: a second run adds only what is new."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self
from uuid import uuid4

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from gateway.arrow.schema import COLUMNS, chosen
from gateway.errors import CorruptChunk, InvalidRequest
from gateway.pipeline.layout import MOST_PARTS, ArchiveLayout, divided
from gateway.pipeline.manifest import Archive, ArchiveFile, ArchiveWriter, Gap, checksum
from gateway.pipeline.options import RECORDS_PER_PARTITION, ReadOptions, TopicSelection
from gateway.pipeline.ranges import Damaged, HistoryGone, Range, cut, record_batches, selected
from gateway.pipeline.shelves import Shelf
from gateway.pipeline.source import Source, identified, open_log
from gateway.pipeline.spread import Here, Spread
from gateway.store.reader import ReadableLog

FILE_SCHEMA = chosen([name for name in COLUMNS if name != "topic"])
"""The topic is said by the directory."""
GROUP_ROWS = 131_072
GROUP_BYTES = 32 << 20
Place = tuple[str, int, int]
"""(topic, epoch, partition)"""
WAVES = 2
"""Tasks for each that runs at a time, between two commits."""


@attrs.frozen
class Archived:
    records: int = 0
    files: int = 0
    bytes: int = 0
    gaps: tuple[str, ...] = ()
    """What retention removed before it was archived, and what is damaged."""


def archive(
    source: Source,
    to: Path | str,
    *,
    topics: TopicSelection | None = None,
    spread: Spread | None = None,
    records_per_file: int = RECORDS_PER_PARTITION,
    accept_gaps: bool = False,
    layout: ArchiveLayout | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Archived:
    """Add to an archive what a store or a running gateway has and it has not, or has lost.

    `to` is a directory, or a place in an object store. Calls `progress` with records done, and in all.

    Unless gaps are accepted it raises HistoryGone if retention removed records that should have come next, and Damaged
    after all else, if some cannot be read.
    """
    spread = spread or Here()
    options = ReadOptions(source, topics or TopicSelection())
    with open_log(source) as reader:
        selected(reader.topics(), options)  # a mistake in what is asked for leaves nothing behind
        with ArchiveWriter(to) as writer:
            given = layout or ArchiveLayout()
            given = attrs.evolve(given, by=writer.laid_out(given.by))
            return _add(writer, reader, options, spread, records_per_file, accept_gaps, given, progress)


@attrs.frozen
class Planned:
    records: int
    ranges: tuple[str, ...]
    gaps: tuple[str, ...]
    """What retention has removed and nobody accepted yet."""


def planned(source: Source, to: Path | str, *, topics: TopicSelection | None = None) -> Planned:
    options = ReadOptions(source, topics or TopicSelection())
    existing = Archive(to)
    with open_log(source) as reader:
        missing, gaps = missing_in(archived_in(existing), reader, options)
        again = list(dict.fromkeys(_range(one) for one in lost_in(existing, reader, options)))
    wanted = [*again, *missing]
    return Planned(sum(one.count for one in wanted), tuple(map(str, wanted)), tuple(map(str, gaps)))


def _add(
    writer: ArchiveWriter,
    reader: ReadableLog,
    options: ReadOptions,
    spread: Spread,
    records_per_file: int,
    accept_gaps: bool,
    layout: ArchiveLayout,
    progress: Callable[[int, int], None],
) -> Archived:
    source = options.source
    missing, gaps = missing_in(archived_in(writer), reader, options)
    if accept_gaps:
        writer.commit((), accepted=gaps)
    # nothing goes behind a gap that nobody accepted; but all that has none does
    before = {(gap.topic, gap.epoch, gap.partition) for gap in gaps if not accept_gaps}
    missing = [one for one in missing if _place(one) not in before]
    again = _again(writer, lost_in(writer, reader, options))
    if missing or again:
        writer.claim()
    if missing:
        writer.made_from(identified(source))
    tasks = [*again, *cut(missing, records_per_file)]
    total = sum(one.count for one in tasks)
    done = Archived(gaps=tuple(map(str, gaps)))
    stuck: dict[Place, str] = {}
    first = 0
    while first < len(tasks):
        wave = spread.width * WAVES
        work = functools.partial(write_range, source, writer.shelf, layout, accept_gaps=accept_gaps)
        taken = [one for one in tasks[first : first + wave] if _place(one) not in stuck]
        first += wave
        files: list[ArchiveFile] = []
        replaced: list[ArchiveFile] = []
        damage: list[Gap] = []
        records = 0
        for one, made in zip(taken, spread(work, taken), strict=True):
            if _place(one) in stuck:
                continue  # nothing behind a hole; what was written is removed by the next run
            files += made.files
            records += made.records
            damage += made.damage
            if made.damage and not accept_gaps:
                stuck[_place(one)] = made.damage[0].why
            elif one in again:
                replaced += again[one]
        writer.commit(files, replaced, damage if accept_gaps else ())
        done = Archived(
            done.records + records,
            done.files + len(files),
            done.bytes + sum(file.size for file in files),
            (*done.gaps, *(one.why for one in damage)),
        )
        progress(done.records, total)
    if before:
        lost = "; ".join(map(str, gaps))
        raise HistoryGone(f"{lost}: {gaps[0].why}. All else is archived; --accept-gaps goes on behind them")
    if stuck:
        raise Damaged(f"{'; '.join(stuck.values())}. All else is archived; --accept-gaps goes on behind it")
    return done


def archived_in(archive: Archive) -> Mapping[Place, int]:
    """Up to where each partition is done with."""
    archived: dict[Place, int] = {}
    ends: list[ArchiveFile | Gap] = [*archive.files(), *archive.accepted()]
    for one in ends:
        place = (one.topic, one.epoch, one.partition)
        archived[place] = max(archived.get(place, 0), one.end)
    return archived


def lost_in(archive: Archive, reader: ReadableLog, options: ReadOptions) -> list[ArchiveFile]:
    """Files that are not there any more, and whose records the log still has."""
    stored = {
        (topic.name, topic.epoch, one.number): one.start
        for topic in selected(reader.topics(), options)
        for one in topic.partitions
    }
    there = archive.shelf.files()
    return [
        file
        for file in archive.files()
        if file.path not in there and file.start >= stored.get((file.topic, file.epoch, file.partition), file.end)
    ]


def _place(what: Range) -> Place:
    return what.topic, what.epoch, what.partition


def _range(file: ArchiveFile) -> Range:
    return Range(file.topic, file.partition, file.start, file.end, file.epoch)


def _again(archive: Archive, lost: list[ArchiveFile]) -> dict[Range, list[ArchiveFile]]:
    # what is to be written again, and all that it takes the place of: files that share a range are made together
    found: dict[Range, list[ArchiveFile]] = {_range(file): [] for file in lost}
    for file in archive.files() if found else ():
        if _range(file) in found:
            found[_range(file)].append(file)
    return found


def missing_in(
    archived: Mapping[Place, int], reader: ReadableLog, options: ReadOptions
) -> tuple[list[Range], list[Gap]]:
    missing: list[Range] = []
    gaps: list[Gap] = []
    for topic in selected(reader.topics(), options):
        for partition in topic.partitions:
            done = archived.get((topic.name, topic.epoch, partition.number))
            start = partition.start if done is None else max(done, partition.start)
            if done is not None and done < partition.start:
                gaps.append(Gap(topic.name, topic.epoch, partition.number, done, partition.start))
            if start < partition.end:
                missing.append(Range(topic.name, partition.number, start, partition.end, topic.epoch))
    return missing, gaps


@attrs.frozen
class ArchiveCommit:
    files: list[ArchiveFile]
    records: int
    """How many are in them: not all offsets of a log on Kafka have one."""
    damage: tuple[Gap, ...]
    """What of its range could not be read."""


def write_range(
    source: Source, shelf: Shelf, layout: ArchiveLayout, what: Range, *, accept_gaps: bool = False
) -> ArchiveCommit:
    """Write one range into `_staging`; up to what is damaged, or, where gaps are accepted, without it."""
    found: list[Gap] = []
    with _StretchFiles(shelf, layout, what) as out, open_log(source) as reader:
        for one in readable(reader, what, FILE_SCHEMA, accept_gaps=accept_gaps):
            if isinstance(one, Gap):
                out.finish()
                found.append(one)
            else:
                out.add(one)
        out.finish()
    return ArchiveCommit(out.made, out.records, tuple(found))


def readable(
    reader: ReadableLog, what: Range, schema: pa.Schema, *, accept_gaps: bool, rows: int = GROUP_ROWS
) -> Iterator[pa.RecordBatch | Gap]:
    """What is good of a range, up to what is damaged, which is said; or, where gaps are accepted, without it."""
    rest = what
    while rest.start < rest.end:
        damage: list[CorruptChunk] = []
        yield from _good(reader, rest, schema, rows, damage)
        if not damage:
            return
        lost = damage[0]
        end = min(lost.next_offset, what.end)
        yield Gap(what.topic, what.epoch, what.partition, lost.first, end, lost.message)
        rest = attrs.evolve(rest, start=lost.next_offset if accept_gaps else rest.end)


def _good(
    reader: ReadableLog, what: Range, schema: pa.Schema, rows: int, damage: list[CorruptChunk]
) -> Iterator[pa.RecordBatch]:
    at = what.start
    try:
        for batch in record_batches(reader, what, schema, rows=rows, size=GROUP_BYTES):
            yield batch
            at += batch.num_rows
    except Damaged as error:
        chunk = error.__cause__
        if not isinstance(chunk, CorruptChunk):
            raise
        damage.append(chunk)
        # what is good and near it lay in a batch that was never made
        yield from record_batches(reader, attrs.evolve(what, start=at, end=chunk.first), schema)


class _StretchFiles:
    """Files that are being written: of one stretch of consecutive records at a time, of one day, and by the layout of less; one
    file for it, or one for each directory that the layout's expressions make.
    """

    def __init__(self, shelf: Shelf, layout: ArchiveLayout, what: Range) -> None:
        self.made: list[ArchiveFile] = []
        self.records = 0
        self._shelf, self._layout, self._what = shelf, layout, what
        self._expressions = layout.expressions()
        self._open: dict[str, NewFile] = {}
        self._stretch: tuple[str, int] | None = None
        self._start = self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for one in self._open.values():
            one.close()

    def add(self, batch: pa.RecordBatch) -> None:
        for day, span, stretch in self._layout.stretches(batch):
            if (day, span) != self._stretch:
                self.finish()
                self._stretch, self._start = (day, span), stretch.column("offset")[0].as_py()
            for part, rows in divided(self._expressions, stretch):
                self._file(part).write(rows)
            self.records += stretch.num_rows
            self._end = stretch.column("offset")[-1].as_py() + 1
            if sum(one.size for one in self._open.values()) >= self._layout.roll_size:
                self.finish()
            elif sum(one.waiting for one in self._open.values()) > GROUP_BYTES:
                max(self._open.values(), key=lambda one: one.waiting).write_out()

    def _file(self, part: str) -> NewFile:
        if part not in self._open:
            if len(self._open) >= MOST_PARTS:
                names = " and ".join(self._layout.by)
                raise InvalidRequest(
                    f"{names} have more than {MOST_PARTS} values in {self._what}: that many files are not made"
                )
            name = file_name(self._what.epoch, self._what.partition, self._start)
            self._open[part] = NewFile(self._shelf, name)
        return self._open[part]

    def finish(self) -> None:
        if self._stretch is None:
            return
        what, day = self._what, self._stretch[0]
        for part in list(self._open):
            file = self._open.pop(part)
            size, crc32c = file.finish()
            self.made.append(
                ArchiveFile(
                    file.name,
                    what.topic,
                    what.epoch,
                    what.partition,
                    day,
                    self._start,
                    self._end,
                    size,
                    crc32c,
                    part,
                    file.rows,
                )
            )
        self._stretch = None


def file_name(epoch: int, partition: int, start: int) -> str:
    """A name that is used once: a task that runs twice must not write into its twin's file."""
    return f"e{epoch}-p{partition}-{start:016d}-{uuid4().hex[:8]}.parquet"


class NewFile:
    """A Parquet file that is being written into `_staging`."""

    def __init__(self, shelf: Shelf, name: str) -> None:
        self.name = name
        self.rows = 0
        self.waiting = 0
        """Bytes of rows that are not written yet: a group of rows is not made for each few."""
        self._kept: list[pa.RecordBatch] = []
        self._stack = contextlib.ExitStack()
        path = self._stack.enter_context(shelf.staged(name))
        self._path = path
        self._file = pa.OSFile(str(path), "wb")
        # what repeats is as small without a dictionary, since zstd sees it too, and is written three times as fast
        self._writer = pq.ParquetWriter(self._file, FILE_SCHEMA, compression="zstd", use_dictionary=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        written: int = self._file.tell()
        return written

    def write(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        self._kept.append(rows)
        self.waiting += rows.nbytes
        if self.waiting >= GROUP_BYTES or sum(one.num_rows for one in self._kept) >= GROUP_ROWS:
            self.write_out()

    def write_out(self) -> None:
        if self._kept:
            self._writer.write_table(pa.Table.from_batches(self._kept), row_group_size=GROUP_ROWS)
        self._kept, self.waiting = [], 0

    def finish(self) -> tuple[int, int]:
        """Bring it to where it is to be, for good; its size and checksum."""
        self.write_out()
        self._writer.close()
        self._file.close()
        with pa.memory_map(str(self._path)) as whole:
            size, crc32c = whole.size(), checksum(whole)
        self._stack.close()
        return size, crc32c

    def close(self) -> None:
        """One that was not finished comes to nothing; the next run removes what is left of it."""
        if self._file.closed:
            return
        self._kept = []
        with contextlib.suppress(pa.ArrowException, OSError, ValueError):
            self._writer.close()
            self._file.close()
        with contextlib.suppress(_Abandoned), self._stack:
            raise _Abandoned


class _Abandoned(Exception):
    """A file is not to be had after all."""
