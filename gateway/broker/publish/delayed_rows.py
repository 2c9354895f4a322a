"""How a delayed message is kept: one row for each, found by when it is due and by a number that never comes twice.

A row holds everything that was decided when the message came in (where it goes, who sent it, by which route), so that
nothing is decided again when it is due, by a process that may not know its sender.

Apart from `delays`, which knows times and no bytes: the layout stays, and is tested as bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs
import msgspec

from gateway.broker.publish.publication import Prepared
from gateway.envelope import BatchMeta, Columns, Delivery, Origin
from gateway.requests import Published
from gateway.store.interface import Append

_KEY = struct.Struct(">QQ")
_PREFIX = "delayed-"


@attrs.frozen
class DelayedRow:
    address: str
    """As its producer wrote it."""
    targets: tuple[tuple[str, int], ...]
    """(topic, partition): more than one when its route stores into several topics."""
    value: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    expires_ms: int
    batch: bytes
    index: int
    """Its index inside the batch."""
    origin: tuple[str, str, str, str]
    route: str
    delivery: int

    def parts(self) -> Sequence[tuple[str, int, int]]:
        return ((self.route, 1, len(self.value)),)

    def prepared(self, started: float) -> Prepared:
        columns = Columns.of(
            [self.value],
            [self.key] if self.key is not None else None,
            [self.headers] if self.headers else None,
            [self.expires_ms] if self.expires_ms else None,
        )
        meta = BatchMeta(self.batch, Origin(*self.origin), self.route, Delivery(self.delivery))
        appends = [Append(topic, partition, columns, meta, indexes=[self.index]) for topic, partition in self.targets]
        return Prepared(appends, (), lambda _placements: Published(self.address, 0), self.parts(), started)


def rows_of(address: str, prepared: Prepared) -> dict[int, DelayedRow]:
    """The rows of a prepared batch, by the index of each message in it."""
    rows: dict[int, DelayedRow] = {}
    for append in prepared.appends:
        columns, meta, origin = append.columns, append.meta, append.meta.origin
        indexes = append.indexes if append.indexes is not None else range(columns.count)
        target = (append.topic, append.partition)
        for place, index in enumerate(indexes):
            if index in rows:
                rows[index] = attrs.evolve(rows[index], targets=(*rows[index].targets, target))
                continue
            rows[index] = DelayedRow(
                address=address,
                targets=(target,),
                value=columns.value(place),
                key=columns.key(place),
                headers=columns.headers_of(place),
                expires_ms=columns.expires[place] if columns.expires is not None else 0,
                batch=meta.id,
                index=index,
                origin=(origin.protocol, origin.listener, origin.principal, origin.client),
                route=meta.route,
                delivery=int(meta.delivery),
            )
    return rows


def encode(row: DelayedRow) -> bytes:
    return msgspec.msgpack.encode(row)


def decode(raw: bytes) -> DelayedRow:
    return msgspec.msgpack.decode(raw, type=DelayedRow)


def key_of(due_ms: int, number: int) -> bytes:
    return _KEY.pack(due_ms, number)


def due_of(key: bytes) -> int:
    """When a row is due, in milliseconds since the epoch."""
    due_ms, _number = _KEY.unpack(key)
    return int(due_ms)


def id_of(key: bytes) -> str:
    """What clients call a delayed message."""
    return _PREFIX + key.hex()


def key_of_id(delayed_id: str) -> bytes | None:
    digits = delayed_id.removeprefix(_PREFIX)
    if len(digits) != 2 * _KEY.size or not delayed_id.startswith(_PREFIX):
        return None
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return None
