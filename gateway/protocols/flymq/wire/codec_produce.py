"""PRODUCE: all the frames of one read that go to one topic and partition are read, and answered, in one pass.

Request: str topic, bytes key, bytes value, i32 partition. Answer: RecordMetadata (FlyMQ document, PRODUCE). A value
travels behind its u32 length, which is how the log keeps it: the slices of a read are joined and never looked at again.
"""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, repeat

import msgspec

from gateway.envelope import Batch, Columns
from gateway.errors import TooLarge, WireError
from gateway.protocols.flymq.wire.codec import REQUESTS
from gateway.protocols.flymq.wire.frames import HEADER, HEADER_SIZE, MAGIC, VERSION, Op
from gateway.requests import Published

WORD = MAGIC << 24 | VERSION << 16 | Op.PRODUCE << 8
"""A PRODUCE header's first four bytes as a number; the flags are added: 0x01, or 0x00 from one shipped client."""
FLAGGED = WORD | 1
MAX_KEY = 65_535
"""A key picks the partition by a hash over all its bytes: a bound keeps that a matter of milliseconds."""

_PAIR = struct.Struct(">II")
_U32 = struct.Struct(">I")
_METADATA_SIZE = 28
KEPT, LONGEST_KEPT = 4096, 512
"""Topics that are remembered, and bytes of their names: longer ones are not worth it, and would be as much as somebody likes."""


class ProduceTarget:
    """A topic as it is written to: its name in bytes, and its answer's beginning, both made once (`target_of`)."""

    __slots__ = ("_head", "_pack", "address", "least", "prefix", "unpack", "value_at")

    def __init__(self, prefix: bytes) -> None:
        try:
            self.address = prefix[2:].decode()
        except UnicodeDecodeError:
            raise WireError("invalid binary format") from None
        self.prefix = prefix
        self.unpack = struct.Struct(f">II{len(prefix)}sII").unpack_from
        """Of a frame without a key all but the value and the partition."""
        self.value_at = HEADER_SIZE + len(prefix) + 4
        self.least = self.value_at + 8
        self._head = HEADER.pack(MAGIC, VERSION, Op.PRODUCE, 1, len(prefix) + _METADATA_SIZE) + prefix
        self._pack = struct.Struct(f">{len(self._head)}siQqii").pack

    def answer(self, published: Published, index: int, key_size: int, value_size: int) -> bytes:
        if published.scattered is None:
            partition, offset = published.partition, published.base_offset + index
        else:
            partition, offset = published.scattered[index]
        return self._pack(self._head, partition, offset, published.timestamp_ms, key_size, value_size)

    def answers(self, published: Published, key_sizes: Sequence[int] | None, sizes: Sequence[int]) -> bytes:
        """The answers to all frames of a run, none of them refused."""
        keys = key_sizes if key_sizes is not None else repeat(-1)
        if published.scattered is not None:
            pack, head, time = self._pack, self._head, published.timestamp_ms
            places = zip(published.scattered, keys, sizes, strict=False)
            return b"".join([pack(head, part, offset, time, key, size) for (part, offset), key, size in places])
        first = published.base_offset
        return b"".join(
            map(
                self._pack,
                repeat(self._head),
                repeat(published.partition),
                range(first, first + len(sizes)),
                repeat(published.timestamp_ms),
                keys,
                sizes,
            )
        )


_kept = functools.lru_cache(KEPT)(ProduceTarget)


def target_of(prefix: bytes) -> ProduceTarget:
    """Of a name behind its length. The last ones are kept, for all connections together: many of them write to one topic."""
    return _kept(prefix) if len(prefix) <= LONGEST_KEPT else ProduceTarget(prefix)


class ProduceRun(msgspec.Struct, eq=False):
    """Consecutive PRODUCE frames to one target and partition."""

    target: ProduceTarget
    partition: int
    pieces: list[bytes]
    keys: list[bytes | None] | None
    slot: int = -1
    """The place of its answers among all answers."""

    def batch(self) -> Batch:
        pieces = self.pieces
        if len(pieces) == 1:
            packed = pieces[0]
            ends = array("I", (len(packed),))
        else:
            packed = b"".join(pieces)
            ends = array("I", accumulate(map(len, pieces)))
        columns = Columns(packed, ends, self.keys)
        if self.partition == -1:
            return Batch(self.target.address, columns, round_robin=True)
        return Batch(self.target.address, columns, partition=self.partition)

    def sizes(self) -> list[int]:
        return [len(piece) - 4 for piece in self.pieces]

    def key_sizes(self) -> list[int] | None:
        """The size of each key, -1 where there is none; None if there is none at all."""
        return [len(key) if key else -1 for key in self.keys] if self.keys is not None else None


class Collector:
    """Reads runs of PRODUCE frames. One per connection: it remembers the topic of the last one."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: ProduceTarget | None = None

    def collect(self, data: bytes, position: int) -> tuple[ProduceRun | None, int]:
        """The run that starts with the PRODUCE frame at `position`, and where it ends.

        None if that frame is not whole or not well formed: the slow way says why.
        """
        first = position
        size = len(data)
        pair = _PAIR.unpack_from
        word, length = pair(data, position)
        start = position + HEADER_SIZE
        end = start + length
        if end > size or length < 2:
            return None, position
        skip = 2 + (data[start] << 8 | data[start + 1])
        if length < skip + 12:
            return None, position
        prefix = data[start : start + skip]
        where = b""
        pieces: list[bytes] = []
        keys: list[bytes | None] | None = None
        while True:
            at = start + skip
            key_size, value_size = pair(data, at)
            if key_size:
                # A key pushes the value's length back, and so must lie inside the frame before that is read.
                if key_size > MAX_KEY or at + key_size + 12 > end:
                    break
                value_size = _U32.unpack_from(data, at + 4 + key_size)[0]
                if keys is None:
                    keys = [None] * len(pieces)
            value_at = at + 4 + key_size
            value_end = value_at + 4 + value_size
            if value_end + 4 > end:
                break
            if data[value_end : value_end + 4] != where:
                if pieces:
                    break
                where = data[value_end : value_end + 4]
            if not pieces and not key_size and value_end + 4 == end and end + end - first <= size:
                pieces = _alike(data, first, value_at, end)
                end = first + (end - first) * len(pieces)
            else:
                pieces.append(data[value_at:value_end])
                if keys is not None:
                    keys.append(data[at + 4 : value_at] if key_size else None)
            position = end
            start = end + HEADER_SIZE
            if start > size:
                break
            following, length = pair(data, end)
            end = start + length
            if following != word or end > size or length < skip + 12 or not data.startswith(prefix, start):
                break
        if not pieces:
            return None, position
        target = self._last
        if target is None or target.prefix != prefix:
            try:
                target = self._last = target_of(prefix)
            except WireError:
                return None, first
        return ProduceRun(target, int.from_bytes(where, "big", signed=True), pieces, keys), position

    def lone(self, data: bytes) -> ProduceRun | None:
        """The run of a read that is one PRODUCE, without a key, to where the one before it went. None of any other: `collect`
        finds what it is.
        """
        target, size = self._last, len(data)
        if target is None or size < target.least:
            return None
        word, length, prefix, key_size, value_size = target.unpack(data)
        if (
            word != FLAGGED
            or length + HEADER_SIZE != size
            or prefix != target.prefix
            or key_size
            or value_size + target.least != size
        ):
            return None
        partition = int.from_bytes(data[-4:], "big", signed=True)
        return ProduceRun(target, partition, [data[target.value_at : -4]], None) if partition >= -1 else None

    def single(self, payload: bytes) -> ProduceRun:
        """The run of one frame that came compressed or did not read well: raises what is wrong with it."""
        topic, key, value, partition = REQUESTS[Op.PRODUCE].decode(payload)
        if len(key) > MAX_KEY:
            raise TooLarge(f"key too large: {len(key)} bytes, at most {MAX_KEY}")
        target = target_of(payload[: 2 + len(topic.encode())])
        return ProduceRun(target, partition, [_U32.pack(len(value)) + value], [key] if key else None)


def _alike(data: bytes, first: int, value_at: int, end: int) -> list[bytes]:
    # The values, behind their lengths, of the frame at `first` and of those after it that differ in nothing else.
    #
    # Producers mostly send messages of one size: then each frame is the same bytes around its value, and one compare a frame
    # in C will do. What is compared reaches over the border of two frames: the partition that ends one, and the header,
    # topic and lengths that begin the next.
    step = end - first
    frames = (len(data) - first) // step
    border = data[end - 4 : end] + data[first : value_at + 4]
    same = list(map(data.startswith, repeat(border), range(end - 4, first + frames * step - 4, step)))
    count = same.index(False) + 1 if False in same else frames
    last = first + count * step
    if not data.startswith(border[:4], last - 4):
        count -= 1  # its border with the next frame was not looked at
    width = step - 4 - (value_at - first)
    return [data[at : at + width] for at in range(value_at, first + count * step, step)]
