"""Whether a Delta or an Iceberg table holds what the store holds.

It has no checksums of files: of what the store no longer has only offsets and days are looked at. Apart from `audit`, which is
about files that manifests name.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence

import attrs
import numpy as np
import pyarrow as pa

from gateway.errors import StoreDamaged
from gateway.pipeline.archive import FILE_SCHEMA
from gateway.pipeline.comparing import Audited, Seen, compared_from, compared_with, coverage, is_of_day, routes_of
from gateway.pipeline.options import RECORDS_PER_PARTITION, ReadOptions
from gateway.pipeline.ranges import Range, cut, selected
from gateway.pipeline.source import Source, open_log
from gateway.pipeline.spread import Spread
from gateway.pipeline.table_rows import TableDay, TableVersion
from gateway.pipeline.tables import Table, accepted_in


@attrs.frozen
class DayCovered:
    """What one topic has in a table of one day."""

    ranges: Sequence[Range]
    findings: Sequence[str] = ()


@attrs.frozen
class RowsLook:
    """Offsets of a partition that a table has of one day, and which of them the store still has: [start, their end)."""

    day: TableDay
    what: Range
    start: int | None


def audit_table(table: Table, options: ReadOptions, spread: Spread) -> Audited:
    # the table first: what is appended meanwhile is then missing in it, never too much
    version = table.version()
    days = version.days()
    names = options.topics.among(sorted({one.topic for one in days}))
    days = [one for one in days if one.topic in names]
    accepted = [gap for gap in accepted_in(table) if options.topics.among([gap.topic])]
    with open_log(options.source) as reader:
        stored = {topic.name: topic for topic in selected(reader.topics(), options)}
        made = spread(functools.partial(covered_in, version, dense=reader.dense_offsets), days)
        held = [one for covered in made for one in covered.ranges]
        findings = [finding for covered in made for finding in covered.findings]
        for topic in stored.values():
            findings += coverage(topic, [one for one in held if one.topic == topic.name], accepted, reader)
    findings += _positions(table, held)
    looks = [
        RowsLook(day, piece, compared_from(stored.get(piece.topic), piece))
        for day, covered in zip(days, made, strict=True)
        for piece in cut(covered.ranges, RECORDS_PER_PARTITION)
    ]
    routes: Counter[tuple[str, int, str]] = Counter()
    compared = rows = 0
    for look, seen in zip(looks, spread(functools.partial(look_at_rows, options.source, version), looks), strict=True):
        findings += seen.findings
        compared += seen.compared
        rows += seen.rows
        for route, count in seen.routes.items():
            routes[look.what.topic, look.what.partition, route] += count
    return Audited(compared, rows, routes, tuple(findings), tuple(f"{gap}: {gap.why}" for gap in accepted))


def _positions(table: Table, held: Sequence[Range]) -> list[str]:
    # a table that does not know all that is in it would be given that again
    ends: dict[tuple[str, int, int], int] = {}
    for one in held:
        life = one.topic, one.epoch, one.partition
        ends[life] = max(ends.get(life, 0), one.end)
    said = table.done(list(ends))
    return [
        f"duplicate: {topic}/{number} is there up to {end}, and the table says {said.get((topic, epoch, number), 0)}: "
        "what lies between would be archived again"
        for (topic, epoch, number), end in sorted(ends.items())
        if said.get((topic, epoch, number), 0) < end
    ]


def covered_in(version: TableVersion, day: TableDay, *, dense: bool) -> DayCovered:
    """Which offsets a topic has of a day; of a log whose offsets have gaps, from which to which."""
    ranges: list[Range] = []
    findings: list[str] = []
    try:
        found = version.covered(day)
    except StoreDamaged as error:
        return DayCovered((), (f"damaged: {error.message}",))
    for (topic, epoch, partition), offsets in found.items():
        steps = np.diff(offsets)
        twice = np.flatnonzero(steps == 0)
        if len(twice):
            findings.append(f"duplicate: {topic}/{partition} offset {offsets[twice[0]]} is in the table twice")
        edges = (np.flatnonzero(steps > 1) + 1).tolist() if dense else []
        for start, stop in zip([0, *edges], [*edges, len(offsets)], strict=True):
            ranges.append(Range(topic, partition, int(offsets[start]), int(offsets[stop - 1]) + 1, epoch))
    return DayCovered(ranges, findings)


def look_at_rows(source: Source, version: TableVersion, look: RowsLook) -> Seen:
    """Compare rows of a table with the store."""
    try:
        table = pa.Table.from_batches(version.batches(FILE_SCHEMA, look.day, look.what), FILE_SCHEMA).sort_by("offset")
    except StoreDamaged as error:
        return Seen(0, 0, {}, (f"damaged: {look.what}: {error.message}",))
    if not is_of_day(table, look.day.day):
        return Seen(0, table.num_rows, {}, (f"damaged: {look.what} of {look.day.day} is of another day",))
    compared, found = compared_with(source, look.what, look.start, table)
    return Seen(compared, table.num_rows, routes_of(table), found)
