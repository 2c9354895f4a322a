"""A store into an empty one of either kind, in commits of which each says how far it is: whatever ends it, it goes on from there.

    lock both ─► topics made, kept for ever ─► records ─► tables, their places translated ─► topics as they were ─► whole
                                               │
                                               └─ each commit: records, and a row that says what went where

The row that says whose copy it is is required by each commit: of two processes that copy to one place the second is the only one
that does.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import attrs
import msgspec
import trio

from gateway.envelope import Run
from gateway.errors import (
    CommitFailed,
    ConditionFailed,
    Conflict,
    GatewayError,
    InvalidRequest,
    NotAStore,
    StoreInUse,
    StoreReadOnly,
    Unsupported,
)
from gateway.moving.places import GIVEN_UP, CopyPlace, CopyReader
from gateway.moving.tables import COPIED_TABLES, Translation, refuse_unknown, translated_rows
from gateway.store.interface import AlterTopic, MakeTopic, Put, Require, Store, Ticket, TopicConfig, Unit, copied
from gateway.store.moved import (
    HEAD,
    TABLE,
    CopiedPart,
    CopyHead,
    CopyProgress,
    commit_put,
    head_row,
    read_progress,
    topic_key,
)
from gateway.store.reader import StoredTopic

COMMIT_RECORDS = 10_000
COMMIT_BYTES = 4 << 20
COMMIT_PARTS = 2_000
"""Each is an append of its own: where offsets have gaps there may be one for each record."""
ROWS_AT_A_TIME = 500
AGAIN = 1.0
"""Seconds until an attempt begins once more that Kafka holds up."""

Progress = Callable[[int, int], None]
"""(records so far, about how many there are)"""


@attrs.frozen
class CopyPlan:
    """What a copy would do."""

    topics: int
    partitions: int
    offsets: int
    """Records, where offsets are dense; at least as many as there are records anywhere else."""
    rows: int
    """At most: some may belong to nothing."""
    resumes: bool
    """Something of it is there already."""
    whole: bool


@attrs.frozen
class Copied:
    """What a copy has done."""

    records: int
    """All that are there now, of earlier attempts too."""
    copied: int
    """By this attempt."""
    rows: Mapping[str, int]
    left: Mapping[str, int]
    """Rows that belong to nothing that is there."""


def plan(source: CopyPlace, target: CopyPlace) -> CopyPlan:
    """Look at both, and change nothing. Raises what a copy would raise at its beginning."""
    with ExitStack() as stack:
        reader = source_of_copy(source, target, stack)
        stack.enter_context(target.unserved())
        topics = reader.topics()
        done = CopyProgress()
        if target.occupied():
            there = stack.enter_context(target.reading(whole=False))
            done = read_progress(there.rows(TABLE))
            refuse_other(done.head, source.identity(reader), target, empty=False)
        places = [(name, part) for name, one in topics.items() for part in one.partitions]
        offsets = sum(part.end - max(part.start, done.map(name, part.number).next or 0) for name, part in places)
        rows = sum(1 for table in reader.tables() if table in COPIED_TABLES for _row in reader.rows(table))
        head = done.head
        return CopyPlan(len(topics), len(places), offsets, rows, head is not None, head is not None and head.whole)


async def copy(source: CopyPlace, target: CopyPlace, progress: Progress = lambda _done, _total: None) -> Copied:
    """Raises StoreInUse, NotAStore, Conflict (something else is there), StoreDamaged, Unsupported."""
    with ExitStack() as stack:
        reader = source_of_copy(source, target, stack)
        identity = source.identity(reader)
        empty = not target.occupied()
        if target.on_kafka:  # a directory is locked by whoever writes into it
            stack.enter_context(target.unserved())
        head = CopyHead(identity, secrets.token_hex(8))
        outcome: Copied | GatewayError
        async with target.writing() as store:
            try:
                done = read_progress(await _rows_of(store, TABLE))
                refuse_other(done.head, identity, target, empty=empty)
                if done.head is not None and done.head.whole:
                    outcome = Copied(done.records, 0, {}, {})
                else:
                    outcome = await _Copy(source, reader, target, store, done, head, progress).run()
            except ConditionFailed:
                outcome = StoreInUse(f"another process copies into {target.shown} now")
            except GatewayError as error:  # a store has tasks of its own: out of the block it would come in a group
                outcome = error
        if isinstance(outcome, GatewayError):
            raise outcome
        return outcome


def source_of_copy(source: CopyPlace, target: CopyPlace, stack: ExitStack) -> CopyReader:
    """Read what is to be copied, or was. Raises what is against it."""
    if not source.exists():
        raise NotAStore(f"there is no store at {source.shown}")
    if not (source.on_kafka or target.on_kafka):
        raise Unsupported("a directory that nobody serves is copied by copying its files")
    stack.enter_context(source.unserved())
    reader = stack.enter_context(source.reading())
    refuse_unknown(reader)
    if target.on_kafka and source.on_kafka:
        with target.reading(whole=False) as there:
            names = source.identity(reader), target.identity(there)
        if names[0].startswith(names[1]) or names[1].startswith(names[0]):
            raise InvalidRequest(f"topics of {target.shown} would be topics of {source.shown} too: take another prefix")
    for topic in reader.topics():
        target.refuse_name(topic)
    return reader


def refuse_other(head: CopyHead | None, identity: str, target: CopyPlace, *, empty: bool) -> None:
    """Raise Conflict where the place is somebody else's."""
    if head is None and not empty:
        raise Conflict(f"{target.shown} is not empty, and what is there is no copy: name another place")
    if head is not None and head.source != identity:
        raise Conflict(f"{target.shown} has a copy of {head.source}, and not of {identity}")


async def _rows_of(store: Store, table: str) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    first = b""
    while page := await store.scan(table, first, ROWS_AT_A_TIME):
        found += page
        first = page[-1][0] + b"\0"
    return found


def kept_for_ever(config: TopicConfig) -> TopicConfig:
    return attrs.evolve(config, retention_seconds=None, retention_bytes=None)


class _Copy:
    """One attempt."""

    def __init__(
        self,
        source: CopyPlace,
        reader: CopyReader,
        target: CopyPlace,
        store: Store,
        done: CopyProgress,
        head: CopyHead,
        progress: Progress,
    ) -> None:
        self._source = source
        self._reader = reader
        self._target = target
        self._store = store
        self._before = done.head
        self._done = done
        self._head = head
        self._mine = Require(TABLE, HEAD, head_row(head))
        self._progress = progress
        self._copied = 0

    async def run(self) -> Copied:
        await self._begin()
        # what another process has copied until then is known now, and it copies nothing more
        self._done = read_progress(await _rows_of(self._store, TABLE))
        topics = self._reader.topics()
        configs = {name: self._source.config(self._reader, one) for name, one in topics.items()}
        await self._make(topics, configs)
        await self._records(topics)
        epochs = {name: (one.epoch, self._store.topics[name].epoch) for name, one in topics.items()}
        translation = Translation(self._done.maps, epochs, not self._store.capabilities.single_writer)
        written = await self._tables(translation)
        for name, config in configs.items():
            if config != kept_for_ever(config):
                await self._store.submit(Unit(alters=[AlterTopic(name, config)])).wait()
        settings = self._source.own_settings(self._reader, topics)
        await trio.to_thread.run_sync(self._target.take_settings, settings)
        whole = msgspec.structs.replace(self._head, whole=True)
        await self._write([Put(TABLE, HEAD, head_row(whole))])
        return Copied(self._done.records, self._copied, written, dict(translation.left))

    async def _write(self, puts: Sequence[Put]) -> None:
        await self._store.submit(Unit(puts=puts, requires=[self._mine], synced=True)).wait()

    async def _begin(self) -> None:
        seen = head_row(self._before) if self._before is not None else None
        mine = Put(TABLE, HEAD, self._mine.value)
        until = trio.current_time() + GIVEN_UP
        while True:
            try:
                await self._store.submit(Unit(puts=[mine], requires=[Require(TABLE, HEAD, seen)], synced=True)).wait()
                break
            except (CommitFailed, StoreReadOnly):  # behind what an attempt that was killed has begun
                if self._before is None or trio.current_time() > until:
                    raise
                await trio.sleep(AGAIN)

    async def _make(self, topics: Mapping[str, StoredTopic], configs: Mapping[str, TopicConfig]) -> None:
        for name, epoch in self._done.epochs.items():
            if name not in topics or topics[name].epoch != epoch:
                raise Conflict(
                    f"{name} was dropped or made again at the source since the copy began: copy it to another place"
                )
        for name, one in topics.items():
            if name not in self._done.epochs:
                # until all is there nothing goes by its age
                create = MakeTopic(name, kept_for_ever(configs[name]))
                await self._store.submit(Unit(creates=[create])).wait()
                await self._write([Put(TABLE, topic_key(name), str(one.epoch).encode())])

    async def _records(self, topics: Mapping[str, StoredTopic]) -> None:
        # one commit is written while the next is read
        total = sum(part.end - part.start for one in topics.values() for part in one.partitions)
        number = self._done.commits
        under_way: tuple[Sequence[CopiedPart], Ticket] | None = None
        for runs in _commits(self._reader, topics, self._done):
            parts = [(run.topic, run.partition, run.base_offset, run.count) for run in runs]
            unit = Unit([copied(run) for run in runs], [commit_put(number, parts)], [self._mine])
            ticket = self._store.submit(unit)
            number += 1
            await self._finish(under_way, total)
            under_way = parts, ticket
        await self._finish(under_way, total)

    async def _finish(self, under_way: tuple[Sequence[CopiedPart], Ticket] | None, total: int) -> None:
        if under_way is not None:
            parts, ticket = under_way
            self._done.add(parts, await ticket.wait())
            self._copied += sum(count for *_place, count in parts)
            self._progress(self._done.records, total)

    async def _tables(self, translation: Translation) -> Mapping[str, int]:
        # write them, and take out what an earlier attempt has written and is gone from the source since
        written: Counter[str] = Counter()
        wanted: dict[str, set[bytes]] = {}
        puts: list[Put] = []
        for table, key, value in translated_rows(self._reader, translation):
            written[table] += 1
            wanted.setdefault(table, set()).add(key)
            puts.append(Put(table, key, value))
            if len(puts) == ROWS_AT_A_TIME:
                await self._write(puts)
                puts = []
        for table in COPIED_TABLES:
            kept = wanted.get(table, set())
            puts += [Put(table, key, None) for key, _value in await _rows_of(self._store, table) if key not in kept]
        if puts:
            await self._write(puts)
        return dict(sorted(written.items()))


def _commits(reader: CopyReader, topics: Mapping[str, StoredTopic], done: CopyProgress) -> Iterator[list[Run]]:
    # What is not copied yet, as much at a time as one commit should carry. What came before `next` is there.
    commit: list[Run] = []
    records = size = 0
    for name, one in topics.items():
        for part in one.partitions:
            start = max(part.start, done.map(name, part.number).next or 0)
            for whole in (
                reader.read_chunks(name, part.number, start, part.end, epoch=one.epoch) if start < part.end else ()
            ):
                begin = 0
                while begin < whole.count:
                    run = whole.slice(begin, begin + COMMIT_RECORDS)
                    begin += run.count
                    commit.append(run)
                    records += run.count
                    size += len(run.columns.packed)
                    if records >= COMMIT_RECORDS or size >= COMMIT_BYTES or len(commit) >= COMMIT_PARTS:
                        yield commit
                        commit, records, size = [], 0, 0
    if commit:
        yield commit
