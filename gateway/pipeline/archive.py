"""Store to Parquet, exactly once: a second run adds only what is new."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gateway.arrow.schema import COLUMNS, chosen
from gateway.errors import CorruptChunk
from gateway.pipeline.manifest import Archive, ArchiveFile, ArchiveWriter, Gap, checksum
from gateway.pipeline.options import RECORDS_PER_PARTITION, ReadOptions, TopicSelection
from gateway.pipeline.ranges import Damaged, HistoryGone, Range, cut, record_batches, selected
from gateway.pipeline.source import ReadableLog, Source, open_log, shown
from gateway.pipeline.spread import Here, Spread

FILE_SCHEMA = chosen([name for name in COLUMNS if name != "topic"])
"""The topic is said by the directory."""
GROUP_ROWS = 131_072
GROUP_BYTES = 32 << 20
DAY_US = 86_400_000_000
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
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Archived:
    """Add to an archive what a store or a running gateway has and it has not, or has lost.

    Calls `progress` with records done, and in all.

    Unless gaps are accepted it raises HistoryGone if retention removed records that should have come next, and Damaged
    after all else, if some cannot be read.
    """
    spread = spread or Here()
    options = ReadOptions(source, topics or TopicSelection())
    with open_log(source) as reader:
        selected(reader.topics(), options)  # a mistake in what is asked for leaves nothing behind
        with ArchiveWriter(Path(to)) as writer:
            return _add(writer, reader, options, spread, records_per_file, accept_gaps, progress)


@attrs.frozen
class Planned:
    records: int
    ranges: tuple[str, ...]
    gaps: tuple[str, ...]
    """What retention has removed and nobody accepted yet."""


def planned(source: Source, to: Path | str, *, topics: TopicSelection | None = None) -> Planned:
    """Look, and change nothing."""
    options = ReadOptions(source, topics or TopicSelection())
    existing = Archive(Path(to))
    with open_log(source) as reader:
        missing, gaps = missing_in(archived_in(existing), reader, options)
        again = [_range(one) for one in lost_in(existing, reader, options)]
    wanted = [*again, *missing]
    return Planned(sum(one.count for one in wanted), tuple(map(str, wanted)), tuple(map(str, gaps)))


def _add(
    writer: ArchiveWriter,
    reader: ReadableLog,
    options: ReadOptions,
    spread: Spread,
    records_per_file: int,
    accept_gaps: bool,
    progress: Callable[[int, int], None],
) -> Archived:
    source = options.source
    missing, gaps = missing_in(archived_in(writer), reader, options)
    if accept_gaps:
        writer.commit((), accepted=gaps)
    # nothing goes behind a gap that nobody accepted; but all that has none does
    before = {(gap.topic, gap.epoch, gap.partition) for gap in gaps if not accept_gaps}
    missing = [one for one in missing if _place(one) not in before]
    if missing:
        writer.made_from(str(Path(source).resolve()) if isinstance(source, str | Path) else shown(source))
    again = {_range(file): file for file in lost_in(writer, reader, options)}
    tasks = [*again, *cut(missing, records_per_file)]
    total = sum(one.count for one in tasks)
    done = Archived(gaps=tuple(map(str, gaps)))
    stuck: dict[Place, str] = {}
    first = 0
    while first < len(tasks):
        wave = spread.width * WAVES
        work = functools.partial(write_range, source, writer.staging, accept_gaps=accept_gaps)
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
                replaced.append(again[one])
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
    return [
        file
        for file in archive.files()
        if not (archive.directory / file.path).exists()
        and file.start >= stored.get((file.topic, file.epoch, file.partition), file.end)
    ]


def _place(what: Range) -> Place:
    return what.topic, what.epoch, what.partition


def _range(file: ArchiveFile) -> Range:
    return Range(file.topic, file.partition, file.start, file.end, file.epoch)


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


def write_range(source: Source, staging: Path, what: Range, *, accept_gaps: bool = False) -> ArchiveCommit:
    """Write one range into `staging`, a file for each day; up to what is damaged, or, where gaps are accepted, without it."""
    out = _Files(staging, what)
    found: list[Gap] = []
    with open_log(source) as reader:
        rest = what
        while rest.start < rest.end:
            damage: list[CorruptChunk] = []
            for batch in _good(reader, rest, damage):
                out.add(batch)
            out.finish()
            if not damage:
                break
            lost = damage[0]
            end = min(lost.next_offset, what.end)
            found.append(Gap(what.topic, what.epoch, what.partition, lost.first, end, lost.message))
            rest = attrs.evolve(rest, start=damage[0].next_offset if accept_gaps else rest.end)
    return ArchiveCommit(out.made, out.records, tuple(found))


def _good(reader: ReadableLog, what: Range, damage: list[CorruptChunk]) -> Iterator[pa.RecordBatch]:
    at = what.start
    try:
        for batch in record_batches(reader, what, FILE_SCHEMA, rows=GROUP_ROWS, size=GROUP_BYTES):
            yield batch
            at += batch.num_rows
    except Damaged as error:
        chunk = error.__cause__
        if not isinstance(chunk, CorruptChunk):
            raise
        damage.append(chunk)
        # what is good and near it lay in a batch that was never made
        yield from record_batches(reader, attrs.evolve(what, start=at, end=chunk.first), FILE_SCHEMA)


class _Files:
    """Files that are being written, one after the other: each of one day, its records consecutive."""

    def __init__(self, staging: Path, what: Range) -> None:
        self.made: list[ArchiveFile] = []
        self.records = 0
        self._staging, self._what = staging, what
        self._writer: pq.ParquetWriter | None = None
        self._name = self._day = ""
        self._start = self._end = 0

    def add(self, batch: pa.RecordBatch) -> None:
        for day, part in _days(batch):
            if self._writer is None or day != self._day:
                self.finish()
                self._day, self._start = day, part.column("offset")[0].as_py()
                self._name = file_name(self._what.epoch, self._what.partition, self._start)
                self._writer = new_file(self._staging / self._name)
            self._writer.write_batch(part)
            self.records += part.num_rows
            self._end = part.column("offset")[-1].as_py() + 1

    def finish(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        what = self._what
        place = (what.topic, what.epoch, what.partition, self._day, self._start, self._end)
        self.made.append(ArchiveFile(self._name, *place, *sealed(self._staging / self._name)))


def file_name(epoch: int, partition: int, start: int) -> str:
    """A name that is used once: a task that runs twice must not write into its twin's file."""
    return f"e{epoch}-p{partition}-{start:016d}-{uuid4().hex[:8]}.parquet"


def new_file(path: Path) -> pq.ParquetWriter:
    # what repeats is as small without a dictionary, since zstd sees it too, and is written three times as fast
    return pq.ParquetWriter(path, FILE_SCHEMA, compression="zstd", use_dictionary=False)


def sealed(path: Path) -> tuple[int, int]:
    """Bring a finished file to the disk; its size and checksum."""
    _sync(path)
    return path.stat().st_size, checksum(path)


def _days(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    # A batch by days (UTC). Store time never goes back inside a partition, so each day is one stretch.
    days = batch.column("timestamp").cast(pa.int64()).to_numpy() // DAY_US
    edges = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
    for start, stop in itertools.pairwise(edges):
        yield str(np.datetime64(int(days[start]), "D")), batch.slice(start, stop - start)


def _sync(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
