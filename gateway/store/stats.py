"""What the topic `__stats` holds: how long messages were stored before they were handed out, one histogram a record.

A record is a JSON object: the minute of the deliveries, the route that stored the messages, their topic, the protocol they
went out by, and how many of them are in which bucket. A minute may be said in several records (a restart in its midst):
whoever reads adds them up. Pure, and read without trio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs
import msgspec

TOPIC = "__stats"
OTHER = "__other__"
"""The topic of what is beyond the bound on series."""

EDGES: Sequence[float] = tuple(2 ** (step / 2) for step in range(45))
"""Where buckets begin, in milliseconds: powers of the square root of two from 1 ms, which is as fine as the store's own
times are, to 70 minutes. Bucket 0 lies below the first, the last has no end."""
WHOLE: Sequence[int] = tuple(math.ceil(edge) for edge in EDGES)
"""The same for latencies in whole milliseconds, `bisect_right(WHOLE, latency)` being the bucket: integers compare faster."""
BUCKETS = len(EDGES) + 1


class DamagedStatistics(ValueError):
    """A record that is not of this layout."""


def percentile(counts: Mapping[int, int], share: float) -> float:
    """The latency in ms that this share of messages did not exceed, evenly spread within its bucket; there must be one.

    In the last bucket, which has no end, it is where that begins.
    """
    wanted = share * sum(counts.values())
    passed = 0
    bucket = 0
    for bucket, count in sorted(counts.items()):
        if passed + count >= wanted:
            low, high = _bounds(bucket)
            return low + (high - low) * max(wanted - passed, 0) / count
        passed += count
    return _bounds(bucket)[1]  # a share beyond 1 by rounding


def _bounds(bucket: int) -> tuple[float, float]:
    low = EDGES[bucket - 1] if bucket else 0.0
    return low, EDGES[bucket] if bucket < len(EDGES) else low


@attrs.frozen
class Deliveries:
    """The deliveries of one minute: of one route and topic, by one protocol."""

    minute: int
    """When the minute began, in seconds since the epoch."""
    route: str
    topic: str
    protocol: str
    counts: Mapping[int, int]
    """Messages by bucket; those with none are left out."""

    @property
    def messages(self) -> int:
        return sum(self.counts.values())


class _Record(msgspec.Struct, forbid_unknown_fields=False):
    minute: int
    route: str
    topic: str
    protocol: str
    counts: dict[int, int]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Record)


def encode(one: Deliveries) -> bytes:
    return _encoder.encode(_Record(one.minute, one.route, one.topic, one.protocol, dict(one.counts)))


def decode(value: bytes) -> Deliveries:
    """From a record's value. Raises Damaged."""
    try:
        read = _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise DamagedStatistics(str(error)) from error
    if not all(0 <= bucket < BUCKETS and count > 0 for bucket, count in read.counts.items()):
        raise DamagedStatistics("a count is not of this layout")
    return Deliveries(read.minute, read.route, read.topic, read.protocol, read.counts)
