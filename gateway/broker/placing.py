"""Where the members of a batch went that was split over routes and partitions, and the reply that says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

import attrs
from msgspec.structs import replace

from gateway.envelope import Batch, Columns
from gateway.errors import GatewayError
from gateway.requests import Published
from gateway.store.interface import Placement


@attrs.define(eq=False)
class Share:
    """One append of a batch's primary topic, for the reply."""

    position: int
    partition: int
    indexes: Sequence[int] | None


def original(indexes: Sequence[int] | None, index: int) -> int:
    """The index in the whole batch of one in a part of it."""
    return index if indexes is None else indexes[index]


def compose(outer: Sequence[int] | None, inner: Sequence[int] | None) -> Sequence[int] | None:
    """Indexes into indexes."""
    if outer is None or inner is None:
        return inner if outer is None else outer
    return [outer[index] for index in inner]


def reply(
    batch: Batch, shares: Sequence[Share], placements: Sequence[Placement], refused: Mapping[int, GatewayError]
) -> Published:
    """The reply to the whole batch."""
    if len(shares) == 1 and shares[0].indexes is None:
        placement = placements[shares[0].position]
        return Published(batch.address, placement.timestamp_ms, shares[0].partition, placement.base_offset)
    scattered = [(0, 0)] * batch.columns.count
    timestamp = 0
    for share in shares:
        placement = placements[share.position]
        timestamp = max(timestamp, placement.timestamp_ms)
        indexes = share.indexes if share.indexes is not None else range(batch.columns.count)
        for order, index in enumerate(indexes):
            scattered[index] = (share.partition, placement.base_offset + order)
    return Published(batch.address, timestamp, scattered=scattered, refused=refused)


def with_ttl(batch: Batch, expires_ms: int) -> Batch:
    """The same messages, each expiring at a time unless it does so earlier by itself."""
    columns = batch.columns
    own: Iterable[int] = columns.expires if columns.expires is not None else repeat(0, columns.count)
    expires = [min(one, expires_ms) if one else expires_ms for one in own]
    return replace(batch, columns=Columns(columns.packed, columns.ends, columns.keys, columns.headers, expires))
