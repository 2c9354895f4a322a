"""FETCH's answer, in the document's order and in the one every shipped peer uses (FlyMQ document, FETCH; wire 2.2).

document: u32 count, count times (bytes key, bytes value, u64 offset), u64 next offset
server:   u32 count, u64 next offset, count times (u64 offset, bytes key, bytes value)

The log keeps each value behind its u32 length, just as it goes out here, so a record costs a slice and a head.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, repeat
from typing import TypeVar

from gateway.envelope import Columns, Run
from gateway.errors import TooLarge, Truncated, WireError
from gateway.protocols.flymq.wire.frames import HEADER_SIZE, MAX_PAYLOAD, Op, header
from gateway.wire.encodings import ENCODINGS
from gateway.wire.ordering import Answer, answer_of
from gateway.wire.reader import Reader
from gateway.wire.session import Buffer

ENVELOPE = 12
"""Count and next offset."""
OVERHEAD = 16
"""What a record costs beside its key and value: offset and two lengths."""
ANSWER_LIMIT = 24 << 20
"""An answer above 32 MiB desynchronises the shipped clients for good; only a single record may make one this long."""
FETCH_BYTES = 8 << 20
"""What is read from the log for one FETCH."""

_OFFSET = struct.Struct(">Q")
_COUNT = struct.Struct(">I")
_HEAD = struct.Struct(">QI")
_SERVER_HEADER = struct.Struct(">IQ")
_NO_KEY = b"\x00\x00\x00\x00"

_BLOCK = 64
"""Records without keys and of one size, which is what producers mostly send, are put together this many at a time."""
_LONGEST_ALIKE = 1024
"""Bytes. Longer values are mostly copying."""
_LARGE = 4096
"""Bytes. Values that are longer, one with the other, stay where they are until they are sent."""
_MOST_ALIKE = 2048
"""Records of a run that are looked at in this way."""

P = TypeVar("P", bytes, memoryview)

Record = tuple[int, bytes | None, bytes]
"""(offset, key, value)."""


def fit(runs: Sequence[Run], next_offset: int, limit: int = ANSWER_LIMIT) -> tuple[Sequence[Run], int]:
    """The records that one answer may hold, and where to read on. Raises TooLarge if the first one alone never fits."""
    left = limit - ENVELOPE
    whole: list[Run] = []
    for run in runs:
        columns = run.columns
        keys = sum(len(key) for key in columns.keys if key) if columns.keys is not None else 0
        size = len(columns.packed) + keys + (OVERHEAD - 4) * columns.count
        if size <= left:
            left -= size
            whole.append(run)
            continue
        count = _how_many(columns, left)
        if count == 0 and not whole:
            _check_single(run)
            count = 1
        if count:
            whole.append(run.slice(0, count))
        return whole, run.base_offset + count
    return whole, next_offset


def _how_many(columns: Columns, left: int) -> int:
    start = 0
    for index, end in enumerate(columns.ends):
        left -= end - start + len(columns.key(index) or b"") + OVERHEAD - 4
        if left < 0:
            return index
        start = end
    return columns.count


def _check_single(run: Run) -> None:
    size = ENVELOPE + OVERHEAD + len(run.columns.key(0) or b"") + run.columns.ends[0] - 4
    if size > MAX_PAYLOAD:
        at = run.base_offset
        raise TooLarge(f"message too large: offset {at} does not fit a FETCH, CONSUME it and go on at {at + 1}")


def answer(op: Op, runs: Sequence[Run], next_offset: int, *, server: bool) -> Answer:
    """The whole frame."""
    pieces = _pieces(runs, next_offset, server=server)
    size = sum(map(len, pieces))
    return answer_of([header(op, size), *pieces], HEADER_SIZE + size)


def encode(runs: Sequence[Run], next_offset: int, *, server: bool) -> bytes:
    """The payload."""
    return b"".join(_pieces(runs, next_offset, server=server))


def _pieces(runs: Sequence[Run], next_offset: int, *, server: bool) -> Sequence[Buffer]:
    count = sum(run.columns.count for run in runs)
    pieces: list[Buffer] = [_SERVER_HEADER.pack(count, next_offset) if server else _COUNT.pack(count)]
    for run in runs:
        columns = run.columns
        if len(columns.packed) > _LARGE * columns.count:
            pieces += _one_by_one(run, memoryview(columns.packed), server=server)
        elif columns.keys is None and run.count >= _BLOCK:  # who follows a topic asks for what others ask for
            pieces += ENCODINGS.of(run, ("flymq", server), partial(_records, server=server))
        else:
            pieces += _records(run, server=server)
    if not server:
        pieces.append(_OFFSET.pack(next_offset))
    return pieces


def _records(run: Run, *, server: bool) -> list[bytes]:
    pieces, done = _blocks(run, server=server)
    if done < run.columns.count:
        rest = run.slice(done, run.columns.count)
        pieces.extend(_one_by_one(rest, rest.columns.packed, server=server))
    return pieces


class _Alike:
    """Packed values of one size: where they end in a run, and how a block of them is read and written."""

    __slots__ = ("document", "ends", "server", "values")

    def __init__(self, size: int) -> None:
        self.ends = array("I", range(size, size * _MOST_ALIKE + 1, size))
        self.values = struct.Struct(f"{size}s" * _BLOCK).unpack_from
        self.server = struct.Struct(">" + f"Q4x{size}s" * _BLOCK).pack
        self.document = struct.Struct(">" + f"4x{size}sQ" * _BLOCK).pack


_alike = lru_cache(maxsize=64)(_Alike)


def _blocks(run: Run, *, server: bool) -> tuple[list[bytes], int]:
    # records at the beginning of a run in blocks, and how many these are; none if they differ in size
    columns = run.columns
    count = min(columns.count, _MOST_ALIKE) // _BLOCK * _BLOCK
    if not count or columns.keys is not None or columns.ends[0] > _LONGEST_ALIKE:
        return [], 0
    size = columns.ends[0]
    alike = _alike(size)
    if columns.ends[:count] != alike.ends[:count]:
        return [], 0
    packed, base, values = columns.packed, run.base_offset, alike.values
    pairs = (
        (range(base + first, base + first + _BLOCK), values(packed, first * size)) for first in range(0, count, _BLOCK)
    )
    if server:
        pack = alike.server
        return [pack(*chain.from_iterable(zip(offsets, block, strict=True))) for offsets, block in pairs], count
    pack = alike.document
    return [pack(*chain.from_iterable(zip(block, offsets, strict=True))) for offsets, block in pairs], count


def _one_by_one(run: Run, packed: P, *, server: bool) -> Iterator[bytes | P]:
    # `packed`: those of the run, or a view of them
    columns = run.columns
    values = [packed[start:end] for start, end in zip(chain((0,), columns.ends), columns.ends, strict=False)]
    offsets = range(run.base_offset, run.next_offset)
    if columns.keys is None:
        if server:
            return chain.from_iterable(zip(map(_HEAD.pack, offsets, repeat(0)), values, strict=False))
        return chain.from_iterable(zip(repeat(_NO_KEY), values, map(_OFFSET.pack, offsets), strict=False))
    keys = [key or b"" for key in columns.keys]
    if server:
        return chain.from_iterable(zip(map(_HEAD.pack, offsets, map(len, keys)), keys, values, strict=True))
    lengths = map(_COUNT.pack, map(len, keys))
    return chain.from_iterable(zip(lengths, keys, values, map(_OFFSET.pack, offsets), strict=True))


def decode(payload: bytes, requested: int) -> tuple[list[Record], int]:
    """(records, next offset) in whichever order they came: the server's is believed only if it fills the payload and
    every offset lies in [requested, next) (FlyMQ wire 2.3).
    """
    try:
        records, following, left = _decode_server(Reader(payload))
    except WireError:
        pass
    else:
        if not left and all(requested <= offset < following for offset, _, _ in records):
            return records, following
    try:
        return _decode_document(Reader(payload))
    except Truncated:
        raise Truncated("buffer too small") from None


def _decode_server(reader: Reader) -> tuple[list[Record], int, int]:
    count = reader.count32(OVERHEAD)
    following = reader.u64()
    records = [(reader.u64(), reader.bytes32() or None, reader.bytes32()) for _ in range(count)]
    return records, following, reader.left


def _decode_document(reader: Reader) -> tuple[list[Record], int]:
    records: list[Record] = []
    for _ in range(reader.count32(OVERHEAD)):
        key, value = reader.bytes32() or None, reader.bytes32()
        records.append((reader.u64(), key, value))
    return records, reader.u64()


def to_columns(records: Sequence[Record]) -> Columns:
    keys = [key for _, key, _ in records]
    values = [value for _, _, value in records]
    return Columns.of(values, keys if any(key is not None for key in keys) else None)
