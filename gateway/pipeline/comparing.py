"""What audits share: what a log's partitions have in an archive, and whether records are those that are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gateway.arrow.columns import batches
from gateway.pipeline.archive import FILE_SCHEMA
from gateway.pipeline.layout import DAY_US
from gateway.pipeline.manifest import ArchiveFile, Gap
from gateway.pipeline.ranges import Range, records
from gateway.pipeline.source import Source, open_log
from gateway.store.reader import ReadableLog, StoredTopic

Held = ArchiveFile | Range
"""Offsets of a partition that an archive has."""


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
class Seen:
    """What was found in one stretch."""

    compared: int
    rows: int
    routes: Mapping[str, int]
    findings: tuple[str, ...]


def compared_from(topic: StoredTopic | None, file: Held) -> int | None:
    """The first of these offsets that the store has too."""
    if topic is None or topic.epoch != file.epoch or file.partition >= len(topic.partitions):
        return None
    return max(file.start, topic.partitions[file.partition].start)


def coverage(topic: StoredTopic, files: Sequence[Held], accepted: Sequence[Gap], reader: ReadableLog) -> list[str]:
    """Every gap that nobody accepted, and every overlap, of what a topic's files cover."""
    findings: list[str] = []
    for partition in topic.partitions:
        place = f"{topic.name}/{partition.number}"

        def own(all_of_them: Sequence[Held] | Sequence[Gap], number: int = partition.number) -> list[tuple[int, int]]:
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


def _is_of(topic: StoredTopic, file: Held | Gap) -> bool:
    return (file.topic, file.epoch) == (topic.name, topic.epoch)


def routes_of(table: pa.Table) -> Mapping[str, int]:
    return {one["values"]: one["counts"] for one in pc.value_counts(table["route"]).to_pylist()}


def is_of_day(table: pa.Table, day: str) -> bool:
    days = np.unique(table["timestamp"].cast(pa.int64()).to_numpy() // DAY_US)
    return [str(np.datetime64(int(one), "D")) for one in days] == [day]


def compared_with(source: Source, what: Range, start: int | None, table: pa.Table) -> tuple[int, tuple[str, ...]]:
    """Compare records of a range, ascending, with the store, which has those from `start` on. How many were, and what differs."""
    if start is None or start >= what.end:
        return 0, ()
    offsets = table["offset"].to_numpy()
    at = int(np.searchsorted(offsets, start))
    compared = 0
    with open_log(source) as reader:
        end = min(what.end, reader.bounds(what.topic, what.partition)[1])
        there = attrs.evolve(what, start=start, end=end)
        # retention may go on meanwhile: what is gone is not compared
        for batch in batches(records(reader, there, fail_on_data_loss=False), FILE_SCHEMA):
            first = batch.column("offset")[0].as_py()
            place = int(np.searchsorted(offsets, first))
            if place > at and offsets[at] >= reader.bounds(what.topic, what.partition)[0]:
                return compared, (
                    f"different: {what.topic}/{what.partition} offset {offsets[at]} is not what is stored",
                )
            ours, at = table.slice(place, batch.num_rows), place + batch.num_rows
            if not ours.equals(pa.Table.from_batches([batch])):
                return compared, (f"different: {_first_difference(what, ours, batch)} is not what is stored",)
            compared += batch.num_rows
    return compared, ()


def _first_difference(what: Range, ours: pa.Table, theirs: pa.RecordBatch) -> str:
    for index in range(theirs.num_rows):
        if not ours.slice(index, 1).equals(pa.Table.from_batches([theirs.slice(index, 1)])):
            return f"{what.topic}/{what.partition} offset {theirs.column('offset')[index].as_py()}"
    return str(what)
