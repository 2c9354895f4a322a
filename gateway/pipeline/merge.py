"""Compaction of an archive's small files: the same records in fewer files, and at no moment fewer or more of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import attrs
import pyarrow.parquet as pq

from gateway.errors import StoreDamaged
from gateway.pipeline.archive import GROUP_ROWS, WAVES, file_name, new_file, sealed
from gateway.pipeline.manifest import Archive, ArchiveFile, ArchiveWriter, checksum
from gateway.pipeline.spread import Here, Spread

SMALL = 32 << 20
"""A file below this many bytes is worth merging with its neighbours."""
LARGE = 128 << 20
"""About how large a merged file gets."""
FEWEST = 2


@attrs.frozen
class Merged:
    before: int = 0
    """Small files that are gone."""
    after: int = 0
    """Files that hold their records now."""
    records: int = 0


Group = tuple[ArchiveFile, ...]


def mergeable(directory: Path | str, *, small: int = SMALL, large: int = LARGE, fewest: int = FEWEST) -> Merged:
    """What a merge would do; nothing is changed."""
    groups = list(_groups(Archive.existing(Path(directory)).files(), small, large, fewest))
    files = [file for group in groups for file in group]
    return Merged(len(files), len(groups), sum(file.end - file.start for file in files))


def merge(
    directory: Path | str,
    *,
    small: int = SMALL,
    large: int = LARGE,
    fewest: int = FEWEST,
    spread: Spread | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Merged:
    """Merge neighbouring small files, where there are at least `fewest` of them. Raises NotAStore, StoreInUse."""
    spread = spread or Here()
    Archive.existing(Path(directory))
    with ArchiveWriter(Path(directory)) as writer:
        groups = list(_groups(writer.files(), small, large, fewest))
        total = sum(len(group) for group in groups)
        done = Merged()
        wave = spread.width * WAVES if groups else 1
        for first in range(0, len(groups), wave):
            work = functools.partial(write_group, writer.directory, writer.staging)
            taken = groups[first : first + wave]
            files = spread(work, taken)
            replaced = [file for group in taken for file in group]
            writer.commit(files, replaced)
            done = Merged(
                done.before + len(replaced),
                done.after + len(files),
                done.records + sum(file.end - file.start for file in files),
            )
            progress(done.before, total)
    return done


def _groups(files: Iterable[ArchiveFile], small: int, large: int, fewest: int) -> Iterator[Group]:
    # small files that follow each other in one partition and day, each group up to `large` bytes
    def place(file: ArchiveFile) -> tuple[str, int, int, str]:
        return file.topic, file.epoch, file.partition, file.day

    ordered = sorted((file for file in files if file.size < small), key=lambda file: (*place(file), file.start))
    for _, neighbours in itertools.groupby(ordered, key=place):
        group: list[ArchiveFile] = []
        for file in neighbours:
            if group and (group[-1].end != file.start or sum(one.size for one in group) + file.size > large):
                if len(group) >= fewest:
                    yield tuple(group)
                group = []
            group.append(file)
        if len(group) >= fewest:
            yield tuple(group)


def write_group(directory: Path, staging: Path, group: Sequence[ArchiveFile]) -> ArchiveFile:
    """Write the records of several files into one, in `staging`."""
    first, last = group[0], group[-1]
    name = file_name(first.epoch, first.partition, first.start)
    rows = 0
    with new_file(staging / name) as out:
        for file in group:
            path = directory / file.path
            if not path.is_file() or checksum(path) != file.crc32c:
                # a fresh checksum would hide it from every later audit
                raise StoreDamaged(f"{file}: {file.path} is missing or does not have its checksum; audit the archive")
            with pq.ParquetFile(path) as old:
                for batch in old.iter_batches(GROUP_ROWS):
                    out.write_batch(batch)
                    rows += batch.num_rows
    if rows != last.end - first.start:
        raise StoreDamaged(f"{first} to {last}: {rows} records were found")
    size, crc32c = sealed(staging / name)
    return ArchiveFile(name, first.topic, first.epoch, first.partition, first.day, first.start, last.end, size, crc32c)
