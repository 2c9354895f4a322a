"""That a copy is one: every record and every row of both stores, side by side.

Of each partition the records are read from both in their order and compared in all that is known of them, and each has to be
where the copy says it went. What is summed up over all of them (one digest for each partition) goes into the report, so that two
reports can be compared as well. Of tables each row has to be what the source's row comes to, and no row may be too many.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import attrs

from gateway.envelope import NO_HEADERS, BatchMeta, Run
from gateway.errors import NotFound
from gateway.moving.copying import Progress, refuse_other, source_of_copy
from gateway.moving.places import CopyPlace, CopyReader
from gateway.moving.tables import COPIED_TABLES, Translation, translated_rows
from gateway.store.moved import TABLE, CopyProgress, OffsetMap, read_progress
from gateway.store.reader import StoredTopic

MOST_DIFFERENCES = 100
"""Of which the report has the words; all are counted."""


@attrs.frozen
class ProvenPartition:
    """One partition, which is in both."""

    topic: str
    partition: int
    records: int
    source: tuple[int, int]
    target: tuple[int, int]
    trimmed: int
    """Records of the copy that the source has removed since, by their age or number."""
    digest: str


@attrs.define
class Proof:
    """What an audit has found."""

    partitions: list[ProvenPartition] = attrs.Factory(list)
    rows: Counter[str] = attrs.Factory(Counter)
    left: Mapping[str, int] = attrs.Factory(dict)
    settings_left: Mapping[str, Mapping[str, str]] = attrs.Factory(dict)
    """By topic, what only Kafka knows and a directory has no place for."""
    differences: list[str] = attrs.Factory(list)
    different: int = 0

    @property
    def records(self) -> int:
        return sum(one.records for one in self.partitions)

    @property
    def good(self) -> bool:
        return not self.different

    def differs(self, text: str) -> None:
        self.different += 1
        if len(self.differences) < MOST_DIFFERENCES:
            self.differences.append(text)


def prove(source: CopyPlace, target: CopyPlace, progress: Progress = lambda _done, _total: None) -> Proof:
    """Raises what keeps it from looking: NotFound where there is no copy."""
    with ExitStack() as stack:
        reader = source_of_copy(source, target, stack)
        if not target.occupied():
            raise NotFound(f"there is no copy at {target.shown}")
        stack.enter_context(target.unserved())
        there = stack.enter_context(target.reading())
        done = read_progress(there.rows(TABLE))
        refuse_other(done.head, source.identity(reader), target, empty=False)
        return _Audit(source, reader, target, there, done, progress).run()


@attrs.define(eq=False)
class _Audit:
    source: CopyPlace
    reader: CopyReader
    target: CopyPlace
    there: CopyReader
    done: CopyProgress
    progress: Progress
    found: Proof = attrs.Factory(Proof)

    def run(self) -> Proof:
        found, here, there = self.found, self.reader.topics(), self.there.topics()
        if self.done.head is None or not self.done.head.whole:
            found.differs("the copy is not finished")
        for name in sorted(here.keys() - there.keys()):
            found.differs(f"topic {name} is missing")
        for name in sorted(there.keys() - here.keys()):
            found.differs(f"topic {name} is not in the source")
        total = sum(part.end - part.start for one in here.values() for part in one.partitions)
        for name in sorted(here.keys() & there.keys()):
            self._topic(here[name], there[name], total)
        self._settings(sorted(here.keys() & there.keys()))
        epochs = {name: (here[name].epoch, there[name].epoch) for name in here.keys() & there.keys()}
        self._tables(Translation(self.done.maps, epochs, self.target.on_kafka))
        return found

    def _topic(self, one: StoredTopic, other: StoredTopic, total: int) -> None:
        config = self.source.config(self.reader, one), self.target.config(self.there, other)
        if config[0] != config[1]:
            self.found.differs(f"topic {one.name} is set to {config[1]}, and at the source to {config[0]}")
        if len(one.partitions) != len(other.partitions):
            self.found.differs(
                f"topic {one.name} has {len(other.partitions)} partitions instead of {len(one.partitions)}"
            )
            return
        for part, mate in zip(one.partitions, other.partitions, strict=True):
            where = self.done.map(one.name, part.number)
            first = where.onwards(part.start)
            before = sum(count for _from, _to, count in where.targets(0, part.start))
            pairs = _side_by_side(
                _records(self.reader, one, part.number, part.start, part.end),
                _records(self.there, other, part.number, max(first, mate.start), mate.end),
            )
            digest, count = _Digest(), 0
            for mine, copy in pairs:
                if mine is None or copy is None:
                    missing, only = ("source", copy) if mine is None else ("copy", mine)
                    at = only.base_offset if only is not None else 0
                    self.found.differs(f"{one.name}/{part.number}: the {missing} has nothing for what is at {at}")
                    break
                if not self._same(mine, copy, where):
                    break
                digest.add(mine)
                count += mine.count
                self.progress(self.found.records + count, total)
            self.found.partitions.append(
                ProvenPartition(
                    one.name,
                    part.number,
                    count,
                    (part.start, part.end),
                    (mate.start, mate.end),
                    before,
                    digest.text(),
                )
            )

    def _settings(self, topics: Sequence[str]) -> None:
        mine = {name: one for name, one in self.source.own_settings(self.reader, topics).items() if one}
        if not self.target.on_kafka:
            self.found.settings_left = mine
            return
        theirs = self.target.own_settings(self.there, topics)
        for name, wanted in mine.items():
            for key, value in wanted.items():
                if theirs[name].get(key) != value:
                    self.found.differs(f"topic {name}: its {key} is not {value}, as at the source")

    def _same(self, mine: Run, copy: Run, where: OffsetMap) -> bool:
        # as many records of both
        place = f"{mine.topic}/{mine.partition}"
        went = list(where.targets(mine.base_offset, mine.next_offset))
        if went != [(mine.base_offset, copy.base_offset, mine.count)]:
            self.found.differs(f"{place}: what is at {mine.base_offset} is not where the copy says it went")
            return False
        for name, look in _ASPECTS.items():
            one, other = look(mine), look(copy)
            if one != other:
                at = next((index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
                self.found.differs(
                    f"{place}: the {name} of the record at {mine.base_offset + at} differs from the copy's "
                    f"at {copy.base_offset + at}"
                )
                return False
        return True

    def _tables(self, translation: Translation) -> None:
        found = self.found
        kept = {table: dict(self.there.rows(table)) for table in COPIED_TABLES}
        for table, key, value in translated_rows(self.reader, translation):
            found.rows[table] += 1
            if kept[table].pop(key, None) != value:
                found.differs(f"table {table}: the row {key!r} is missing or differs")
        for table, rows in kept.items():
            for key in rows:
                found.differs(f"table {table}: the row {key!r} is not the source's")
        found.left = dict(translation.left)


def _records(reader: CopyReader, topic: StoredTopic, partition: int, start: int, end: int) -> Iterator[Run]:
    if start < end:
        yield from reader.read_chunks(topic.name, partition, start, end, epoch=topic.epoch)


def _side_by_side(one: Iterator[Run], other: Iterator[Run]) -> Iterator[tuple[Run | None, Run | None]]:
    # both as runs of the same lengths; None for the one that has ended before the other
    mine, theirs = next(one, None), next(other, None)
    while mine is not None and theirs is not None:
        count = min(mine.count, theirs.count)
        yield mine.slice(0, count), theirs.slice(0, count)
        mine = mine.slice(count, mine.count) if count < mine.count else next(one, None)
        theirs = theirs.slice(count, theirs.count) if count < theirs.count else next(other, None)
    if mine is not None or theirs is not None:
        yield mine, theirs


def _values(run: Run) -> Sequence[object]:
    return run.columns.values()


def _keys(run: Run) -> Sequence[object]:
    return list(run.columns.keys) if run.columns.keys is not None else [None] * run.count


def _headers(run: Run) -> Sequence[object]:
    return list(run.columns.headers) if run.columns.headers is not None else [NO_HEADERS] * run.count


def _expiries(run: Run) -> Sequence[object]:
    return list(run.columns.expires) if run.columns.expires is not None else [0] * run.count


def _times(run: Run) -> Sequence[object]:
    return list(run.times)


def _origins(run: Run) -> Sequence[tuple[BatchMeta, int]]:
    ends = [*(first for first, _inner, _meta in run.batches[1:]), run.count]
    return [
        (meta, inner + index)
        for (first, inner, meta), end in zip(run.batches, ends, strict=True)
        for index in range(end - first)
    ]


_ASPECTS: Mapping[str, Callable[[Run], Sequence[object]]] = {
    "value": _values,
    "key": _keys,
    "headers": _headers,
    "expiry": _expiries,
    "time": _times,
    "id, origin or route": _origins,
}


class _Digest:
    """Of all records of a partition, however they are cut into runs: one sum for each thing that is known of them."""

    def __init__(self) -> None:
        self._sums = {name: hashlib.blake2b(digest_size=16) for name in _ASPECTS}

    def add(self, run: Run) -> None:
        for name, look in _ASPECTS.items():
            if name == "value":
                self._sums[name].update(run.columns.packed)
            else:
                self._sums[name].update("".join(f"{one!r}\n" for one in look(run)).encode())

    def text(self) -> str:
        whole = hashlib.blake2b(b"".join(one.digest() for one in self._sums.values()), digest_size=16)
        return whole.hexdigest()
