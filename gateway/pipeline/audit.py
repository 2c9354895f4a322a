"""Whether an archive holds what the store holds: compared record by record with the store itself, not with a manifest."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.pipeline.archive import FILE_SCHEMA
from gateway.pipeline.audit_table import audit_table
from gateway.pipeline.comparing import Audited, Seen, compared_from, compared_with, coverage, is_of_day, routes_of
from gateway.pipeline.manifest import Archive, ArchiveFile, checksum, together
from gateway.pipeline.options import ReadOptions, TopicSelection
from gateway.pipeline.ranges import Range, selected
from gateway.pipeline.shelves import Shelf
from gateway.pipeline.source import Source, open_log
from gateway.pipeline.spread import Here, Spread
from gateway.pipeline.tables import table_there


@attrs.frozen
class Look:
    """The files of one stretch, mostly one, and which of its offsets the store still has: [start, its end)."""

    files: tuple[ArchiveFile, ...]
    start: int | None

    @property
    def file(self) -> ArchiveFile:
        return self.files[0]


def audit(
    source: Source,
    directory: Path | str,
    *,
    topics: TopicSelection | None = None,
    spread: Spread | None = None,
    catalog: str = "",
) -> Audited:
    """Compare with an archive, or with a table. Raises NotAStore where there is no store or neither of them."""
    spread = spread or Here()
    options = ReadOptions(source, topics or TopicSelection())
    if catalog or not Archive(directory).is_there():
        table = table_there(directory, catalog)
        if table is not None:
            return audit_table(table, options, spread)
    archive = Archive.existing(directory)
    # the archive first: what is appended meanwhile is then missing in it, never too much
    stretches = together([file for file in archive.named() if options.topics.among([file.topic])])
    files = [stretch[0] for stretch in stretches]
    accepted = [gap for gap in archive.accepted() if options.topics.among([gap.topic])]
    with open_log(source) as reader:
        stored = {topic.name: topic for topic in selected(reader.topics(), options)}
        covered = [one for topic in stored.values() for one in coverage(topic, files, accepted, reader)]
    findings = [f"gap: the manifest {name} is missing, and what it named" for name in archive.lost()]
    findings += [f"unlisted file {name}: readers of the directory would see it" for name in archive.unlisted()]
    findings += covered
    looks = [Look(tuple(one), compared_from(stored.get(one[0].topic), one[0])) for one in stretches]
    routes: Counter[tuple[str, int, str]] = Counter()
    compared = rows = 0
    for file, seen in zip(files, spread(functools.partial(look_at, source, archive.shelf), looks), strict=True):
        findings += seen.findings
        compared += seen.compared
        rows += seen.rows
        for route, count in seen.routes.items():
            routes[file.topic, file.partition, route] += count
    return Audited(compared, rows, routes, tuple(findings), tuple(f"{gap}: {gap.why}" for gap in accepted))


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
    what = Range(file.topic, file.partition, file.start, file.end, file.epoch)
    with open_log(source) as reader:
        wrong = _says_otherwise(what, file.day, table, dense=reader.dense_offsets)
    if wrong:
        return Seen(0, rows, {}, (f"damaged: {file}: {', '.join(one.path for one in look.files)} {wrong}",))
    compared, found = compared_with(source, what, look.start, table)
    return Seen(compared, rows, routes_of(table), found)


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


def _says_otherwise(what: Range, day: str, table: pa.Table, *, dense: bool) -> str:
    # In what a stretch is not what its manifest says; empty: in nothing. What is missing inside one of a log whose offsets
    # have gaps shows when it is compared.
    offsets = table["offset"].to_numpy()
    if dense:
        right = np.array_equal(offsets, np.arange(what.start, what.end))
    else:
        right = len(offsets) > 0 and (offsets[0], offsets[-1] + 1) == (what.start, what.end)
        right = right and bool((np.diff(offsets) > 0).all())
    if not right:
        return "does not hold these offsets"
    if pc.unique(table["partition"]).to_pylist() != [what.partition]:
        return "does not hold this partition"
    return "" if is_of_day(table, day) else f"holds another day than {day}"
