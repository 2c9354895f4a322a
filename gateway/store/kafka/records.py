"""Messages as Kafka's records, and records as runs.

Key, value, headers and time are a record's own. What else an envelope knows goes before the producer's headers: `gw.id`, the
batch's id and the index in it; `gw.origin`, JSON; `gw.expires`, milliseconds, where it expires. A record without these comes from
elsewhere: its route is `kafka`, and its id follows from where it is.

Headers are the dearest part of a record to read, and mostly those of a whole append follow from its first record's. That has
`gw.run`: so many behind it have the next indexes, the same origin and time, and no header of their own. Where the last of so many
offsets is what it then has to be, there was no room for anything else between the two, and nobody looks at the headers there.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import msgspec

from gateway.envelope import NO_HEADERS, BatchMeta, Columns, Delivery, Headers, Origin, Run
from gateway.librdkafka.codes import NO_TEXT, headers_of
from gateway.store.interface import Append

ID, ORIGIN, EXPIRES, RUN = "gw.id", "gw.origin", "gw.expires", "gw.run"
RUN_EVERY = 500
"""Records of an append after which it is said again how many follow: who begins to read in the middle need not go far."""
SHORTEST = 8
"""Records that it is worth being told of."""
FOREIGN = "kafka"
"""The route, protocol and listener of what another client of Kafka wrote."""
ABSENT = ("gw.absent", b"value")
"""A header of a record that has no value at all (a deletion, in a compacted topic)."""
ID_BYTES = 16
MOST_INDEX = 1 << 32
MOST_DIGITS = 15
"""Of what is told in milliseconds: a column has microseconds, in 64 bits."""
MOST_TIME_MS = ((1 << 63) - 1) // 1_000
"""The last moment of such a column: what somebody else has said to be later is then."""
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


AT_ONCE = 1_000
"""Messages that are taken from the library together, and are columns before the next are: so few that the processor still has
them at hand, and that the event loop need not wait for long while they are made.
"""
KafkaRecord = tuple[bytes | None, bytes | None, list[tuple[str, bytes]] | None, int]
"""Value, key, headers and time."""


def records(append: Append, time_ms: int) -> Iterator[KafkaRecord]:
    """Each message of an append; a copy has times of its own."""
    run = append.as_read
    if run is None:
        yield from _records(append, repeat(time_ms), copy=False)
        return
    ends = [*(first for first, _inner, _meta in run.batches[1:]), run.count]
    for (first, inner, meta), end in zip(run.batches, ends, strict=True):
        part = Append(append.topic, append.partition, run.columns.slice(first, end), meta, inner)
        for value, key, headers, at in _records(part, run.times[first:end], copy=True):
            deleted = not value and headers is not None and headers[-1] == ABSENT
            yield (None, key, headers[:-1], at) if deleted and headers is not None else (value, key, headers, at)


def _records(append: Append, times: Iterable[int], *, copy: bool) -> Iterator[KafkaRecord]:
    columns, meta = append.columns, append.meta
    source = _origin_header(meta.origin, meta.route, meta.delivery)
    batch = meta.id
    if append.indexes is None:
        indexes: Iterable[int] = range(append.first_index, append.first_index + columns.count)
    else:
        indexes = append.indexes
    keys, given, expires = columns.keys, columns.headers, columns.expires
    last = columns.count - 1
    # a copy has other times, and may be cut short and begun again elsewhere: of that nothing is promised
    plain = not copy and append.indexes is None and given is None and expires is None
    for position, (index, value, time_ms) in enumerate(zip(indexes, columns.values(), times, strict=False)):
        headers = [(ID, batch + index.to_bytes(4, "big")), source]
        if plain:
            if not position % RUN_EVERY and last - position >= SHORTEST:
                headers.append((RUN, b"%d" % (last - position)))
        else:
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

    def add(self, message: Any, value: bytes) -> None:
        self.values.append(value)
        self.keys.append(message.key())
        self.times.append(message.timestamp()[1])

    def run(self, topic: str, partition: int) -> Run:
        places, headers, expires = range(len(self.values)), self.headers, self.expires
        columns = Columns.of(
            self.values,
            self.keys if any(key is not None for key in self.keys) else None,
            [headers.get(at, NO_HEADERS) for at in places] if headers else None,
            [expires.get(at, 0) for at in places] if expires else None,
        )
        times = self.times
        if min(times) < 0 or max(times) > MOST_TIME_MS:
            times = [min(max(at, 0), MOST_TIME_MS) for at in times]
        return Run(topic, partition, self.base, columns, times, self.batches)


class RunReader:
    """Messages of one partition, as they are read one behind the other, as runs without gaps."""

    def __init__(self, topic: str, partition: int, epoch: int) -> None:
        self._topic = topic
        self._partition = partition
        self._epoch = epoch
        self._announced: tuple[bytes, bytes, int] = b"", b"", -1
        """A batch, its source, and up to which index its records are said to have nothing of their own."""
        self._unreadable: Any = None
        """A message that was looked at ahead, and is not to be asked again."""

    def take(self, messages: Sequence[Any]) -> tuple[list[Run], int]:
        """The next of them; also how many there were that no envelope can be made of."""
        found: list[Run] = []
        building = _Building(-1)
        following = -1
        last_id, last_source, meta = b"", b"", BatchMeta(b"", _FOREIGN, FOREIGN)
        next_index = -1
        expected = b""
        """The id of the record that would be the next of the same batch: nearly always it is."""
        unreadable = at = 0
        while at < len(messages):
            message = messages[at]
            at += 1
            if message is self._unreadable:
                unreadable += 1
                continue
            offset: int = message.offset()
            try:
                headers = headers_of(message)
            except NO_TEXT:
                unreadable += 1
                continue
            value = message.value()
            if offset != following:
                if building.values:
                    found.append(building.run(self._topic, self._partition))
                building = _Building(offset)
                expected = b""
            elif headers is not None and len(headers) == 2 and value is not None:
                (id_name, name), (origin_name, source) = headers
                if name == expected and source == last_source and id_name == ID and origin_name == ORIGIN:
                    following += 1
                    next_index += 1
                    expected = last_id + next_index.to_bytes(4, "big") if next_index < MOST_INDEX else b""
                    building.add(message, value)
                    continue
            following = offset + 1
            place = len(building.values)
            mine: Headers = ()
            known = _known(headers) if headers else None
            if known is not None:
                mine = tuple(_whole(headers[known.count :]))
                if known.expires:
                    building.expires[place] = known.expires
                source, batch, index = known.source, known.batch, known.index
                if batch + index.to_bytes(4, "big") != expected or source != last_source:
                    if batch != last_id or source != last_source:
                        origin, route, delivery = _source(source)
                        meta = BatchMeta(batch, origin, route, delivery)
                    last_id, last_source = batch, source
                    building.batches.append((place, index, meta))
                next_index = index + 1
                if known.run:
                    self._announced = batch, source, index + known.run
            else:
                if headers:
                    mine = tuple(_whole(headers))
                building.batches.append((place, 0, BatchMeta(self._foreign_id(offset), _FOREIGN, FOREIGN)))
                expected, last_id = b"", b""
            if value is None:
                value, mine = b"", (*mine, ABSENT)
            if mine:
                building.headers[place] = mine
            building.add(message, value)
            if known is not None:
                passed = self._pass_over(messages, at, known, building)
                at += passed
                following += passed
                next_index += passed
                expected = last_id + next_index.to_bytes(4, "big") if next_index < MOST_INDEX else b""
        if building.values:
            found.append(building.run(self._topic, self._partition))
        return found, unreadable

    def _pass_over(self, messages: Sequence[Any], at: int, before: _Known, building: _Building) -> int:
        # take what follows without a look at its headers, as far as that was announced and is true; how many these are
        batch, source, until = self._announced
        count = min(until - before.index, len(messages) - at)
        if count < SHORTEST or batch != before.batch or source != before.source:
            return 0
        self._announced = b"", b"", -1  # until it has proved to be true
        taken = messages[at : at + count]
        last = taken[-1]
        if last.offset() != messages[at - 1].offset() + count:
            return 0
        try:
            headers = headers_of(last)
        except NO_TEXT:
            self._unreadable = last
            return 0
        known = _known(headers) if headers else None
        if known is None or (known.batch, known.source, known.index) != (batch, source, before.index + count):
            return 0
        values = [message.value() for message in taken]
        times = [message.timestamp()[1] for message in taken]
        if len(headers) > known.count or None in values or times.count(building.times[-1]) < count:
            return 0
        building.values += values
        building.times += times
        building.keys += [message.key() for message in taken]
        self._announced = batch, source, max(until, known.index + known.run)
        return count

    def _foreign_id(self, offset: int) -> bytes:
        place = b"%d/%d/%d/" % (self._epoch, self._partition, offset) + self._topic.encode()
        return hashlib.blake2b(place, digest_size=ID_BYTES).digest()


class _Known(msgspec.Struct, frozen=True):
    """What a gateway has said of a record."""

    batch: bytes
    index: int
    source: bytes
    count: int
    """How many headers these are."""
    expires: int = 0
    run: int = 0


def _whole(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes]]:
    # Kafka has headers without a value, also behind those of a gateway: anybody may copy these
    return [(key, b"" if header is None else header) for key, header in headers]


def _number(text: bytes) -> int:
    # anybody may have written it: what is longer is no time that there will be, and more than a column holds
    if not text.isdigit() or len(text) > MOST_DIGITS:
        raise ValueError
    return int(text)


def _known(headers: Sequence[tuple[str, bytes | None]]) -> _Known | None:
    # if a gateway has written them
    if len(headers) < 2 or headers[0][0] != ID or headers[1][0] != ORIGIN:
        return None
    name, source = headers[0][1], headers[1][1]
    if name is None or source is None or len(name) != ID_BYTES + 4:
        return None
    batch, index = name[:ID_BYTES], int.from_bytes(name[ID_BYTES:], "big")
    try:
        _source(source)
        more, number = headers[2] if len(headers) > 2 else ("", None)
        if number is not None and more == EXPIRES:
            return _Known(batch, index, source, 3, expires=_number(number))
        if number is not None and more == RUN:
            return _Known(batch, index, source, 3, run=max(0, min(_number(number), MOST_INDEX - 1 - index)))
    except ValueError:  # msgspec's errors are such too
        return None
    return _Known(batch, index, source, 2)
