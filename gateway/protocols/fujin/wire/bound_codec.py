"""Fujin bytes of the dialects that bind, as a server reads and writes them (wire 6.2). What a client reads and writes is in
`bound_client`. Commands have no frame; the types are those of the seed's dialect.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat

import attrs

from gateway.envelope import NO_HEADERS, Columns, Headers
from gateway.errors import WireError
from gateway.protocols.fujin.wire.bound_frames import (
    FORMAT,
    LARGEST_BIND,
    LONGEST_NAME,
    LONGEST_ROUTE,
    MOST_VERSIONS,
    VERSION,
    VERSION_IN_WORDS,
    Applied,
    BoundOp,
    BoundReply,
    Code,
    Failure,
    RouteProfile,
)
from gateway.protocols.fujin.wire.bound_headers import put_in
from gateway.protocols.fujin.wire.codec import Part, need, string, strings
from gateway.protocols.fujin.wire.frames import LARGEST_ACK, LARGEST_MESSAGE

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_OP_U32 = struct.Struct(">BI")
_ID = struct.Struct(">BII")

ID_FORM = 1
ID_SIZE = _ID.size
"""Message ids: their form, the reader's incarnation, a sequence (wire 6.2); nothing of an adapter's is behind that."""


class RefusedBound(WireError):
    """A command is answered with a failure, which ends its session; or, with an `end`, is passed over up to there."""

    def __init__(self, reply: bytes, end: int | None = None) -> None:
        super().__init__(repr(reply))
        self.reply = reply
        self.end = end


# --- the envelope ---


def envelope(failure: Failure) -> bytes:
    """`status, outcome, string reason, string message, u16 details, pairs` (wire 6.2). Details go by their keys."""
    parts = [bytes((failure.code, failure.applied)), string(failure.reason.encode()), _text(failure.message)]
    parts.append(_U16.pack(len(failure.details)))
    for key, value in sorted(failure.details):
        parts += (string(key.encode()), _text(value))
    return b"".join(parts)


def _text(text: str) -> bytes:
    return string(text.encode(errors="replace")[:LONGEST_ROUTE])


def failed(kind: BoundReply, cid: int, failure: Failure) -> bytes:
    return _OP_U32.pack(kind, cid) + envelope(failure)


def done(kind: BoundReply, cid: int, rest: bytes = b"") -> bytes:
    return _OP_U32.pack(kind, cid) + b"\0" + rest


def mistake(message: str) -> Failure:
    """What the original says of a command that cannot be read on; nothing of it has happened, and this says so."""
    return Failure(Code.UNKNOWN, Applied.NO, "UNKNOWN", message)


# --- HELLO and BIND ---


@attrs.frozen
class Hello:
    """`00, format, u8 count, versions, string name, string build`."""

    versions: bytes
    name: str
    build: str
    end: int


def hello_failed(code: Code, reason: str, message: str) -> bytes:
    details = (("server_protocol_version", VERSION_IN_WORDS),)
    return bytes((BoundReply.HELLO,)) + envelope(Failure(code, Applied.NO, reason, message, details))


def hello_done(build: str) -> bytes:
    return bytes((BoundReply.HELLO, Code.OK, FORMAT, VERSION)) + string(build.encode())


def decode_hello(data: bytes, at: int) -> Hello:
    """Each field is refused as soon as it is there."""
    need(data, at + 2)
    if data[at + 1] != FORMAT:  # what follows may be laid out in any way
        raise RefusedBound(hello_failed(Code.UNIMPLEMENTED, "HELLO_FORMAT_UNSUPPORTED", "unsupported HELLO format"))
    need(data, at + 3)
    count = data[at + 2]
    if not 0 < count <= MOST_VERSIONS:
        raise _bad_hello("1 to 16 versions are expected")
    need(data, at + 3 + count)
    versions = data[at + 3 : at + 3 + count]
    if 0 in versions:
        raise _bad_hello("0 is no version")
    name, position = _short(data, at + 3 + count)
    build, position = _short(data, position)
    if VERSION not in versions:
        raise RefusedBound(
            hello_failed(Code.UNIMPLEMENTED, "PROTOCOL_VERSION_UNSUPPORTED", "no mutually supported protocol version")
        )
    return Hello(versions, name, build, position)


def _bad_hello(message: str) -> RefusedBound:
    return RefusedBound(hello_failed(Code.INVALID_ARGUMENT, "INVALID_HELLO", message))


def _short(data: bytes, at: int) -> tuple[str, int]:
    need(data, at + 4)
    size = _U32.unpack_from(data, at)[0]
    if not 0 < size <= LONGEST_NAME:
        raise _bad_hello("a client's name and build have 1 to 256 bytes")
    need(data, at + 4 + size)
    return data[at + 4 : at + 4 + size].decode(errors="replace"), at + 4 + int(size)


@attrs.frozen
class Bind:
    """`01, string connector, u16 pairs of meta, u16 pairs of overrides`."""

    connector: str
    meta: tuple[tuple[str, str], ...] = attrs.field(repr=False)
    overrides: tuple[tuple[str, str], ...]
    end: int


def decode_bind(data: bytes, at: int) -> Bind:
    raw, position = _field(data, at + 1, at)
    meta, position = _pairs(data, position, at)
    overrides, position = _pairs(data, position, at)
    return Bind(raw.decode(errors="replace"), meta, overrides, position)


def _field(data: bytes, at: int, begin: int) -> tuple[bytes, int]:
    # a string of a BIND, which is bounded as a whole
    need(data, at + 4)
    end = at + 4 + _U32.unpack_from(data, at)[0]
    if end - begin > LARGEST_BIND:
        raise RefusedBound(bind_failed(mistake("a BIND of more bytes than allowed")))
    need(data, end)
    return data[at + 4 : end], end


def _pairs(data: bytes, at: int, begin: int) -> tuple[tuple[tuple[str, str], ...], int]:
    need(data, at + 2)
    count, position = _U16.unpack_from(data, at)[0], at + 2
    pairs: list[tuple[str, str]] = []
    if position + 8 * count - begin > LARGEST_BIND:
        raise RefusedBound(bind_failed(mistake("a BIND of more bytes than allowed")))
    for left in range(count, 0, -1):
        need(data, position + 8 * left)
        key, position = _field(data, position, begin)
        value, position = _field(data, position, begin)
        pairs.append((key.decode(errors="replace"), value.decode(errors="replace")))
    return tuple(pairs), position


def bind_failed(failure: Failure) -> bytes:
    return bytes((BoundReply.BIND,)) + envelope(failure)


def bind_done(routes: Sequence[RouteProfile]) -> bytes:
    """Every route's profile, by their names' bytes."""
    parts = [bytes((BoundReply.BIND, Code.OK)), _U32.pack(len(routes))]
    for name, route in sorted((route.name.encode(), route) for route in routes):
        parts += (string(name), bytes((route.can, route.guarantee, route.acknowledges, route.nack)))
    return b"".join(parts)


# --- producing ---


PRODUCE_REPLIES = {
    BoundOp.PRODUCE.value: BoundReply.PRODUCE,
    BoundOp.HPRODUCE.value: BoundReply.HPRODUCE,
    BoundOp.TX_PRODUCE.value: BoundReply.TX_PRODUCE,
    BoundOp.TX_HPRODUCE.value: BoundReply.TX_HPRODUCE,
}
_HEADERED = frozenset((BoundOp.HPRODUCE, BoundOp.TX_HPRODUCE))
_ROUTED = frozenset((BoundOp.PRODUCE, BoundOp.HPRODUCE))


@attrs.frozen
class ProduceRun:
    """Consecutive commands with one op and one route (empty in a transaction)."""

    kind: BoundReply
    route: bytes
    columns: Columns
    cids: bytes
    """Four bytes each."""
    end: int


def _route_end(data: bytes, at: int, kind: BoundReply) -> int:
    need(data, at + 9)
    cid, size = struct.unpack_from(">II", data, at + 1)
    if not 0 < size <= LONGEST_ROUTE:
        raise RefusedBound(failed(kind, cid, mistake("a route's name has 1 to 65536 bytes")))
    need(data, at + 9 + size)
    return at + 9 + int(size)


def scan_produces(data: bytes, at: int, part: Part | None = None) -> ProduceRun:
    """All commands from `at` on that are there whole and have the first one's op and route. Raises what is wrong with the
    first one, of which `part` was there before; headers that are none are answered without the end of the session, once the
    command is there whole.
    """
    op = data[at]
    kind = PRODUCE_REPLIES[op]
    start = _route_end(data, at, kind) if op in _ROUTED else at + 5
    prefix = data[at + 5 : start]
    skip = 5 + len(prefix)
    parts: list[bytes] = []
    ends = array("I")
    total = 0
    headers: list[Headers] = []
    cids = bytearray()
    position = at
    try:
        while True:
            first = part if position == at else None
            pairs, begin, end = _headed_value(data, position, skip, kind, first, headered=op in _HEADERED)
            headers.append(pairs)
            parts.append(data[begin:end])
            total += end - begin
            ends.append(total)
            cids += data[position + 1 : position + 5]
            position = end
            if position >= len(data) or data[position] != op or not data.startswith(prefix, position + 5):
                break
    except WireError:
        if not parts:
            raise
        # what is wrong with a later one is found again when it is the first
    columns = Columns(b"".join(parts), ends, None, headers if any(headers) else None)
    return ProduceRun(kind, prefix[4:], columns, bytes(cids), position)


def _headed_value(
    data: bytes, at: int, skip: int, kind: BoundReply, part: Part | None, *, headered: bool
) -> tuple[Headers, int, int]:
    # the headers of a command, where its value begins (with its length in front), and where it ends
    begin = at + skip
    pieces: list[bytes] = []
    if headered:
        pieces, begin = _strings(data, begin, at, kind, part)
    need(data, begin + 4)
    size = _U32.unpack_from(data, begin)[0]
    if not 0 < size <= LARGEST_MESSAGE:
        text = f"a message of {size} bytes is too large" if size else "a message has at least one byte"
        raise RefusedBound(failed(kind, _cid(data, at), mistake(text)))
    end = begin + 4 + size
    need(data, end)
    try:
        return pairs_of(pieces), begin, end
    except WireError as error:
        failure = Failure(Code.INVALID_ARGUMENT, Applied.NO, "INVALID_HEADERS", error.message)
        raise RefusedBound(failed(kind, _cid(data, at), failure), end) from None


def _cid(data: bytes, at: int) -> int:
    cid: int = _U32.unpack_from(data, at + 1)[0]
    return cid


def _strings(data: bytes, at: int, begin: int, kind: BoundReply, part: Part | None) -> tuple[list[bytes], int]:
    need(data, at + 2)
    count = _U16.unpack_from(data, at)[0]
    return strings(
        data,
        at + 2,
        count,
        begin + LARGEST_MESSAGE,
        lambda: RefusedBound(failed(kind, _cid(data, begin), mistake("headers that are too large"))),
        begin,
        part,
    )


def pairs_of(pieces: Sequence[bytes]) -> Headers:
    """Keys and values in turn; keys are UTF-8 and not empty (wire 6.2)."""
    if not pieces:
        return NO_HEADERS
    if len(pieces) % 2:
        raise WireError("headers are keys and values in turn")
    try:
        keys = [key.decode() for key in pieces[::2]]
    except UnicodeDecodeError:
        raise WireError("a header's key is no UTF-8") from None
    if "" in keys:
        raise WireError("a header's key is empty")
    return tuple(zip(keys, pieces[1::2], strict=True))


# --- transactions, subscriptions ---


def decode_route(data: bytes, at: int, kind: BoundReply) -> tuple[int, bytes, int]:
    """(cid, route, end) of a BEGIN."""
    end = _route_end(data, at, kind)
    return _cid(data, at), data[at + 9 : end], end


@attrs.frozen
class ReaderCommand:
    """`op, cid, auto, string route`, and how many messages for FETCH."""

    kind: BoundReply
    cid: int
    auto: bool
    route: bytes
    most: int
    end: int


READER_REPLIES = {
    BoundOp.SUBSCRIBE.value: BoundReply.SUBSCRIBE,
    BoundOp.HSUBSCRIBE.value: BoundReply.HSUBSCRIBE,
    BoundOp.FETCH.value: BoundReply.FETCH,
    BoundOp.HFETCH.value: BoundReply.HFETCH,
}
FETCHES = frozenset((BoundReply.FETCH, BoundReply.HFETCH))
HEADERED = frozenset((BoundReply.HSUBSCRIBE, BoundReply.HFETCH, BoundReply.HMSG))


def decode_reader(data: bytes, at: int) -> ReaderCommand:
    """SUBSCRIBE, HSUBSCRIBE, FETCH or HFETCH."""
    kind = READER_REPLIES[data[at]]
    need(data, at + 6)
    cid = _cid(data, at)
    if data[at + 5] > 1:
        raise RefusedBound(failed(kind, cid, mistake("neither 0 nor 1")))
    need(data, at + 10)
    size = _U32.unpack_from(data, at + 6)[0]
    if not 0 < size <= LONGEST_ROUTE:
        raise RefusedBound(failed(kind, cid, mistake("a route's name has 1 to 65536 bytes")))
    end = at + 10 + size
    most = 0
    if kind in FETCHES:
        need(data, end + 4)
        most = _U32.unpack_from(data, end)[0]
        end += 4
    need(data, end)
    return ReaderCommand(kind, cid, bool(data[at + 5]), data[at + 10 : at + 10 + size], most, end)


@attrs.frozen
class SettleCommand:
    """`op, cid, sub id, u32 count, ids`."""

    kind: BoundReply
    cid: int
    subscription: int
    ids: Sequence[bytes]
    end: int


def decode_bound_settle(data: bytes, at: int, part: Part | None = None) -> SettleCommand:
    kind = BoundReply.ACK if data[at] == BoundOp.ACK else BoundReply.NACK
    need(data, at + 10)
    cid, subscription, count = struct.unpack_from(">IBI", data, at + 1)
    if count * (4 + ID_SIZE) > LARGEST_ACK:  # shorter ones are none of ours, and each takes its time to read
        raise RefusedBound(failed(kind, cid, mistake("more ids than fit")))
    ids, end = strings(
        data,
        at + 10,
        count,
        at + LARGEST_ACK,
        lambda: RefusedBound(failed(kind, cid, mistake("ids of more bytes than allowed"))),
        at,
        part,
    )
    return SettleCommand(kind, cid, subscription, ids, end)


def decode_unsubscribe(data: bytes, at: int) -> tuple[int, int, int]:
    """(cid, sub id, end)."""
    need(data, at + 6)
    return _cid(data, at), data[at + 5], at + 6


# --- what readers are given ---


def message_id(incarnation: int, sequence: int) -> bytes:
    return _ID.pack(ID_FORM, incarnation, sequence)


def decode_message_id(raw: bytes) -> tuple[int, int] | None:
    """(incarnation, sequence); None if it is none of ours."""
    if len(raw) != ID_SIZE or raw[0] != ID_FORM:
        return None
    _, incarnation, sequence = _ID.unpack(raw)
    return incarnation, sequence


def headers_field(headers: Headers) -> bytes:
    """`u16 strings`, keys and values in turn."""
    parts = [_U16.pack(2 * len(headers))]
    for key, value in headers:
        parts += (string(key.encode()), string(value))
    return b"".join(parts)


NO_HEADERS_FIELD = _U16.pack(0)


def bodies(columns: Columns, ids: Iterable[bytes] | None, *, headered: bool) -> list[bytes]:
    """`[headers], [id], value` of each message. A key and an expiry are among the headers (`bound_headers`)."""
    heads: Iterable[bytes] = repeat(b"")
    if headered:
        headers = put_in(columns)
        heads = map(headers_field, headers) if headers is not None else repeat(NO_HEADERS_FIELD)
    named = map(string, ids) if ids is not None else repeat(b"")
    packed, start = columns.packed, 0
    found: list[bytes] = []
    for head, name, end in zip(heads, named, columns.ends, strict=False):
        found.append(head + name + packed[start:end])
        start = end
    return found


def pushed(kind: BoundReply, subscription: int, items: Iterable[bytes]) -> bytes:
    """MSG or HMSG for each."""
    head = bytes((kind, subscription))
    return b"".join([head + item for item in items])


def handed_out(kind: BoundReply, cid: int, subscription: int, items: Sequence[bytes]) -> bytes:
    """The answer to FETCH or HFETCH."""
    return done(kind, cid, bytes((subscription,)) + _U32.pack(len(items)) + b"".join(items))


def bound_settled(kind: BoundReply, cid: int, results: Sequence[tuple[bytes, Failure | None]]) -> bytes:
    parts = [_U32.pack(len(results))]
    for raw, failure in results:
        parts += (string(raw), envelope(failure) if failure is not None else b"\0")
    return done(kind, cid, b"".join(parts))
