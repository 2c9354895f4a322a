"""Fujin bytes (Fujin document; wire 1.3, 1.4). Commands have no frame: how long one is only its own parsing tells."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain

import msgspec

from gateway.envelope import Columns, Headers
from gateway.errors import WireError
from gateway.protocols.fujin.wire import mapping
from gateway.protocols.fujin.wire.frames import (
    LARGEST_ACK,
    LARGEST_ERROR,
    LARGEST_MESSAGE,
    LARGEST_NAME,
    LARGEST_READER_ERROR,
    Op,
    ReaderKind,
    Reply,
)

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_OP_U32 = struct.Struct(">BI")
_OP_U32_U32 = struct.Struct(">BII")
_ID = struct.Struct(">QQ")
_MESSAGE_ID = struct.Struct(">BIQQ")
_SIZED_ID = struct.Struct(">IQQ")

ID_SIZE = _ID.size
"""Our message ids: `u64 subscription, u64 tag` (opaque to clients, never empty: wire 0, rule 6)."""

_WRITE = Op.WRITE.value


class Part(msgspec.Struct, frozen=True):
    """The strings of a command that are there, while others are not. With each byte that comes all of them would be read
    again: of sixty thousand that would be seconds of everybody's time for a thousand bytes.
    """

    count: int
    size: int
    """Bytes from the command's beginning to their end."""


class Incomplete(WireError):
    """The command goes on after the bytes that are there; it ends at `wanted` or later. `part`: what need not be read again."""

    def __init__(self, wanted: int, part: Part | None = None) -> None:
        super().__init__(f"{wanted} bytes are needed")
        self.wanted = wanted
        self.part = part


class RefusedCommand(WireError):
    """The command is answered with an error and its stream ends (wire 2)."""

    def __init__(self, reply: bytes) -> None:
        super().__init__(repr(reply))
        self.reply = reply


def need(data: bytes, end: int) -> None:
    if end > len(data):
        raise Incomplete(end)


# --- fields ---


def string(raw: bytes) -> bytes:
    """`u32 length, bytes`."""
    return _U32.pack(len(raw)) + raw


def error_field(text: str | None, largest: int = LARGEST_ERROR) -> bytes:
    """`00`, or `01` and a string (wire 1.3)."""
    return b"\0" if text is None else b"\1" + string(text.encode(errors="replace")[:largest])


def reply(kind: Reply, cid: int, error: str | None = None) -> bytes:
    """A reply of the most common shape: `op, cid, error`."""
    return _OP_U32.pack(kind, cid) + error_field(error)


def strings(
    data: bytes, at: int, count: int, limit: int, refused: Callable[[], WireError], begin: int, part: Part | None
) -> tuple[list[bytes], int]:
    """So many strings, and where they end; they are refused as soon as they would end behind `limit`. The command begins at
    `begin`, and of it `part` was there before.
    """
    found: list[bytes] = []
    there, position = (part.count, begin + part.size) if part is not None else (0, at)
    for left in range(count - there, 0, -1):
        end = position + 4
        if end <= len(data):
            end += _U32.unpack_from(data, position)[0]
            if end > limit:
                raise refused()
        if end + 4 * (left - 1) > len(data):
            raise Incomplete(end + 4 * (left - 1), Part(count - left, position - begin))
        found.append(data[position + 4 : end])
        position = end
    if there:  # kept as bytes of the buffer alone, and not as that many objects beside it
        return strings(data, at, count, limit, refused, begin, None)
    return found, position


# --- commands, to a server ---


def decode_cid(data: bytes, at: int) -> int:
    """The cid of a command; BEGIN, COMMIT and ROLLBACK have nothing else."""
    need(data, at + 5)
    cid: int = _U32.unpack_from(data, at + 1)[0]
    return cid


class ConnectReader(msgspec.Struct, frozen=True):
    """`02, type, auto commit, string name`."""

    kind: ReaderKind
    auto_commit: bool
    name: bytes
    end: int


def decode_connect_reader(data: bytes, at: int) -> ConnectReader:
    """Each field is refused as soon as it is there (wire 2)."""
    need(data, at + 2)
    if data[at + 1] not in (ReaderKind.PUSH, ReaderKind.PULL):
        raise RefusedCommand(reader_reply(mapping.INVALID_READER_TYPE))
    need(data, at + 3)
    if data[at + 2] > 1:
        raise RefusedCommand(reader_reply(mapping.INVALID_AUTO_COMMIT))
    need(data, at + 7)
    size = _U32.unpack_from(data, at + 3)[0]
    if not 0 < size <= LARGEST_NAME:
        raise RefusedCommand(reader_reply(mapping.NO_READER_NAME if not size else mapping.READER_NOT_FOUND))
    end = at + 7 + size
    need(data, end)
    return ConnectReader(ReaderKind(data[at + 1]), bool(data[at + 2]), data[at + 7 : end], end)


def decode_fetch(data: bytes, at: int) -> tuple[int, int]:
    """(cid, how many)."""
    need(data, at + 9)
    _, cid, count = _OP_U32_U32.unpack_from(data, at)
    return cid, count


def decode_settle(data: bytes, at: int, part: Part | None = None) -> tuple[int, list[bytes], int]:
    """(cid, message ids, end) of an ACK or NACK."""
    need(data, at + 9)
    _, cid, count = _OP_U32_U32.unpack_from(data, at)
    if count * (4 + ID_SIZE) > LARGEST_ACK:  # shorter ones are none of ours, and each takes its time to read
        raise WireError("an ACK of more ids than fit")
    ids, end = strings(
        data, at + 9, count, at + LARGEST_ACK, lambda: WireError("an ACK of more bytes than allowed"), at, part
    )
    return cid, ids, end


class WriteRun(msgspec.Struct, frozen=True):
    """Consecutive WRITE commands to one topic."""

    topic: bytes
    columns: Columns
    cids: bytes
    """Four bytes each."""
    end: int


def decode_write_head(data: bytes, at: int) -> int:
    """Where the topic of a WRITE ends; refuses one without a topic (wire 2)."""
    there = len(data)
    if at + 9 > there:
        raise Incomplete(at + 9)
    _, cid, size = _OP_U32_U32.unpack_from(data, at)
    if not size:
        raise RefusedCommand(reply(Reply.WRITE, cid, mapping.NO_WRITER_TOPIC))
    if size > LARGEST_NAME:
        raise RefusedCommand(reply(Reply.WRITE, cid, mapping.TOO_LARGE))
    end = at + 9 + int(size)
    if end > there:
        raise Incomplete(end)
    return end


def has_headers(data: bytes, at: int) -> bool:
    """Whether a WRITE carries headers, from the four bytes behind its topic (wire 1.6)."""
    need(data, at + 4)
    strings: int = _U16.unpack_from(data, at)[0]
    if strings:
        return strings % 2 == 0
    return data[at : at + 4] == b"\0\0\0\0"


def decode_headers(data: bytes, at: int, begin: int, part: Part | None) -> tuple[Headers, int]:
    """`u16 count` strings of a WRITE that begins at `begin`, keys and values in turn; and where they end (wire 1.6)."""
    cid = decode_cid(data, begin)
    need(data, at + 2)
    count = _U16.unpack_from(data, at)[0]
    if count % 2:
        raise RefusedCommand(reply(Reply.WRITE, cid, mapping.BAD_HEADERS))
    found, end = strings(
        data,
        at + 2,
        count,
        at + LARGEST_MESSAGE,
        lambda: RefusedCommand(reply(Reply.WRITE, cid, mapping.TOO_LARGE)),
        begin,
        part,
    )
    try:
        keys = [key.decode() for key in found[::2]]
    except UnicodeDecodeError:
        raise RefusedCommand(reply(Reply.WRITE, cid, mapping.BAD_HEADERS)) from None
    return tuple(zip(keys, found[1::2], strict=True)), end


def scan_writes(data: bytes, at: int, part: Part | None = None, *, headered: bool) -> WriteRun:
    """All WRITE commands from `at` on that are there whole and have the first one's topic. The values stay packed as
    they came: each behind its length. Raises what is wrong with the first one, of which `part` was there before.
    """
    topic_end = decode_write_head(data, at)
    prefix = data[at + 5 : topic_end]
    skip = 5 + len(prefix)
    parts: list[bytes] = []
    ends = array("I")
    cids = bytearray()
    headers: list[Headers] = []
    total = 0
    position = at
    size = len(data)
    unpack_from = _U32.unpack_from
    try:
        while True:
            begin = position + skip
            if headered:
                pairs, begin = decode_headers(data, begin, position, part if position == at else None)
            if begin + 4 > size:
                raise Incomplete(begin + 4)
            length = unpack_from(data, begin)[0]
            if not 0 < length <= LARGEST_MESSAGE:
                text = mapping.TOO_LARGE if length else mapping.NO_MESSAGE
                raise RefusedCommand(reply(Reply.WRITE, decode_cid(data, position), text))
            end = begin + 4 + length
            if end > size:
                raise Incomplete(end)
            if headered:
                headers.append(pairs)
            parts.append(data[begin:end])
            total += 4 + length
            ends.append(total)
            cids += data[position + 1 : position + 5]
            position = end
            if position >= size or data[position] != _WRITE or not data.startswith(prefix, position + 5):
                break
    except WireError:
        if not parts:
            raise
        # what is wrong with a later one is found again when it is the first
    return WriteRun(
        data[at + 9 : topic_end],
        Columns(b"".join(parts), ends, None, headers if any(headers) else None),
        bytes(cids),
        position,
    )


# --- replies, from a server ---


def reader_reply(error: str | None) -> bytes:
    return bytes((Reply.READER,)) + error_field(error, LARGEST_READER_ERROR)


def write_replies(cids: bytes, op: int = Reply.WRITE) -> bytes:
    """`op cid 00` for every cid, column by column."""
    count = len(cids) // 4
    if count == 1:
        return b"%c%b\0" % (op, cids)
    replies = bytearray(6 * count)
    replies[0::6] = bytes((op,)) * count
    for index in range(4):
        replies[1 + index :: 6] = cids[index::4]
    return bytes(replies)


_BLOCK, _LONGEST_ALIKE = 64, 1024
"""Messages of one size, which is what producers mostly send, are taken apart so many at once. Longer ones are mostly copying."""


@lru_cache(maxsize=64)
def _block(size: int) -> Callable[[bytes, int], tuple[bytes, ...]]:
    return struct.Struct(f"{size}s" * _BLOCK).unpack_from


def messages(columns: Columns) -> bytes:
    """MSG for every message, without ids (wire 1.4): the packed values with the op byte in front of each."""
    op, packed, ends, step = bytes((Reply.MESSAGE,)), columns.packed, columns.ends, columns.step
    blocks: list[bytes] = []
    if 0 < step <= _LONGEST_ALIKE:
        unpack = _block(step)
        blocks += [op.join(unpack(packed, at)) for at in range(0, len(packed) - _BLOCK * step + 1, _BLOCK * step)]
    done = len(blocks) * _BLOCK
    rest = ends[done:]
    begin = ends[done - 1] if done else 0
    return op.join(
        (b"", *blocks, *(packed[start:end] for start, end in zip(chain((begin,), rest), rest, strict=False)))
    )


def messages_with_ids(columns: Columns, subscription: int, first_tag: int) -> bytes:
    packed, start = columns.packed, 0
    pack = _MESSAGE_ID.pack
    parts: list[bytes] = []
    for tag, end in enumerate(columns.ends, first_tag):
        parts += (pack(Reply.MESSAGE, ID_SIZE, subscription, tag), packed[start:end])
        start = end
    return b"".join(parts)


def sized_id(subscription: int, tag: int) -> bytes:
    """A message id of ours, with its length."""
    return _SIZED_ID.pack(ID_SIZE, subscription, tag)


def decode_id(raw: bytes) -> tuple[int, int] | None:
    """(subscription, tag) of a message id, None if it is none of ours."""
    if len(raw) != ID_SIZE:
        return None
    subscription, tag = _ID.unpack(raw)
    return subscription, tag


def fetched(cid: int, count: int, items: Iterable[bytes]) -> bytes:
    """FETCH with messages: the error byte before the count (wire 1.5, row 8). Each item is [id and] value, sized."""
    return _OP_U32.pack(Reply.FETCH, cid) + b"\0" + _U32.pack(count) + b"".join(items)


def settled(kind: Reply, cid: int, results: Sequence[tuple[bytes, str | None]]) -> bytes:
    """ACK or NACK with one result per id: `00` is good, `01` and a text is not (wire 1.5, rows 6 and 7)."""
    parts = [_OP_U32.pack(kind, cid), b"\0", _U32.pack(len(results))]
    for raw, error in results:
        parts += (string(raw), error_field(error))
    return b"".join(parts)


# --- commands, from a client ---


def connect_writer(writer_id: bytes = b"") -> bytes:
    """CONNECT WRITER; the empty id is what all dialects agree on (wire 1.5, row 1)."""
    return bytes((Op.CONNECT_WRITER,)) + string(writer_id)


def connect_reader(kind: ReaderKind, name: bytes, *, auto_commit: bool) -> bytes:
    return bytes((Op.CONNECT_READER, kind, auto_commit)) + string(name)


def command(op: Op, cid: int) -> bytes:
    return _OP_U32.pack(op, cid)


def write(cid: int, topic: bytes, message: bytes, headers: Headers | None = None) -> bytes:
    """WRITE; `headers` is None where the peer knows none (wire 1.5, row 2)."""
    parts = [_OP_U32.pack(Op.WRITE, cid), string(topic)]
    if headers is not None:
        parts.append(_U16.pack(2 * len(headers)))
        for key, value in headers:
            parts += (string(key.encode()), string(value))
    parts.append(string(message))
    return b"".join(parts)


def fetch(cid: int, count: int) -> bytes:
    return _OP_U32_U32.pack(Op.FETCH, cid, count)


def settle(op: Op, cid: int, ids: Sequence[bytes]) -> bytes:
    return _OP_U32_U32.pack(op, cid, len(ids)) + b"".join(map(string, ids))
