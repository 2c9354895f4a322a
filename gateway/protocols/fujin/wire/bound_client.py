"""Fujin bytes of the dialects that bind, as a client writes and reads them (wire 6.2). What is read raises Incomplete while it
goes on.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs

from gateway.envelope import Headers
from gateway.errors import WireError
from gateway.protocols.fujin.wire.bound_codec import headers_field, pairs_of
from gateway.protocols.fujin.wire.bound_frames import (
    FORMAT,
    LONGEST_ROUTE,
    VERSION,
    BoundOp,
    Can,
    Failure,
    RouteProfile,
)
from gateway.protocols.fujin.wire.codec import need, string
from gateway.protocols.fujin.wire.codec_replies import MOST_RESULTS, decode_string
from gateway.protocols.fujin.wire.frames import LARGEST_ERROR, LARGEST_MESSAGE

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_OP_U32 = struct.Struct(">BI")

MOST_DETAILS = 1_024
MOST_ROUTES = 1 << 20
LEAST_PROFILE = 8
"""Bytes of a route's profile without its name."""

Pairs = Sequence[tuple[str, str]]


# --- commands ---


def hello(name: str, build: str, versions: bytes = bytes((VERSION,))) -> bytes:
    head = bytes((BoundOp.HELLO, FORMAT, len(versions))) + versions
    return head + string(name.encode()) + string(build.encode())


def bind(connector: str, meta: Pairs = (), overrides: Pairs = ()) -> bytes:
    parts = [bytes((BoundOp.BIND,)), string(connector.encode())]
    for pairs in (meta, overrides):
        parts.append(_U16.pack(len(pairs)))
        for key, value in pairs:
            parts += (string(key.encode()), string(value.encode()))
    return b"".join(parts)


def produce(cid: int, route: bytes, value: bytes, headers: Headers | None = None) -> bytes:
    """PRODUCE; HPRODUCE where there are headers."""
    op = BoundOp.PRODUCE if headers is None else BoundOp.HPRODUCE
    return _OP_U32.pack(op, cid) + string(route) + _headed(headers) + string(value)


def tx_produce(cid: int, value: bytes, headers: Headers | None = None) -> bytes:
    op = BoundOp.TX_PRODUCE if headers is None else BoundOp.TX_HPRODUCE
    return _OP_U32.pack(op, cid) + _headed(headers) + string(value)


def _headed(headers: Headers | None) -> bytes:
    return headers_field(headers) if headers is not None else b""


def begin(cid: int, route: bytes) -> bytes:
    return _OP_U32.pack(BoundOp.BEGIN, cid) + string(route)


def bound_command(op: BoundOp, cid: int) -> bytes:
    return _OP_U32.pack(op, cid)


def subscribe(cid: int, route: bytes, *, auto: bool, headered: bool) -> bytes:
    op = BoundOp.HSUBSCRIBE if headered else BoundOp.SUBSCRIBE
    return _OP_U32.pack(op, cid) + bytes((auto,)) + string(route)


def bound_settle(op: BoundOp, cid: int, subscription: int, ids: Sequence[bytes]) -> bytes:
    return struct.pack(">BIBI", op, cid, subscription, len(ids)) + b"".join(map(string, ids))


def unsubscribe(cid: int, subscription: int) -> bytes:
    return struct.pack(">BIB", BoundOp.UNSUBSCRIBE, cid, subscription)


# --- replies ---


def decode_envelope(data: bytes, at: int) -> tuple[Failure | None, int]:
    """None for OK, and where it ends."""
    need(data, at + 1)
    if not data[at]:
        return None, at + 1
    need(data, at + 2)
    reason, position = decode_string(data, at + 2, LARGEST_ERROR)
    message, position = decode_string(data, position, LARGEST_ERROR)
    need(data, position + 2)
    count, position = _U16.unpack_from(data, position)[0], position + 2
    if count > MOST_DETAILS:
        raise WireError(f"{count} details of one failure")
    details: list[tuple[str, str]] = []
    for _ in range(count):
        key, position = decode_string(data, position, LARGEST_ERROR)
        value, position = decode_string(data, position, LARGEST_ERROR)
        details.append((_text(key), _text(value)))
    return Failure(data[at], data[at + 1], _text(reason), _text(message), tuple(details)), position


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


@attrs.frozen
class BoundAnswer:
    """`op, cid, envelope`."""

    cid: int
    failure: Failure | None
    end: int


def decode_bound_answer(data: bytes, at: int) -> BoundAnswer:
    need(data, at + 6)
    failure, end = decode_envelope(data, at + 5)
    return BoundAnswer(_U32.unpack_from(data, at + 1)[0], failure, end)


def decode_greeted(data: bytes, at: int) -> tuple[Failure | None, int]:
    """The answer to HELLO, from its op byte on."""
    failure, end = decode_envelope(data, at + 1)
    if failure is not None:
        return failure, end
    need(data, end + 2)
    if data[end] != FORMAT or data[end + 1] != VERSION:
        raise WireError(f"version {data[end + 1]} was chosen, which was not offered")
    _, end = decode_string(data, end + 2, LARGEST_ERROR)
    return None, end


def decode_bound(data: bytes, at: int) -> tuple[Failure | None, tuple[RouteProfile, ...], int]:
    """The answer to BIND, from its op byte on."""
    failure, end = decode_envelope(data, at + 1)
    if failure is not None:
        return failure, (), end
    need(data, end + 4)
    count, position = _U32.unpack_from(data, end)[0], end + 4
    if count > MOST_ROUTES:
        raise WireError(f"{count} routes")
    need(data, position + LEAST_PROFILE * count)
    routes: list[RouteProfile] = []
    for _ in range(count):
        name, position = decode_string(data, position, LONGEST_ROUTE)
        need(data, position + 4)
        flags, guarantee, acknowledges, nack = data[position : position + 4]
        routes.append(RouteProfile(_text(name), Can(flags), guarantee, acknowledges, nack))
        position += 4
    return None, tuple(routes), position


@attrs.frozen
class BoundMessage:
    """A message; its id is empty with auto commit."""

    id: bytes
    value: bytes
    headers: Headers


def decode_bound_message(data: bytes, at: int, *, auto: bool, headered: bool) -> tuple[BoundMessage, int]:
    """What follows the subscription id of MSG and HMSG."""
    headers: Headers = ()
    raw_id = b""
    if headered:
        need(data, at + 2)
        count, at = _U16.unpack_from(data, at)[0], at + 2
        need(data, at + 4 * count)
        strings: list[bytes] = []
        for _ in range(count):
            one, at = decode_string(data, at, LARGEST_MESSAGE)
            strings.append(one)
        headers = pairs_of(strings)
    if not auto:
        raw_id, at = decode_string(data, at, LONGEST_ROUTE)
    value, at = decode_string(data, at, LARGEST_MESSAGE)
    return BoundMessage(raw_id, value, headers), at


def decode_bound_settled(data: bytes, at: int) -> tuple[BoundAnswer, dict[bytes, Failure | None]]:
    """ACK or NACK: what became of each id."""
    answer = decode_bound_answer(data, at)
    if answer.failure is not None:
        return answer, {}
    need(data, answer.end + 4)
    count, position = _U32.unpack_from(data, answer.end)[0], answer.end + 4
    if count > MOST_RESULTS:
        raise WireError(f"{count} results in one reply")
    need(data, position + 5 * count)
    results: dict[bytes, Failure | None] = {}
    for _ in range(count):
        raw, position = decode_string(data, position, LONGEST_ROUTE)
        results[raw], position = decode_envelope(data, position)
    return BoundAnswer(answer.cid, None, position), results
