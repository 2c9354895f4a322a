"""Messages as Kafka's records, and records as runs.

Key, value, headers and time are a record's own. What else an envelope knows goes before the producer's headers: `gw.id`, the
batch's id and the index in it; `gw.origin`, JSON; `gw.expires`, milliseconds, where it expires. A record without these comes from
elsewhere: its route is `kafka`, and its id follows from where it is.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import msgspec

from gateway.envelope import NO_HEADERS, BatchMeta, Columns, Delivery, Headers, Origin, Run
from gateway.store.interface import Append

ID, ORIGIN, EXPIRES = "gw.id", "gw.origin", "gw.expires"
FOREIGN = "kafka"
"""The route, protocol and listener of what another client of Kafka wrote."""
ABSENT = ("gw.absent", b"value")
"""A header of a record that has no value at all (a deletion, in a compacted topic)."""
ID_BYTES = 16
MOST_INDEX = 1 << 32
_FOREIGN = Origin(FOREIGN, FOREIGN)


class _Source(msgspec.Struct, omit_defaults=True):
    protocol: str
    listener: str
    principal: str = ""
    client: str = ""
    via: tuple[str, ...] = ()
    route: str = ""
    delivery: int = 1


_decoder = msgspec.json.Decoder(_Source)
_encoder = msgspec.json.Encoder()


@functools.lru_cache(maxsize=4096)
def _origin_header(origin: Origin, route: str, delivery: Delivery) -> tuple[str, bytes]:
    source = _Source(
        origin.protocol, origin.listener, origin.principal, origin.client, origin.via, route, delivery.value
    )
    return ORIGIN, _encoder.encode(source)


@functools.lru_cache(maxsize=4096)
def _source(data: bytes) -> tuple[Origin, str, Delivery]:
    one = _decoder.decode(data)
    return (
        Origin(one.protocol, one.listener, one.principal, one.client, one.via),
        one.route,
        Delivery(one.delivery),
    )


KafkaRecord = tuple[bytes | None, bytes | None, list[tuple[str, bytes]] | None, int]
"""Value, key, headers and time."""


def records(append: Append, time_ms: int) -> Iterator[KafkaRecord]:
    """Each message of an append; a copy has times of its own."""
    run = append.as_read
    if run is None:
        yield from _records(append, repeat(time_ms))
        return
    ends = [*(first for first, _inner, _meta in run.batches[1:]), run.count]
    for (first, inner, meta), end in zip(run.batches, ends, strict=True):
        part = Append(append.topic, append.partition, run.columns.slice(first, end), meta, inner)
        for value, key, headers, at in _records(part, run.times[first:end]):
            deleted = not value and headers is not None and headers[-1] == ABSENT
            yield (None, key, headers[:-1], at) if deleted and headers is not None else (value, key, headers, at)


def _records(append: Append, times: Iterable[int]) -> Iterator[KafkaRecord]:
    columns, meta = append.columns, append.meta
    source = _origin_header(meta.origin, meta.route, meta.delivery)
    batch = meta.id
    if append.indexes is None:
        indexes: Iterable[int] = range(append.first_index, append.first_index + columns.count)
    else:
        indexes = append.indexes
    keys, given, expires = columns.keys, columns.headers, columns.expires
    for position, (index, value, time_ms) in enumerate(zip(indexes, columns.values(), times, strict=False)):
        headers = [(ID, batch + index.to_bytes(4, "big")), source]
        if expires is not None and expires[position]:
            headers.append((EXPIRES, b"%d" % expires[position]))
        if given is not None:
            headers += given[position]
        yield value, keys[position] if keys is not None else None, headers, time_ms


def heaviest(columns: Columns, bound: int) -> int:
    """The bytes of the largest message, key and headers among them; exactly where that may be more than a bound."""
    keys, headers = columns.keys, columns.headers
    total = len(columns.packed)
    if keys is not None:
        total += sum(map(len, filter(None, keys)))
    if headers is not None:
        total += sum(len(name) + len(value) for one in headers for name, value in one)
    if total <= bound:
        return total
    return max(
        len(value)
        + len((keys[index] if keys is not None else None) or b"")
        + sum(len(name) + len(data) for name, data in (headers[index] if headers is not None else ()))
        for index, value in enumerate(columns.values())
    )


class _Building:
    """Records that follow each other."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.times: list[int] = []
        self.headers: dict[int, Headers] = {}
        self.expires: dict[int, int] = {}
        """Both by place, since most have none."""
        self.batches: list[tuple[int, int, BatchMeta]] = []

    def run(self, topic: str, partition: int) -> Run:
        places, headers, expires = range(len(self.values)), self.headers, self.expires
        columns = Columns.of(
            self.values,
            self.keys if any(key is not None for key in self.keys) else None,
            [headers.get(at, NO_HEADERS) for at in places] if headers else None,
            [expires.get(at, 0) for at in places] if expires else None,
        )
        times = self.times if min(self.times) >= 0 else [max(at, 0) for at in self.times]
        return Run(topic, partition, self.base, columns, times, self.batches)


def runs(messages: Sequence[Any], topic: str, partition: int, epoch: int) -> tuple[list[Run], int]:
    """Messages of one partition, in order, as runs without gaps; and how many there were that no envelope can be made of."""
    found: list[Run] = []
    building = _Building(-1)
    following = -1
    last_id, last_source, meta = b"", b"", BatchMeta(b"", _FOREIGN, FOREIGN)
    next_index = -1
    expected = b""
    """The id of the record that would be the next of the same batch: nearly always it is."""
    unreadable = 0
    for message in messages:
        offset: int = message.offset()
        try:
            headers = message.headers()
        except UnicodeDecodeError:
            unreadable += 1
            continue
        value = message.value()
        if offset != following:
            if building.values:
                found.append(building.run(topic, partition))
            building = _Building(offset)
            expected = b""
        elif headers is not None and len(headers) == 2 and value is not None:
            (id_name, name), (origin_name, source) = headers
            if name == expected and source == last_source and id_name == ID and origin_name == ORIGIN:
                following += 1
                next_index += 1
                expected = last_id + next_index.to_bytes(4, "big") if next_index < MOST_INDEX else b""
                building.values.append(value)
                building.keys.append(message.key())
                building.times.append(message.timestamp()[1])
                continue
        following = offset + 1
        at = len(building.values)
        mine: Headers = ()
        known = _known(headers) if headers else None
        if known is not None:
            name, source, expiry, rest = known
            mine = tuple(headers[rest:])
            if expiry:
                building.expires[at] = expiry
            index = int.from_bytes(name[ID_BYTES:], "big")
            batch = name[:ID_BYTES]
            if name != expected or source != last_source:
                if batch != last_id or source != last_source:
                    origin, route, delivery = _source(source)
                    meta = BatchMeta(batch, origin, route, delivery)
                last_id, last_source = batch, source
                building.batches.append((at, index, meta))
            next_index = index + 1
            expected = batch + next_index.to_bytes(4, "big") if next_index < MOST_INDEX else b""
        else:
            if headers:
                mine = tuple([(key, b"" if header is None else header) for key, header in headers])
            place = b"%d/%d/%d/" % (epoch, partition, offset) + topic.encode()
            name = hashlib.blake2b(place, digest_size=ID_BYTES).digest()
            building.batches.append((at, 0, BatchMeta(name, _FOREIGN, FOREIGN)))
            expected, last_id = b"", b""
        if value is None:
            value, mine = b"", (*mine, ABSENT)
        if mine:
            building.headers[at] = mine
        building.values.append(value)
        building.keys.append(message.key())
        building.times.append(message.timestamp()[1])
    if building.values:
        found.append(building.run(topic, partition))
    return found, unreadable


def _known(headers: Sequence[tuple[str, bytes | None]]) -> tuple[bytes, bytes, int, int] | None:
    # id, source, expiry and how many headers these are, if a gateway has written them
    if len(headers) < 2 or headers[0][0] != ID or headers[1][0] != ORIGIN:
        return None
    name, source = headers[0][1], headers[1][1]
    if name is None or source is None or len(name) != ID_BYTES + 4:
        return None
    try:
        _source(source)
        if len(headers) > 2 and headers[2][0] == EXPIRES and headers[2][1] is not None:
            return name, source, int(headers[2][1]), 3
    except ValueError:  # msgspec's errors are such too
        return None
    return name, source, 0, 2
