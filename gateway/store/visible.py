"""What readers see: the catalogue, the tail of each log, the small tables. Changes only when a commit is through."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import attrs

from gateway.envelope import Run
from gateway.store.catalogue import Catalogue, Log, Topic
from gateway.store.hot import RUN_OVERHEAD, CacheBudget, run_cost
from gateway.store.interface import Ticket, TopicConfig
from gateway.store.memory import MemoryTopics
from gateway.store.plan import CommitPlan, Result
from gateway.store.posting import Posting, WrittenChunk
from gateway.store.rows import all_rows

SMALL_RECORDS = 256
SMALL_BYTES = 32 << 10
"""Chunks below both are worth merging."""

MERGE_AFTER = 1024
"""So many small chunks in a row are merged. Fewer would be merged again and again until they are a chunk of full size."""

Key = tuple[str, int]


class Visible:
    """Applies commits in the event loop and tells who wants to know."""

    def __init__(self, catalogue: Catalogue, tail_cache: int, memory: MemoryTopics) -> None:
        self.catalogue = catalogue
        self.memory = memory
        self.tail = CacheBudget(tail_cache)
        self.bounded: set[Topic] = set()
        """Topics with a limit of size that have grown since somebody looked."""
        self.mergeable: set[Log] = set()
        """Partitions with many small chunks."""
        self._tables: dict[str, dict[bytes, bytes]] = {}
        self._callbacks: list[Callable[[Iterable[Key]], None]] = []

    def on_visible(self, callback: Callable[[Iterable[Key]], None]) -> None:
        """Call back after each commit with the partitions that grew or went away."""
        self._callbacks.append(callback)

    def announce(self, keys: Sequence[Key]) -> None:
        if keys:
            for callback in self._callbacks:
                callback(keys)

    def table(self, name: str, connection: sqlite3.Connection) -> Mapping[bytes, bytes]:
        """A table kept in memory from the first time somebody asks for it."""
        rows = self._tables.get(name)
        if rows is None:
            rows = all_rows(connection, name)
            self._tables[name] = rows
        return MappingProxyType(rows)

    def apply(self, plan: CommitPlan, written: Sequence[WrittenChunk]) -> Sequence[tuple[Ticket, Result]]:
        """Make a commit visible and announce it. Returns how its tickets end."""
        changed: list[Key] = list(plan.growth)
        self.catalogue.topics.update(plan.created)
        for name, (config, slots) in plan.altered.items():
            changed += self._alter(self.catalogue.topics[name], config, slots)
        for piece in written:
            self._grow(piece)
        if plan.puts and self._tables:
            self._put(plan.puts)
        results = plan.results
        for index, (ticket, result) in enumerate(results):
            if result is None:
                placements, grown = self.memory.append(ticket.unit.appends, plan.on_disk[ticket])
                changed += grown
                results[index] = (ticket, placements)
        for topic in plan.deleted:
            changed += self._drop(topic)
        self.announce(changed)
        return results

    def grown(self, piece: WrittenChunk) -> None:
        """Make a commit visible that is no more than this, and announce it."""
        self._grow(piece)
        keys = [(piece.run.topic, piece.run.partition)]
        for callback in self._callbacks:
            callback(keys)

    def _grow(self, piece: WrittenChunk) -> None:
        log, run, size = piece.log, piece.run, piece.size
        state = log.state
        time = run.times[-1]
        count = run.columns.count
        state.end = run.base_offset + count
        state.last_time_ms = time
        state.bytes += size
        if piece.number:
            log.unposted.append(run)
        else:
            self._stored(log, count, size, time)
        if log.topic.config.retention_bytes is not None:
            self.bounded.add(log.topic)
        self.tail.add(log.hot, run, size + RUN_OVERHEAD + 8 * count)

    def _stored(self, log: Log, count: int, size: int, time: int) -> None:
        # the database has one more chunk of it
        log.position += size
        if log.head_ms is None:
            log.head_ms = time
        if count < SMALL_RECORDS and size < SMALL_BYTES:
            log.small += 1
            if log.small >= MERGE_AFTER:
                self.mergeable.add(log)

    def posted(self, postings: Sequence[Posting]) -> None:
        """The database has what was in the journal; readers saw it before."""
        for posting in postings:
            log, run = posting.log, posting.run
            log.state.bytes += posting.size - posting.journalled
            del log.unposted[: posting.parts]
            self._stored(log, run.columns.count, posting.size, run.times[-1])
            if log.topic.config.retention_bytes is not None:
                self.bounded.add(log.topic)

    def keep_tail(self, log: Log, run: Run) -> None:
        """Begin the cache of a log with its newest run."""
        self.tail.add(log.hot, run, run_cost(run))

    def _put(self, puts: Mapping[tuple[str, bytes], bytes | None]) -> None:
        tables = self._tables
        for (name, key), value in puts.items():
            rows = tables.get(name)
            if rows is None:
                continue
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value

    def _alter(self, topic: Topic, config: TopicConfig, slots: list[int]) -> list[Key]:
        before = len(topic.logs)
        topic.grow(slots)
        config = attrs.evolve(config, partitions=len(topic.logs))
        if topic.memory:
            self.memory.altered(topic, config)
        else:
            topic.config = config
        return [log.key for log in topic.logs[before:]]

    def _drop(self, topic: Topic) -> list[Key]:
        self.catalogue.topics.pop(topic.name, None)
        if topic.memory:
            self.memory.forget(topic)
        else:
            self.bounded.discard(topic)
            for log in topic.logs:
                self.mergeable.discard(log)
                self.tail.forget(log.hot)
                self.catalogue.dead.add(log.slot)
        return [log.key for log in topic.logs]

    def trimmed(self, log: Log, start: int, size: int, slack: int, head_ms: int | None) -> None:
        log.state.start = start
        log.state.bytes -= size
        log.slack = slack
        log.head_ms = head_ms
        log.merge_from = max(log.merge_from, start)
        self.tail.forget(log.hot, start)
        self.announce([log.key])
