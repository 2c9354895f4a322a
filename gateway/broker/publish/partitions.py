"""Which partition a message goes to.

Apart from the pipeline: where a key lands is a promise to clients elsewhere, with tests of its own.
"""

from __future__ import annotations

import functools

from gateway.envelope import Batch, Columns
from gateway.errors import UnknownPartition

Share = tuple[int, list[int] | None]
"""(partition, indexes of the messages for it; None: all of them)."""


LONGEST_CACHED = 128
"""Bytes of a key whose hash is remembered: longer ones are rare, and remembering them would be a way to fill memory."""


def fnv1a(key: bytes) -> int:
    """FNV-1a, 32 bits: the hash by which FlyMQ's clients expect keys to be spread."""
    return _remembered(key) if len(key) <= LONGEST_CACHED else _fnv1a(key)


def _fnv1a(key: bytes) -> int:
    value = 0x811C9DC5
    for byte in key:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


_remembered = functools.lru_cache(maxsize=65_536)(_fnv1a)


class Partitioner:
    """Spreads batches: an explicit partition first, then keys, then round robin or one partition per connection."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def spread(self, connection: int, topic: str, partitions: int, batch: Batch, columns: Columns) -> list[Share]:
        """The shares of a batch. Raises UnknownPartition for an explicit one that does not exist."""
        if batch.partition is not None:
            if not 0 <= batch.partition < partitions:
                raise UnknownPartition(f"partition {batch.partition} not found in topic {topic}")
            return [(batch.partition, None)]
        if partitions == 1:
            return [(0, None)]
        if columns.keys is None and not batch.round_robin:
            return [(connection % partitions, None)]
        shares: dict[int, list[int]] = {}
        for index in range(columns.count):
            key = columns.key(index)
            if key:
                partition = fnv1a(key) % partitions
            elif batch.round_robin:
                partition = self._turns.get(topic, 0) % partitions
                self._turns[topic] = partition + 1
            else:
                partition = connection % partitions
            shares.setdefault(partition, []).append(index)
        if len(shares) == 1:
            return [(next(iter(shares)), None)]
        return list(shares.items())
