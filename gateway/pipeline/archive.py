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

from gateway.pipeline.endpoint import Endpoint
from gateway.pipeline.manifest import Archive, ArchiveFile, ArchiveWriter, checksum, topic_directory
from gateway.pipeline.options import RECORDS_PER_PARTITION, ReadOptions, Topics
from gateway.pipeline.ranges import HistoryGone, Range, cut, record_batches, selected
from gateway.pipeline.schema import COLUMNS, chosen
from gateway.pipeline.source import Log, Source, open_log
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
    """What a run added."""

    records: int = 0
    files: int = 0
    bytes: int = 0
    gaps: tuple[str, ...] = ()
    """What retention removed before it was archived."""


def archive(
    source: Source,
    to: Path | str,
    *,
    topics: Topics | None = None,
    spread: Spread | None = None,
    records_per_file: int = RECORDS_PER_PARTITION,
    accept_gaps: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Archived:
    """Add to an archive what a store or a running gateway has and it has not, or has lost.

    Calls `progress` with records done, and in all.

    Raises HistoryGone if retention removed records that should have come next, unless gaps are accepted.
    """
    spread = spread or Here()
    options = ReadOptions(source, topics or Topics())
    with ArchiveWriter(Path(to)) as writer, open_log(source) as reader:
        missing, gaps = missing_in(archived_in(writer), reader, options)
        if gaps and not accept_gaps:
            raise HistoryGone(f"{'; '.join(gaps)}: removed before it was archived. Accept gaps to go on behind them")
        if missing:
            writer.made_from(source.url if isinstance(source, Endpoint) else str(Path(source).resolve()))
        again = {_range(file): file for file in lost_in(writer, reader, options)}
        tasks = [*again, *cut(missing, records_per_file)]
        total = sum(one.count for one in tasks)
        done = Archived(gaps=tuple(gaps))
        wave = spread.width * WAVES
        for first in range(0, len(tasks), wave):
            work = functools.partial(write_range, source, writer.staging)
            taken = tasks[first : first + wave]
            files = [file for made in spread(work, taken) for file in made]
            writer.commit(files, [again[one] for one in taken if one in again])
            done = Archived(
                done.records + sum(file.end - file.start for file in files),
                done.files + len(files),
                done.bytes + sum(file.size for file in files),
                done.gaps,
            )
            progress(done.records, total)
    return done


def archived_in(archive: Archive) -> Mapping[Place, int]:
    """Up to where an archive has each partition."""
    archived: dict[Place, int] = {}
    for file in archive.files():
        place = (file.topic, file.epoch, file.partition)
        archived[place] = max(archived.get(place, 0), file.end)
    return archived


def lost_in(archive: Archive, reader: Log, options: ReadOptions) -> list[ArchiveFile]:
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


def _range(file: ArchiveFile) -> Range:
    return Range(file.topic, file.partition, file.start, file.end, file.epoch)


def missing_in(archived: Mapping[Place, int], reader: Log, options: ReadOptions) -> tuple[list[Range], list[str]]:
    """What is to be added, and what no longer can be."""
    missing: list[Range] = []
    gaps: list[str] = []
    for topic in selected(reader.topics(), options):
        topic_directory(topic.name)  # refuse a name that is too long before anything is written
        for partition in topic.partitions:
            done = archived.get((topic.name, topic.epoch, partition.number))
            start = partition.start if done is None else max(done, partition.start)
            if done is not None and done < partition.start:
                gaps.append(f"{topic.name}/{partition.number} [{done}, {partition.start})")
            if start < partition.end:
                missing.append(Range(topic.name, partition.number, start, partition.end, topic.epoch))
    return missing, gaps


def write_range(source: Source, staging: Path, what: Range) -> list[ArchiveFile]:
    """Write one range into `staging`, a file for each day."""
    made: list[ArchiveFile] = []
    writer: pq.ParquetWriter | None = None
    day, start, end, name = "", 0, 0, ""

    def finish() -> None:
        if writer is not None:
            writer.close()
            size, crc32c = sealed(staging / name)
            made.append(ArchiveFile(name, what.topic, what.epoch, what.partition, day, start, end, size, crc32c))

    with open_log(source) as reader:
        for batch in record_batches(reader, what, FILE_SCHEMA, rows=GROUP_ROWS, size=GROUP_BYTES):
            for part_day, part in _days(batch):
                if part_day != day:
                    finish()
                    day, start = part_day, part.column("offset")[0].as_py()
                    name = file_name(what.epoch, what.partition, start)
                    writer = new_file(staging / name)
                assert writer is not None
                writer.write_batch(part)
                end = part.column("offset")[-1].as_py() + 1
    finish()
    return made


def file_name(epoch: int, partition: int, start: int) -> str:
    """A name that is used once: a task that runs twice must not write into its twin's file."""
    return f"e{epoch}-p{partition}-{start:016d}-{uuid4().hex[:8]}.parquet"


def new_file(path: Path) -> pq.ParquetWriter:
    """Begin a file of the archive."""
    # what repeats is as small without a dictionary, since zstd sees it too, and is written three times as fast
    return pq.ParquetWriter(path, FILE_SCHEMA, compression="zstd", use_dictionary=False)


def sealed(path: Path) -> tuple[int, int]:
    """Bring a finished file to the disk; its size and checksum."""
    _sync(path)
    return path.stat().st_size, checksum(path)


def _days(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """A batch by days (UTC). Store time never goes back inside a partition, so each day is one stretch."""
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
