"""How long messages were stored before they were handed out, by minute: read from the gateway's own topic `__stats`.

There is one record for each minute, route, topic and protocol that something was delivered by, so this needs no cluster.

Apart from the roll-up, which counts what the log holds: these are measurements that the gateway made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import pyarrow.parquet as pq

from gateway.errors import StoreError
from gateway.pipeline.frames import ArchivedMessages, MessagesToRead, StoredMessages, TableMessages
from gateway.pipeline.manifest import Archive
from gateway.pipeline.options import ReadOptions, TopicSelection
from gateway.pipeline.ranges import Range, records
from gateway.pipeline.source import open_log
from gateway.store import stats
from gateway.store.stats import percentile

KEPT = 60 * 60
"""Seconds that a minute is kept for records of it that are still to come, behind the latest one."""
PERCENTILES = (0.5, 0.95, 0.99)

Identity = tuple[int, str, str, str]
"""Minute, route, topic, protocol."""


class DeliveryRows:
    """What was delivered, as rows for the table; asked again, what is new."""

    def __init__(self, messages: MessagesToRead, topics: TopicSelection, from_ms: int | None = None) -> None:
        self._messages = messages
        self._topics = topics
        self._from = (from_ms or 0) // 60_000 * 60
        self._counts: dict[Identity, Counter[int]] = {}
        self._read = (-1, 0)
        """The life of the topic, and where to go on."""

    def rows(self) -> list[tuple[Any, ...]]:
        """Identity, messages delivered, percentiles in ms: of each minute of which there is something new, all of it."""
        changed: set[Identity] = set()
        for one in self._read_on():
            identity = (one.minute, one.route, one.topic, one.protocol)
            self._counts.setdefault(identity, Counter()).update(one.counts)
            changed.add(identity)
        meant = self._meant({identity[2] for identity in changed})
        rows = [_row(identity, self._counts[identity]) for identity in sorted(changed) if identity[2] in meant]
        oldest = max((identity[0] for identity in self._counts), default=0) - KEPT
        self._counts = {identity: counts for identity, counts in self._counts.items() if identity[0] >= oldest}
        return rows

    def each(self) -> Iterator[stats.Deliveries]:
        """What there is of the topics that are meant, record by record: none is kept."""
        known: dict[str, bool] = {}
        for one in self._read_on():
            if one.topic not in known:
                known[one.topic] = bool(self._meant({one.topic}))
            if known[one.topic]:
                yield one

    def _meant(self, names: AbstractSet[str]) -> set[str]:
        others = names & {stats.OTHER} if "**" in self._topics.patterns else set()
        return {*self._topics.among(sorted(names)), *others}

    def _read_on(self) -> Iterator[stats.Deliveries]:
        for value in self._values():
            try:
                one = stats.decode(value)
            except stats.DamagedStatistics as error:
                raise StoreError(f"{stats.TOPIC}: {error}") from error
            if one.minute >= self._from:
                yield one

    def _values(self) -> Iterator[bytes]:
        if isinstance(self._messages, StoredMessages):
            yield from self._stored(self._messages)
        elif isinstance(self._messages, ArchivedMessages):
            archive = Archive.existing(self._messages.path)
            for file in archive.files():
                if file.topic == stats.TOPIC:
                    # one file, whatever its directories would say
                    with archive.shelf.opened(file.path) as opened:
                        yield from pq.ParquetFile(opened).read(["value"])["value"].to_pylist()
        elif isinstance(self._messages, TableMessages):
            yield from self._messages.values(stats.TOPIC)

    def _stored(self, messages: StoredMessages) -> Iterator[bytes]:
        with open_log(ReadOptions.parse(messages.options).source) as log:
            topic = log.topics().get(stats.TOPIC)
            if topic is None:
                return
            epoch, offset = self._read
            partition = topic.partitions[0]
            start = max(partition.start, offset) if epoch == topic.epoch else partition.start
            # retention may be faster: what is gone is of no minute that is asked for still
            wanted = Range(topic.name, 0, start, partition.end, topic.epoch)
            for run in records(log, wanted, fail_on_data_loss=False):
                yield from run.columns.values()
                self._read = (topic.epoch, run.next_offset)


def _row(identity: Identity, counts: Counter[int]) -> tuple[Any, ...]:
    return (*identity, counts.total(), *(percentile(counts, share) for share in PERCENTILES))
