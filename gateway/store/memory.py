"""Memory topics: no disk, no commit, gone with the process.

A topic with `retention_bytes` keeps that much. Those without share one budget (64 MiB unless configured),
and the oldest run of all of them goes first: an unlimited log in memory would end with the process being killed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.envelope import Run
from gateway.errors import UnknownTopic
from gateway.store.catalogue import Catalogue, Log, Topic, memory_topic
from gateway.store.hot import CacheBudget, RunQueue, run_cost
from gateway.store.interface import Append, Placement, TopicConfig, Unit
from gateway.store.plan import LAST_APPENDED, stretches


class MemoryTopics:
    """Appends to memory topics and keeps them within bounds."""

    def __init__(self, catalogue: Catalogue, budget: int, now_ms: Callable[[], int]) -> None:
        self._catalogue = catalogue
        self._budget = CacheBudget(budget, self._evicted)
        self._now_ms = now_ms

    def apply(self, unit: Unit) -> tuple[list[Placement], list[tuple[str, int]]]:
        """Apply a unit that was checked and is about memory topics alone; returns the placements and the partitions that grew."""
        catalogue = self._catalogue
        for create in unit.creates:
            if create.topic not in catalogue.topics:
                catalogue.topics[create.topic] = memory_topic(catalogue, create.topic, create.config)
        return self.append(unit.appends, [None] * len(unit.appends))

    def append(
        self, appends: Sequence[Append], on_disk: Sequence[Placement | None]
    ) -> tuple[list[Placement], list[tuple[str, int]]]:
        """Put records at the end of their partitions, but for those of which the commit has a place."""
        now = self._now_ms()
        topics = self._catalogue.topics
        placements: list[Placement] = []
        grown: list[tuple[str, int]] = []
        for append, stored in zip(appends, on_disk, strict=True):
            if stored is not None:
                placements.append(stored)
                continue
            topic = topics.get(append.topic)
            if topic is None:
                raise UnknownTopic
            placements.append(self._append(topic, topic.logs[append.partition], append, now))
            if append.columns.count:
                grown.append((append.topic, append.partition))
        return placements, grown

    def lone(self, topic: Topic, append: Append) -> Placement | None:
        """The same for one append of which nothing has to be said; None for any other."""
        if not (append.columns.count and 0 <= append.partition < len(topic.logs)):
            return None
        log = topic.logs[append.partition]
        return self._append(topic, log, append, self._now_ms()) if log.state.end <= LAST_APPENDED else None

    def _append(self, topic: Topic, log: Log, append: Append, now: int) -> Placement:
        state, columns, count = log.state, append.columns, append.columns.count
        base = state.end
        time = max(state.last_time_ms, now)
        if count:
            batches = ((0, append.first_index, append.meta),) if append.indexes is None else stretches(append, 0)
            run = Run(append.topic, append.partition, base, columns, (time,) * count, batches)
            state.end = base + count
            state.last_time_ms = time
            self._keep(topic, log, run)
        return Placement(base, time)

    def _keep(self, topic: Topic, log: Log, run: Run) -> None:
        queue, limit = log.hot, topic.config.retention_bytes
        if limit is None:
            self._budget.add(queue, run, run_cost(run))
        else:
            queue.append(run, run_cost(run))
            share = limit // len(topic.logs)
            while queue.cost > share and len(queue) > 1:
                log.state.start = queue.popleft()[0].next_offset
        log.state.bytes = queue.cost

    def trim(self, topic: Topic, now_ms: int) -> list[tuple[str, int]]:
        """Drop what is older than the topic keeps; returns the partitions that lost something."""
        seconds = topic.config.retention_seconds
        if seconds is None:
            return []
        before = now_ms - int(seconds * 1000)
        changed: list[tuple[str, int]] = []
        for log in topic.logs:
            queue = log.hot
            while (run := queue.first) is not None and run.times[-1] < before:
                self._drop(topic, queue)
                log.state.start = run.next_offset
                log.state.bytes = queue.cost
                if changed[-1:] != [log.key]:
                    changed.append(log.key)
        return changed

    def forget(self, topic: Topic) -> None:
        for log in topic.logs:
            while len(log.hot):
                self._drop(topic, log.hot)

    def altered(self, topic: Topic, config: TopicConfig) -> None:
        """Take new settings; its runs move between the shared budget and a limit of its own."""
        runs: list[tuple[Log, Run]] = []
        if (config.retention_bytes is None) != (topic.config.retention_bytes is None):
            for log in topic.logs:
                while (run := log.hot.first) is not None:
                    self._drop(topic, log.hot)
                    runs.append((log, run))
        topic.config = config
        for log, run in runs:
            self._keep(topic, log, run)

    def _drop(self, topic: Topic, queue: RunQueue) -> None:
        if topic.config.retention_bytes is None:
            self._budget.drop_first(queue)
        else:
            queue.popleft()

    def _evicted(self, queue: RunQueue, run: Run) -> None:
        log = self._catalogue.log(run.topic, run.partition)
        if log is not None and log.hot is queue:
            log.state.start = run.next_offset
            log.state.bytes = queue.cost
