"""What moves through the house: columns of messages, the batch they arrive in, the run they are read as.

The unit is never a single message. `Columns` holds many messages at once, their values *packed*: each value behind its
length as a big-endian u32, back to back. RustLog, Felix and Fujin carry exactly that layout on the wire, so a batch can
go from a socket to the log and from the log to another socket without its messages ever being touched one by one.
An `Envelope`, one message as an object, is made only when somebody asks for it.
"""

from __future__ import annotations

import enum
import itertools
import operator
import os
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec

from gateway.errors import Truncated

Headers = tuple[tuple[str, bytes], ...]
NO_HEADERS: Headers = ()

T = TypeVar("T")

_LENGTH = struct.Struct(">I")
PREFIX = _LENGTH.size
"""Bytes of the length in front of each packed value."""


MOST_MESSAGES = 100_000
"""Of one request: who sends more is refused before they are told apart. To find where each ends takes 0.1 µs, to take it out
of JSON up to ten times that, and nobody else is served meanwhile.
"""

OBJECT = 48
"""Bytes that Python spends on a short text or on a tuple of two, beside what is in it."""

_WORTH_ONE_NUMBER = 8
"""Of fewer than so many a loop is quicker than `_moved`."""
_ONE = (1).to_bytes(4, sys.byteorder)


def _moved(ends: array[int], by: int) -> array[int]:
    # Each number and `by`; no sum is below zero, or has more than 32 bits. Added to all at once, as one long number of 32 bits
    # for each: no digit borrows from its neighbour, or carries, and it takes a tenth of the time of a loop.
    together = int.from_bytes(ends.tobytes(), sys.byteorder) + by * int.from_bytes(_ONE * len(ends), sys.byteorder)
    moved = array("I")
    moved.frombytes(together.to_bytes(4 * len(ends), sys.byteorder))
    return moved


class Delivery(enum.IntEnum):
    """What the producer asked for."""

    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1


# What is made for each message, or kept with it, is nothing that a cycle could go through: `gc=False` spares the collector
# from looking at all of it, again and again.


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Who sent a batch. The gateway fills it in; nothing a client sends can change it."""

    protocol: str
    listener: str
    principal: str = ""
    client: str = ""
    via: tuple[str, ...] = ()
    """The gateways that it came by before it came to this one, the first one first."""


_TOGETHER = 16
"""Of messages of one size, so many are told apart at once."""
_SMALL, _MANY = 1024, 4096
_FEW = 256


@lru_cache(maxsize=64)
def _evenly(step: int) -> array[int]:
    # where messages of one size end: compared as a whole, in C
    return array("I", range(step, step * _MANY + 1, step))


@lru_cache(maxsize=256)
def _few(step: int, count: int) -> array[int]:
    # as `_evenly`, of runs that come again and again: to count one up takes longer than to join its messages
    return array("I", range(step, step * count + 1, step))


def _even_ends(step: int, count: int) -> array[int]:
    if step <= _SMALL and count <= _MANY:
        return _evenly(step)[:count]
    return array("I", range(step, step * count + 1, step))


def _ends(step: int, count: int) -> array[int]:
    return _few(step, count) if count <= _FEW else _even_ends(step, count)


class Columns:
    """`count` messages as columns. Immutable by convention.

    `packed` is count times (u32 big-endian length, value); `ends[i]` is where message i ends in it. `keys`, `headers`
    and `expires` (milliseconds since the epoch, 0 = never) are None when no message has one.
    """

    __slots__ = ("count", "ends", "expires", "headers", "keys", "packed")

    def __init__(
        self,
        packed: bytes,
        ends: array[int],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        expires: Sequence[int] | None = None,
    ) -> None:
        self.count = len(ends)
        self.packed = packed
        self.ends = ends
        self.keys = keys
        self.headers = headers
        self.expires = expires

    @property
    def step(self) -> int:
        """How far each message ends behind the one before it; 0 where they are not all of one size."""
        ends, count = self.ends, self.count
        if not count:
            return 0
        step: int = ends[0]
        if len(self.packed) != step * count:
            return 0
        return step if ends == _even_ends(step, count) else 0

    @classmethod
    def of(
        cls,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        expires: Sequence[int] | None = None,
    ) -> Columns:
        """Pack a list of values."""
        packed, ends = pack(values)
        return cls(packed, ends, keys, headers, expires)

    @classmethod
    def from_packed(cls, packed: bytes, count: int) -> Columns:
        """Take `count` values that are already packed; raises Truncated unless they fill `packed` exactly."""
        return cls(packed, index_packed(packed, count))

    def __len__(self) -> int:
        return self.count

    @property
    def value_bytes(self) -> int:
        """Total size of the values."""
        return len(self.packed) - PREFIX * self.count

    def beside_values(self) -> int:
        """About how many bytes of memory the keys and headers take."""
        keys = sum(OBJECT + len(key) for key in self.keys if key is not None) if self.keys is not None else 0
        if self.headers is None:
            return keys
        return keys + sum(3 * OBJECT + len(name) + len(value) for one in self.headers for name, value in one)

    def size_of(self, index: int) -> int:
        """Bytes of one value."""
        return self.ends[index] - (self.ends[index - 1] if index else 0) - PREFIX

    def value(self, index: int) -> bytes:
        start = self.ends[index - 1] if index else 0
        return self.packed[start + PREFIX : self.ends[index]]

    def values(self) -> list[bytes]:
        packed = self.packed
        if self.count >= _TOGETHER and (step := self.step):
            return _cut_evenly(packed, step, self.count)
        starts = itertools.chain((0,), self.ends)
        return [packed[start + PREFIX : end] for start, end in zip(starts, self.ends, strict=False)]

    def key(self, index: int) -> bytes | None:
        return self.keys[index] if self.keys is not None else None

    def headers_of(self, index: int) -> Headers:
        return self.headers[index] if self.headers is not None else NO_HEADERS

    def slice(self, start: int, stop: int) -> Columns:
        """Messages [start, stop)."""
        if start == 0 and stop >= self.count:
            return self
        base = self.ends[start - 1] if start else 0
        ends = self.ends[start:stop]
        packed = self.packed[base : ends[-1]] if ends else b""
        if base:
            ends = _moved(ends, -base)
        return Columns(
            packed,
            ends,
            self.keys[start:stop] if self.keys is not None else None,
            self.headers[start:stop] if self.headers is not None else None,
            self.expires[start:stop] if self.expires is not None else None,
        )

    def pick(self, indexes: Sequence[int]) -> Columns:
        """The messages at these indexes, in this order."""
        return Columns.of(
            [self.value(i) for i in indexes],
            [self.keys[i] for i in indexes] if self.keys is not None else None,
            [self.headers[i] for i in indexes] if self.headers is not None else None,
            [self.expires[i] for i in indexes] if self.expires is not None else None,
        )

    @staticmethod
    def concat(parts: Sequence[Columns]) -> Columns:
        """Several columns one after the other."""
        if len(parts) == 1:
            return parts[0]
        return Columns(
            b"".join([part.packed for part in parts]),
            _concat_ends(parts),
            _concat_optional(parts, "keys", None),
            _concat_optional(parts, "headers", NO_HEADERS),
            _concat_optional(parts, "expires", 0),
        )


@lru_cache(maxsize=64)
def _cut(step: int) -> struct.Struct:
    return struct.Struct(f"{PREFIX}x{step - PREFIX}s" * _TOGETHER)


def _cut_evenly(packed: bytes, step: int, count: int) -> list[bytes]:
    # in one call for so many: a slice for each takes four times as long
    values: list[bytes] = []
    cut = _cut(step)
    whole = count - count % _TOGETHER
    for at in range(0, whole * step, cut.size):
        values += cut.unpack_from(packed, at)
    return values + [packed[at + PREFIX : at + step] for at in range(whole * step, count * step, step)]


def _concat_ends(parts: Sequence[Columns]) -> array[int]:
    together = [part.ends for part in parts]
    if together and together.count(together[0]) == len(together) and (step := parts[0].step):
        return _even_ends(step, len(parts) * parts[0].count)  # as from clients that all do the same
    ends = array("I")
    base = 0
    for part in parts:
        if part.count == 1:
            ends.append(base + part.ends[0])
        elif part.count < _WORTH_ONE_NUMBER:
            ends.extend(map(base.__add__, part.ends))
        else:
            ends.extend(_moved(part.ends, base) if base else part.ends)
        base += len(part.packed)
    return ends


def _concat_optional(parts: Sequence[Columns], name: str, missing: T) -> list[T] | None:
    columns = [getattr(part, name) for part in parts]
    if columns.count(None) == len(columns):
        return None
    merged: list[T] = []
    for part, column in zip(parts, columns, strict=True):
        merged.extend(column if column is not None else itertools.repeat(missing, part.count))
    return merged


def pack(values: Sequence[bytes]) -> tuple[bytes, array[int]]:
    """Put each value behind its length; also say where each one ends."""
    if len(values) == 1:
        size = len(values[0])
        return _LENGTH.pack(size) + values[0], _few(PREFIX + size, 1)
    if len(set(map(len, values))) == 1:  # all alike: one join in C instead of a loop, and nothing is copied twice
        size = len(values[0])
        prefix = _LENGTH.pack(size)
        step = PREFIX + size
        return prefix.join((b"", *values)), _ends(step, len(values))
    lengths = list(map(len, values))
    prefixes = map(_LENGTH.pack, lengths)
    packed = b"".join(itertools.chain.from_iterable(zip(prefixes, values, strict=True)))
    return packed, array("I", itertools.accumulate(map(PREFIX.__add__, lengths)))


def index_packed(packed: bytes, count: int) -> array[int]:
    """Where each of `count` packed values ends. Raises Truncated unless they fill the bytes exactly."""
    total = len(packed)
    if count * PREFIX > total:
        raise Truncated("more messages are announced than there are bytes for")
    if count == 0:
        if total:
            raise Truncated("bytes left over after the last message")
        return array("I")
    if count == 1 and _LENGTH.unpack_from(packed)[0] == total - PREFIX:
        return array("I", (total,))
    step, rest = divmod(total, count)
    if not rest and _all_lengths_are(packed, step - PREFIX):
        return array("I", range(step, total + 1, step))
    ends = array("I")
    position = 0
    unpack_from = _LENGTH.unpack_from
    append = ends.append
    for _ in range(count):
        if position + PREFIX > total:
            raise Truncated("a message's length is cut off")
        position += PREFIX + unpack_from(packed, position)[0]
        if position > total:
            raise Truncated("a message is cut off")
        append(position)
    if position != total:
        raise Truncated("bytes left over after the last message")
    return ends


def _all_lengths_are(packed: bytes, size: int) -> bool:
    # whether the bytes are a run of values of one size: four strided compares in C, not a loop over messages
    step = PREFIX + size
    count = len(packed) // step
    prefix = _LENGTH.pack(size)
    for i in range(PREFIX):  # noqa: SIM110 - a generator would be a call for each
        if packed[i::step] != prefix[i : i + 1] * count:
            return False
    return True


class Copies(msgspec.Struct, frozen=True):
    """What the messages of a batch are copies of, when they come from another gateway: what one that is sent again is
    known by.
    """

    source: bytes
    """Sixteen bytes that stand for the log they were read from and who reads it."""
    ranges: Sequence[tuple[int, bytes, int, int]]
    """(first offset there, id of its batch, index in that batch, how many follow each other), in the batch's order."""
    path: tuple[bytes, ...] = ()
    """Sixteen bytes for each gateway that they came by, the one that sends them last: who finds himself there stops them."""
    after: tuple[int, bytes, int] | None = None
    """(offset there, id of its batch, index in that batch) of a message of the same source that was sent before them and not
    answered yet: they are stored behind it, or not at all.
    """

    @property
    def count(self) -> int:
        return sum(one[3] for one in self.ranges)

    @property
    def last(self) -> tuple[int, bytes, int]:
        """What may come `after` them."""
        offset, batch_id, index, count = self.ranges[-1]
        return offset + count - 1, batch_id, index + count - 1


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Messages for one address that arrived together on one connection."""

    address: str
    columns: Columns
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    partition: int | None = None
    """The partition the producer asked for; None lets the topic choose."""
    round_robin: bool = False
    """Without key and partition: spread over the topic's partitions, instead of sticking to one per connection."""
    id: bytes = b""
    """Sixteen bytes, made at the door if empty; with the index it names each message for good."""
    copies: Copies | None = None
    """Set by gateways that forward; never by what a plain client sends."""


class BatchMeta(msgspec.Struct, frozen=True, gc=False):
    """What the log keeps once per stored batch."""

    id: bytes
    origin: Origin
    route: str = ""
    delivery: Delivery = Delivery.AT_LEAST_ONCE


_first_record = operator.itemgetter(0)


class Run(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Consecutive records of one partition, as read from the log."""

    topic: str
    partition: int
    base_offset: int
    columns: Columns
    times: Sequence[int]
    """Store time of each record in milliseconds."""
    batches: Sequence[tuple[int, int, BatchMeta]]
    """(index of the first record, index of that record inside its batch, the batch's meta), ascending."""

    @property
    def count(self) -> int:
        return self.columns.count

    @property
    def next_offset(self) -> int:
        """The offset behind the last record."""
        return self.base_offset + self.columns.count

    def slice(self, start: int, stop: int) -> Run:
        """Records [start, stop) of this run."""
        count = self.columns.count
        if start == 0 and stop >= count:
            return self
        stop = min(stop, count)
        # a merged chunk has as many batches as records: look only at those in question
        known = self.batches
        begin = max(bisect_right(known, start, key=_first_record) - 1, 0)
        end = bisect_left(known, stop, key=_first_record)
        batches = [
            (max(first, start) - start, inner + max(0, start - first), meta) for first, inner, meta in known[begin:end]
        ]
        return Run(
            self.topic,
            self.partition,
            self.base_offset + start,
            self.columns.slice(start, stop),
            self.times[start:stop],
            batches,
        )

    def meta_of(self, index: int) -> tuple[BatchMeta, int]:
        """The batch a record came in, and its index there."""
        first, inner, meta = self.batches[bisect_right(self.batches, index, key=_first_record) - 1]
        return meta, inner + index - first

    def delivered_alike(self, start: int, stop: int) -> int:
        """How far from `start` all ask for the same delivery, `stop` at most."""
        batches = self.batches
        if len(batches) == 1:
            return stop
        at = bisect_right(batches, start, key=_first_record)
        delivery = batches[at - 1][2].delivery
        for first, _inner, meta in itertools.islice(batches, at, None):
            if first >= stop:
                break
            if meta.delivery is not delivery:
                return first
        return stop

    def envelopes(self) -> Iterator[Envelope]:
        """One object per record, for the places that need one."""
        for index in range(self.count):
            meta, inner = self.meta_of(index)
            columns = self.columns
            yield Envelope(
                topic=self.topic,
                partition=self.partition,
                offset=self.base_offset + index,
                key=columns.key(index),
                value=columns.value(index),
                headers=columns.headers_of(index),
                timestamp_ms=self.times[index],
                expires_ms=columns.expires[index] if columns.expires is not None else 0,
                delivery=meta.delivery,
                origin=meta.origin,
                route=meta.route,
                id=meta.id + inner.to_bytes(4, "big"),
            )


class Envelope(msgspec.Struct, frozen=True):
    """One message with everything that is known about it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: Headers
    timestamp_ms: int
    expires_ms: int
    delivery: Delivery
    origin: Origin
    route: str
    id: bytes


class BatchIds:
    """Time-ordered unique batch ids: 48 bits of milliseconds, 24 of a counter, 56 of this process."""

    def __init__(self, process: bytes | None = None) -> None:
        self._process = process if process is not None else os.urandom(7)
        self._counter = itertools.count()

    def next(self, now_ms: int) -> bytes:
        """A new id; ids made later sort later."""
        return (now_ms << 24 | next(self._counter) & 0xFFFFFF).to_bytes(9, "big") + self._process


def total_count(runs: Iterable[Run]) -> int:
    """How many records several runs hold."""
    return sum(run.columns.count for run in runs)
