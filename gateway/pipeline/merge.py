"""Compaction of an archive's small files: the same records in fewer files, and at no moment fewer or more of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import pyarrow.parquet as pq

from gateway.errors import StoreDamaged
from gateway.pipeline.archive import GROUP_ROWS, WAVES, NewFile, file_name
from gateway.pipeline.manifest import Archive, ArchiveFile, ArchiveWriter, checksum, together
from gateway.pipeline.shelves import Shelf
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


Stretch = Sequence[ArchiveFile]
"""The files that hold consecutive records between them: one, or one for each directory of the archive's layout."""


def mergeable(directory: Path | str, *, small: int = SMALL, large: int = LARGE, fewest: int = FEWEST) -> Merged:
    groups = list(_groups(Archive.existing(directory), small, large, fewest))
    before = sum(len(stretch) for group in groups for stretch in group)
    after = sum(len({file.part for stretch in group for file in stretch}) for group in groups)
    return Merged(before, after, sum(_records(stretch) for group in groups for stretch in group))


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
    Archive.existing(directory)
    with ArchiveWriter(directory) as writer:
        groups = list(_groups(writer, small, large, fewest))
        if groups:
            writer.claim()
        total = sum(len(stretch) for group in groups for stretch in group)
        done = Merged()
        wave = spread.width * WAVES if groups else 1
        for first in range(0, len(groups), wave):
            work = functools.partial(write_group, writer.shelf)
            taken = groups[first : first + wave]
            files = [file for made in spread(work, taken) for file in made]
            replaced = [file for group in taken for stretch in group for file in stretch]
            writer.commit(files, replaced)
            done = Merged(
                done.before + len(replaced),
                done.after + len(files),
                done.records + sum(file.records for file in files),
            )
            progress(done.before, total)
    return done


def _records(stretch: Stretch) -> int:
    # as far as the manifests say; those of older ones had all their offsets
    if any(file.records < 0 for file in stretch):
        return stretch[0].end - stretch[0].start
    return sum(file.records for file in stretch)


def _groups(archive: Archive, small: int, large: int, fewest: int) -> Iterator[Sequence[Stretch]]:
    # small stretches that follow each other in one partition and day, each group up to `large` bytes
    files, gaps, sparse = archive.files(), archive.accepted(), archive.sparse

    def place(stretch: Stretch) -> tuple[str, int, int, str]:
        file = stretch[0]
        return file.topic, file.epoch, file.partition, file.day

    def size(stretch: Stretch) -> int:
        return sum(file.size for file in stretch)

    def follows(one: ArchiveFile, other: ArchiveFile) -> bool:
        if one.end == other.start or not sparse:
            return one.end == other.start
        # what lies between two files of such a log has no record, or was accepted as lost
        life = one.topic, one.epoch, one.partition
        return not any(
            (gap.topic, gap.epoch, gap.partition) == life and one.end < gap.end and gap.start < other.start
            for gap in gaps
        )

    ordered = sorted(together(files), key=lambda stretch: (*place(stretch), stretch[0].start))
    for _, neighbours in itertools.groupby(ordered, key=place):
        group: list[Stretch] = []
        for stretch in neighbours:
            is_small = size(stretch) < small
            fits = is_small and sum(map(size, group)) + size(stretch) <= large
            if group and not (fits and follows(group[-1][0], stretch[0])):
                if len(group) >= fewest:
                    yield tuple(group)
                group = []
            if is_small:
                group.append(stretch)
        if len(group) >= fewest:
            yield tuple(group)


def write_group(shelf: Shelf, group: Sequence[Stretch]) -> list[ArchiveFile]:
    """Write the records of several stretches into one, in `_staging`."""
    start, end = group[0][0].start, group[-1][0].end
    parts: dict[str, list[ArchiveFile]] = {}
    for file in itertools.chain(*group):
        parts.setdefault(file.part, []).append(file)
    made: list[ArchiveFile] = []
    for part, files in sorted(parts.items()):
        first = files[0]
        with NewFile(shelf, file_name(first.epoch, first.partition, start)) as new:
            for file in files:
                _copy(shelf, file, new)
            size, crc32c = new.finish()
        place = (first.topic, first.epoch, first.partition, first.day, start, end)
        made.append(ArchiveFile(new.name, *place, size, crc32c, part, new.rows))
    rows = sum(file.records for file in made)
    if rows != sum(map(_records, group)):
        raise StoreDamaged(f"{group[0][0]} to {group[-1][0]}: {rows} records were found")
    return made


def _copy(shelf: Shelf, file: ArchiveFile, into: NewFile) -> None:
    try:
        opened = shelf.opened(file.path)
    except OSError:
        opened = None
    # a fresh checksum would hide it from every later audit
    if opened is None or checksum(opened) != file.crc32c:
        raise StoreDamaged(f"{file}: {file.path} is missing or does not have its checksum; audit the archive")
    with opened, pq.ParquetFile(opened) as old:
        for batch in old.iter_batches(GROUP_ROWS):
            into.write(batch)
