"""Whether an archive holds what the store holds: compared record by record with the store itself, not with a manifest."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.arrow.columns import batches
from gateway.pipeline.archive import FILE_SCHEMA
from gateway.pipeline.layout import DAY_US
from gateway.pipeline.manifest import Archive, ArchiveFile, Gap, checksum, together
from gateway.pipeline.options import ReadOptions, TopicSelection
from gateway.pipeline.ranges import Range, records, selected
from gateway.pipeline.shelves import Shelf
from gateway.pipeline.source import Source, open_log
from gateway.pipeline.spread import Here, Spread
from gateway.store.reader import ReadableLog, StoredTopic


@attrs.frozen
class Audited:
    """What an audit found. Without findings stored equals archived."""

    compared: int
    """Records that were compared with the store."""
    archived: int
    """Records in the archive; those that retention has removed from the store are only checked by checksum."""
    routes: Mapping[tuple[str, int, str], int]
    """(topic, partition, route) -> records in the archive."""
    findings: tuple[str, ...]
    accepted: tuple[str, ...] = ()
    """Gaps that were accepted when it was archived: no findings, and not there all the same."""


@attrs.frozen
class Look:
    """The files of one stretch, mostly one, and which of its offsets the store still has: [start, its end)."""

    files: tuple[ArchiveFile, ...]
    start: int | None

    @property
    def file(self) -> ArchiveFile:
        return self.files[0]


@attrs.frozen
class Seen:
    """What was found in one stretch."""

    compared: int
    rows: int
    routes: Mapping[str, int]
    findings: tuple[str, ...]


def audit(
    source: Source, directory: Path | str, *, topics: TopicSelection | None = None, spread: Spread | None = None
) -> Audited:
    """Compare. Raises NotAStore where there is no store or no archive."""
    spread = spread or Here()
    options = ReadOptions(source, topics or TopicSelection())
    archive = Archive.existing(directory)
    # the archive first: what is appended meanwhile is then missing in it, never too much
    stretches = together([file for file in archive.named() if options.topics.among([file.topic])])
    files = [stretch[0] for stretch in stretches]
    accepted = [gap for gap in archive.accepted() if options.topics.among([gap.topic])]
    with open_log(source) as reader:
        stored = {topic.name: topic for topic in selected(reader.topics(), options)}
        covered = [one for topic in stored.values() for one in _coverage(topic, files, accepted, reader)]
    findings = [f"gap: the manifest {name} is missing, and what it named" for name in archive.lost()]
    findings += [f"unlisted file {name}: readers of the directory would see it" for name in archive.unlisted()]
    findings += covered
    looks = [Look(tuple(one), _compared_from(stored.get(one[0].topic), one[0])) for one in stretches]
    routes: Counter[tuple[str, int, str]] = Counter()
    compared = rows = 0
    for file, seen in zip(files, spread(functools.partial(look_at, source, archive.shelf), looks), strict=True):
        findings += seen.findings
        compared += seen.compared
        rows += seen.rows
        for route, count in seen.routes.items():
            routes[file.topic, file.partition, route] += count
    return Audited(compared, rows, routes, tuple(findings), tuple(f"{gap}: {gap.why}" for gap in accepted))


def _compared_from(topic: StoredTopic | None, file: ArchiveFile) -> int | None:
    # the first offset of a file that the store has too
    if topic is None or topic.epoch != file.epoch or file.partition >= len(topic.partitions):
        return None
    return max(file.start, topic.partitions[file.partition].start)


def _coverage(
    topic: StoredTopic, files: Sequence[ArchiveFile], accepted: Sequence[Gap], reader: ReadableLog
) -> list[str]:
    # every gap that nobody accepted, and every overlap, of what a topic's files cover
    findings: list[str] = []
    for partition in topic.partitions:
        place = f"{topic.name}/{partition.number}"

        def own(
            all_of_them: Sequence[ArchiveFile] | Sequence[Gap], number: int = partition.number
        ) -> list[tuple[int, int]]:
            return sorted((one.start, one.end) for one in all_of_them if _is_of(topic, one) and one.partition == number)

        covered, let_go = own(files), own(accepted)
        last = partition.start if not covered else min(partition.start, covered[0][0])
        gaps: list[tuple[int, int]] = []
        for start, end in covered:
            if start > last:
                gaps.append((last, start))
            elif start < last:
                findings.append(f"duplicate: {place} [{start}, {min(end, last)}) is archived twice")
            last = max(last, end)
        if last < partition.end:
            gaps.append((max(last, partition.start), partition.end))
        elif last > partition.end:
            findings.append(f"beyond: {place} [{partition.end}, {last}) is archived and was never stored")
        left = [piece for gap in gaps for piece in _without(gap, let_go)]
        if not reader.dense_offsets:  # at some offsets there never was a record
            left = [piece for piece in left if _has_records(reader, topic, partition.number, *piece)]
        findings += [f"gap: {place} [{start}, {end}) is not archived" for start, end in left]
    beyond = [file for file in files if _is_of(topic, file) and file.partition >= len(topic.partitions)]
    return [*findings, *(f"beyond: {file} is archived and was never stored" for file in beyond)]


def _has_records(reader: ReadableLog, topic: StoredTopic, partition: int, start: int, end: int) -> bool:
    return any(True for _run in reader.read_chunks(topic.name, partition, start, end, epoch=topic.epoch))


def _without(gap: tuple[int, int], accepted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    # what is left of a gap behind those that were accepted
    at, stop = gap
    left: list[tuple[int, int]] = []
    for start, end in accepted:
        if end <= at or start >= stop:
            continue
        if start > at:
            left.append((at, start))
        at = max(at, end)
    return [*left, (at, stop)] if at < stop else left


def _is_of(topic: StoredTopic, file: ArchiveFile | Gap) -> bool:
    return (file.topic, file.epoch) == (topic.name, topic.epoch)


def look_at(source: Source, shelf: Shelf, look: Look) -> Seen:
    """Check the files of a stretch by themselves, then against the store."""
    tables: list[pa.Table] = []
    findings: list[str] = []
    for one in look.files:
        table, finding = _read(shelf, one)
        tables += [table] if table is not None else []
        findings += [finding] if finding else []
    rows = sum(table.num_rows for table in tables)
    if findings:
        return Seen(0, rows, {}, tuple(findings))
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables).sort_by("offset")
    file = look.file
    with open_log(source) as reader:
        wrong = _says_otherwise(file, table, dense=reader.dense_offsets)
    if wrong:
        return Seen(0, rows, {}, (f"damaged: {file}: {', '.join(one.path for one in look.files)} {wrong}",))
    counted = pc.value_counts(table["route"]).to_pylist()
    routes = {one["values"]: one["counts"] for one in counted}
    compared, found = _compare(source, look, table) if look.start is not None else (0, ())
    return Seen(compared, rows, routes, found)


def _read(shelf: Shelf, file: ArchiveFile) -> tuple[pa.Table | None, str]:
    # what is in a file, or what is wrong with it
    try:
        opened = shelf.opened(file.path)
    except FileNotFoundError:
        return None, f"gap: {file}: the file {file.path} is missing"
    except OSError as error:
        return None, f"damaged: {file}: {file.path} is not to be read: {error}"
    with opened:
        if checksum(opened) != file.crc32c:
            return None, f"damaged: {file}: {file.path} does not have its checksum"
        if opened.size() != file.size:
            return None, f"damaged: {file}: {file.path} does not have {file.size} bytes"
        try:
            table = pq.ParquetFile(opened).read()
        except (pa.ArrowException, OSError) as error:
            return None, f"damaged: {file}: {file.path} is not to be read: {error}"
    if table.schema != FILE_SCHEMA:
        return table, f"schema: {file}: {file.path} has other columns"
    if file.records >= 0 and file.records != table.num_rows:
        return table, f"damaged: {file}: {file.path} does not hold {file.records} records"
    return table, ""


def _says_otherwise(file: ArchiveFile, table: pa.Table, *, dense: bool) -> str:
    # In what a stretch is not what its manifest says; empty: in nothing. What is missing inside one of a log whose offsets
    # have gaps shows when it is compared.
    offsets = table["offset"].to_numpy()
    if dense:
        right = np.array_equal(offsets, np.arange(file.start, file.end))
    else:
        right = len(offsets) > 0 and (offsets[0], offsets[-1] + 1) == (file.start, file.end)
        right = right and bool((np.diff(offsets) > 0).all())
    if not right:
        return "does not hold these offsets"
    if pc.unique(table["partition"]).to_pylist() != [file.partition]:
        return "does not hold this partition"
    days = np.unique(table["timestamp"].cast(pa.int64()).to_numpy() // DAY_US)
    if [str(np.datetime64(int(day), "D")) for day in days] != [file.day]:
        return f"holds another day than {file.day}"
    return ""


def _compare(source: Source, look: Look, table: pa.Table) -> tuple[int, tuple[str, ...]]:
    file = look.file
    assert look.start is not None
    offsets = table["offset"].to_numpy()
    at = int(np.searchsorted(offsets, look.start))
    compared = 0
    with open_log(source) as reader:
        end = min(file.end, reader.bounds(file.topic, file.partition)[1])
        what = Range(file.topic, file.partition, look.start, end, file.epoch)
        # retention may go on meanwhile: what is gone is not compared
        for batch in batches(records(reader, what, fail_on_data_loss=False), FILE_SCHEMA):
            first = batch.column("offset")[0].as_py()
            place = int(np.searchsorted(offsets, first))
            if place > at and offsets[at] >= reader.bounds(file.topic, file.partition)[0]:
                return compared, (
                    f"different: {file.topic}/{file.partition} offset {offsets[at]} is not what is stored",
                )
            ours, at = table.slice(place, batch.num_rows), place + batch.num_rows
            if not ours.equals(pa.Table.from_batches([batch])):
                return compared, (f"different: {_first_difference(file, ours, batch)} is not what is stored",)
            compared += batch.num_rows
    return compared, ()


def _first_difference(file: ArchiveFile, ours: pa.Table, theirs: pa.RecordBatch) -> str:
    for index in range(theirs.num_rows):
        if not ours.slice(index, 1).equals(pa.Table.from_batches([theirs.slice(index, 1)])):
            return f"{file.topic}/{file.partition} offset {theirs.column('offset')[index].as_py()}"
    return str(file)
