"""Binary payloads: publish batches, their acknowledgements, event batches. Messages are never touched one by one.

A batch of messages on the wire is the packed layout of `Columns` already (Felix document, Binary Format Specification).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator

import msgspec

from gateway.envelope import MOST_MESSAGES, PREFIX, Columns, Copies, index_packed
from gateway.errors import Truncated, WireError
from gateway.protocols.felix.wire.frames import (
    ACK,
    ACKED,
    BATCH,
    BETWEEN_GATEWAYS,
    COPIES,
    EVENTS,
    HEADER,
    MAGIC,
    OFFSETS,
    SHARED_EVENTS,
    VERSION,
    frame,
)

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_REQUEST = struct.Struct(">QB")  # request id, acknowledgement mode
_COPIES = struct.Struct(">16sI")  # source, number of ranges
_RANGE = struct.Struct(">Q16sII")  # first offset, batch id, index in it, how many
_AFTER = struct.Struct(">Q16sI")  # offset, batch id, index in it
_ACK = struct.Struct(">BQH")  # status, request id, length of the text
_ACK_FRAME = struct.Struct(">IHHIBQH")  # the same behind its header

ACK_MODES = frozenset({1, 2})
"""per_message and per_batch (Felix wire 1.2)."""

PER_BATCH = 2

TOO_MANY = f"more than {MOST_MESSAGES} messages"


class MalformedBatch(WireError):
    """malformed publish batch"""


class Names(msgspec.Struct, frozen=True):
    """tenant, namespace and stream."""

    tenant: str
    namespace: str
    stream: str


def names_end(data: bytes, start: int, end: int) -> int:
    """Where the three names that begin at `start` end."""
    position = start
    for _ in range(3):
        if position + 2 > end:
            raise MalformedBatch
        position += 2 + (data[position] << 8 | data[position + 1])
    if position > end:
        raise MalformedBatch
    return position


def decode_names(head: bytes) -> Names:
    """The three names that fill `head`."""
    parts = []
    position = 0
    for _ in range(3):
        size = _U16.unpack_from(head, position)[0]
        position += 2 + size
        parts.append(head[position - size : position])
    try:
        return Names(*(part.decode() for part in parts))
    except UnicodeDecodeError:
        raise MalformedBatch("malformed publish batch: a name is not UTF-8") from None


def decode_values(data: bytes, start: int, end: int) -> Columns:
    """Count and payloads. Bytes behind the last payload are ignored (Felix wire 2.8)."""
    if start + 4 > end:
        raise MalformedBatch
    (count,) = _U32.unpack_from(data, start)
    if count > MOST_MESSAGES:
        raise MalformedBatch(f"malformed publish batch: {TOO_MANY}")
    start += 4
    if count * PREFIX > end - start:  # before anything is allocated
        raise MalformedBatch
    packed = data[start:end]
    try:
        return Columns(packed, index_packed(packed, count))
    except Truncated:
        return _with_rest(packed, count)


def _with_rest(packed: bytes, count: int) -> Columns:
    position, size = 0, len(packed)
    ends = array("I")
    for _ in range(count):
        if position + PREFIX > size:
            raise MalformedBatch
        position += PREFIX + _U32.unpack_from(packed, position)[0]
        if position > size:
            raise MalformedBatch
        ends.append(position)
    return Columns(packed[:position], ends)


def decode_request(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Request id and acknowledgement mode in front of a batch with flag ACKED."""
    if start + _REQUEST.size > end:
        raise MalformedBatch
    request_id, mode = _REQUEST.unpack_from(data, start)
    return request_id, mode


REQUEST_SIZE = _REQUEST.size


def encode_names(names: Names) -> bytes:
    """The three names; WireError when one is too long for its length."""
    parts = []
    for name in (names.tenant, names.namespace, names.stream):
        raw = name.encode()
        if len(raw) > 0xFFFF:
            raise WireError("a name is longer than 65535 bytes")
        parts += [_U16.pack(len(raw)), raw]
    return b"".join(parts)


def decode_copies(data: bytes, start: int, end: int, *, after: bool = False) -> tuple[Copies, int]:
    """What the messages of a batch with flag COPIES are copies of (with AFTER: and after which message), and where the names
    begin. A range of no messages names, in the place of a batch, a gateway that they came by.
    """
    if start + _COPIES.size + (_AFTER.size if after else 0) > end:
        raise MalformedBatch
    source, count = _COPIES.unpack_from(data, start)
    start += _COPIES.size
    before = None
    if after:
        before = _AFTER.unpack_from(data, start)
        start += _AFTER.size
    following = start + count * _RANGE.size
    if following > end:
        raise MalformedBatch
    if count > MOST_MESSAGES:
        raise MalformedBatch(f"malformed publish batch: {TOO_MANY}")
    said = tuple(_RANGE.iter_unpack(data[start:following]))
    ranges = tuple(one for one in said if one[3])
    path = tuple(one[1] for one in said if not one[3]) if len(ranges) < len(said) else ()
    return Copies(source, ranges, path, before), following


def encoded_size(copies: Copies) -> int:
    """At most."""
    return _COPIES.size + _AFTER.size + (len(copies.ranges) + len(copies.path)) * _RANGE.size


def encode_copies(copies: Copies) -> bytes:
    parts = [_COPIES.pack(copies.source, len(copies.ranges) + len(copies.path))]
    if copies.after is not None:
        parts.append(_AFTER.pack(*copies.after))
    parts += [_RANGE.pack(0, gateway, 0, 0) for gateway in copies.path]
    parts += [_RANGE.pack(*one) for one in copies.ranges]
    return b"".join(parts)


def encode_batch(names: bytes, columns: Columns, request_id: int | None = None, copies: Copies | None = None) -> bytes:
    """A whole frame: a publish batch, with an acknowledgement asked for when it has a request id."""
    head = b"" if request_id is None else _REQUEST.pack(request_id, PER_BATCH)
    flags = BATCH if request_id is None else BATCH | ACKED
    if copies is not None:
        head += encode_copies(copies)
        flags |= COPIES if copies.after is None else BETWEEN_GATEWAYS
    size = len(head) + len(names) + 4 + len(columns.packed)
    header = HEADER.pack(MAGIC, VERSION, flags, size)
    return b"".join((header, head, names, _U32.pack(columns.count), columns.packed))


def encode_ack(request_id: int, error: str | None = None) -> bytes:
    """A whole frame: the acknowledgement of a binary publish (Felix wire 1.2)."""
    if error is None:
        return _ACK_FRAME.pack(MAGIC, VERSION, ACK, _ACK.size, 0, request_id, 0)
    raw = error.encode()[:0xFFFF].decode(errors="ignore").encode()
    return frame(_ACK.pack(1, request_id, len(raw)) + raw, ACK)


def decode_ack(payload: bytes) -> tuple[int, str | None]:
    """Request id, and the error's text if it failed."""
    if len(payload) < _ACK.size:
        raise WireError("malformed acknowledgement")
    status, request_id, size = _ACK.unpack_from(payload)
    if len(payload) < _ACK.size + size or status > 1:
        raise WireError("malformed acknowledgement")
    text = payload[_ACK.size : _ACK.size + size].decode(errors="replace")
    return request_id, text if status else None


def encode_events(
    columns: Columns, subscription: int | None, base_offset: int | None, *, most: int, most_bytes: int
) -> Iterator[bytes]:
    """Whole frames of at most `most` events and, but for a single one, `most_bytes` each: slices of what is packed.

    Without a subscription's id the frames are shared ones; with the first offset they carry offsets.
    """
    ends, packed, count = columns.ends, columns.packed, columns.count
    flags = (SHARED_EVENTS if subscription is None else EVENTS) | (0 if base_offset is None else OFFSETS)
    id_bytes = b"" if subscription is None else _U64.pack(subscription)
    first = base = 0
    while first < count:
        stop = min(first + most, count)
        while stop - first > 1 and ends[stop - 1] - base > most_bytes:
            stop = first + (stop - first) // 2
        end = ends[stop - 1]
        offset = b"" if base_offset is None else _U64.pack(base_offset + first)
        size = len(id_bytes) + len(offset) + 4 + end - base
        header = HEADER.pack(MAGIC, VERSION, flags, size)
        yield b"".join((header, id_bytes, offset, _U32.pack(stop - first), packed[base:end]))
        first, base = stop, end


def decode_events(payload: bytes, flags: int) -> tuple[int | None, int | None, Columns]:
    """Subscription id and first offset, where the flags say there is one, and the events."""
    position = 0
    subscription = base_offset = None
    try:
        if flags & EVENTS:
            (subscription,) = _U64.unpack_from(payload, position)
            position += 8
        if flags & OFFSETS:
            (base_offset,) = _U64.unpack_from(payload, position)
            position += 8
        return subscription, base_offset, decode_values(payload, position, len(payload))
    except (struct.error, MalformedBatch):
        raise WireError("malformed event batch") from None
