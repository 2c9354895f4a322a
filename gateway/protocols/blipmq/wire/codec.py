"""BlipMQ bytes to frames and back (wire 1.1), one function per frame; the hot ones work on whole runs of frames."""

from __future__ import annotations

import functools
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence

import msgspec

from gateway.envelope import Columns
from gateway.errors import FrameTooLarge, WireError
from gateway.protocols.blipmq.wire import mapping
from gateway.protocols.blipmq.wire.frames import (
    HEAD,
    LENGTH_BYTES,
    MAX_LENGTH,
    MIN_LENGTH,
    Ack,
    Auth,
    Frame,
    FrameType,
    Hello,
    Nack,
    Ping,
    Poll,
    Pong,
    Publish,
    Subscribe,
)
from gateway.protocols.blipmq.wire.mapping import NackText
from gateway.wire.session import Buffer

_HEAD = struct.Struct(">IBQ")
_LENGTH = struct.Struct(">I")
_LENGTH_TYPE = struct.Struct(">IB")
_U16 = struct.Struct(">H")
_U64 = struct.Struct(">Q")
_QOS_TOPIC = struct.Struct(">BH")
_CODE_SIZE = struct.Struct(">HH")
_TYPES: dict[int, FrameType] = {kind.value: kind for kind in FrameType}

_PUBLISH, _POLL = FrameType.PUBLISH.value, FrameType.POLL.value
CID = LENGTH_BYTES + 1
"""Where a frame's cid begins."""
CID_BYTES = HEAD - CID

_LONE = struct.Struct(">IBQQ")
LONE = _LONE.size
"""Bytes of a POLL, and of an ACK."""
_POLL_HEAD = _LENGTH_TYPE.pack(LONE - LENGTH_BYTES, _POLL)


class RefusedFrame(WireError):
    """A frame is refused and the connection goes on; `refusal` is the NACK that says so."""

    def __init__(self, refusal: NackText) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


# --- the frame itself ---


def frame_end(data: bytes, position: int, most: int = MAX_LENGTH) -> int | None:
    """Where the frame that begins at `position` ends, None while its length is not there. A length that cannot be closes
    the connection as soon as its four bytes are there (wire 1.6).
    """
    if len(data) - position < LENGTH_BYTES:
        return None
    length: int = _LENGTH.unpack_from(data, position)[0]
    if length > most:
        raise FrameTooLarge(f"frame of {length} bytes")
    if length < MIN_LENGTH:
        raise WireError(f"frame of {length} bytes")
    return position + LENGTH_BYTES + length


def frame_type(data: bytes, position: int) -> FrameType:
    """The type of a frame that is there to its end; an unknown one closes the connection (wire 1.6)."""
    kind = _TYPES.get(data[position + LENGTH_BYTES])
    if kind is None:
        raise WireError(f"unknown frame type 0x{data[position + LENGTH_BYTES]:02x}")
    return kind


def frame_cid(data: bytes, position: int) -> int:
    cid: int = _U64.unpack_from(data, position + CID)[0]
    return cid


def _frame(kind: FrameType, cid: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(MIN_LENGTH + len(payload), kind, cid) + payload


# --- payloads: `start` is where it begins, `end` where the frame ends ---


def decode_hello(data: bytes, start: int, end: int) -> int:
    if end - start != 2:
        raise RefusedFrame(mapping.HELLO_INVALID)
    version: int = _U16.unpack_from(data, start)[0]
    return version


def decode_auth(data: bytes, start: int, end: int) -> str:
    """The key. It must fill the payload (wire 1.1)."""
    if end - start < 2 or _U16.unpack_from(data, start)[0] != end - start - 2:
        raise RefusedFrame(mapping.AUTH_INVALID)
    return _text(data[start + 2 : end], mapping.AUTH_INVALID)


def decode_subscription(data: bytes, start: int, end: int, invalid: NackText) -> int:
    """The subscription id of an ACK or POLL to a server: exactly 8 bytes, not 0 (wire 1.3)."""
    if end - start != 8:
        raise RefusedFrame(invalid)
    subscription: int = _U64.unpack_from(data, start)[0]
    if not subscription:
        raise RefusedFrame(mapping.ZERO_SUBSCRIPTION)
    return subscription


def decode_subscribe(data: bytes, start: int, end: int) -> tuple[str, int]:
    """(topic, qos); an empty topic wins over a bad qos, bytes left over are ignored (wire 1.1, 1.3)."""
    if end - start < 2:
        raise RefusedFrame(mapping.SUBSCRIBE_INVALID)
    stop = start + 2 + _U16.unpack_from(data, start)[0]
    if stop + 1 > end:
        raise RefusedFrame(mapping.SUBSCRIBE_INVALID)
    topic = _text(data[start + 2 : stop], mapping.SUBSCRIBE_INVALID)
    _check(topic, data[stop])
    return topic, data[stop]


def decode_publish(data: bytes, start: int, end: int) -> tuple[int, str, int]:
    """(qos, topic, where the message begins), checked in the order of wire 1.3."""
    if end - start < 3:
        raise RefusedFrame(mapping.PUBLISH_INVALID)
    qos, size = _QOS_TOPIC.unpack_from(data, start)
    begin = start + 3 + size
    if begin > end:
        raise RefusedFrame(mapping.PUBLISH_INVALID)
    topic = _text(data[start + 3 : begin], mapping.PUBLISH_INVALID)
    _check(topic, qos)
    return qos, topic, begin


def decode_nack(data: bytes, start: int, end: int) -> NackText:
    if end - start < 4:
        raise WireError("truncated NACK")
    code, size = _CODE_SIZE.unpack_from(data, start)
    if start + 4 + size > end:
        raise WireError("truncated NACK")
    return NackText(code, data[start + 4 : start + 4 + size].decode(errors="replace"))


def decode_ack(data: bytes, start: int, end: int) -> int:
    """The subscription id of an ACK from a server: 0 in a handshake."""
    if end - start != 8:
        raise RefusedFrame(mapping.ACK_INVALID)
    subscription: int = _U64.unpack_from(data, start)[0]
    return subscription


def _text(raw: bytes, invalid: NackText) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise RefusedFrame(invalid) from None


def _check(topic: str, qos: int) -> None:
    if not topic:
        raise RefusedFrame(mapping.EMPTY_TOPIC)
    if qos > 1:
        raise RefusedFrame(mapping.INVALID_QOS)


def decode(data: bytes) -> Frame:
    """One whole frame as a value. Sessions parse in place; this is for everybody else."""
    end = frame_end(data, 0)
    if end != len(data):
        raise WireError("not exactly one frame")
    kind, cid = frame_type(data, 0), frame_cid(data, 0)
    match kind:
        case FrameType.HELLO:
            return Hello(cid, decode_hello(data, HEAD, end))
        case FrameType.AUTH:
            return Auth(cid, decode_auth(data, HEAD, end))
        case FrameType.PUBLISH:
            qos, topic, begin = decode_publish(data, HEAD, end)
            return Publish(cid, qos, topic, data[begin:end])
        case FrameType.SUBSCRIBE:
            return Subscribe(cid, *decode_subscribe(data, HEAD, end))
        case FrameType.ACK:
            return Ack(cid, decode_ack(data, HEAD, end))
        case FrameType.NACK:
            refusal = decode_nack(data, HEAD, end)
            return Nack(cid, refusal.code, refusal.text)
        case FrameType.PING:
            return Ping(cid)
        case FrameType.PONG:
            return Pong(cid)
        case FrameType.POLL:
            return Poll(cid, decode_subscription(data, HEAD, end, mapping.POLL_INVALID))


def decode_lone(data: bytes) -> tuple[int, int, int]:
    """(type, cid, subscription) of so many bytes as a POLL or an ACK has: if they are one, and it can be served."""
    length, kind, cid, subscription = _LONE.unpack(data)
    return (kind if length == LONE - LENGTH_BYTES and subscription else 0), cid, subscription


# --- encoding ---


def hello(cid: int, version: int) -> bytes:
    return _frame(FrameType.HELLO, cid, _U16.pack(version))


def auth(cid: int, key: str) -> bytes:
    raw = key.encode()
    return _frame(FrameType.AUTH, cid, _U16.pack(len(raw)) + raw)


def subscribe(cid: int, topic: str, qos: int) -> bytes:
    raw = topic.encode()
    return _frame(FrameType.SUBSCRIBE, cid, _U16.pack(len(raw)) + raw + bytes((qos,)))


def ack(cid: int, subscription: int) -> bytes:
    return _frame(FrameType.ACK, cid, _U64.pack(subscription))


def nack(cid: int, refusal: NackText) -> bytes:
    raw = refusal.text.encode(errors="replace")
    return _frame(FrameType.NACK, cid, _CODE_SIZE.pack(refusal.code, len(raw)) + raw)


def ping(cid: int) -> bytes:
    return _frame(FrameType.PING, cid)


def pong(cid: int) -> bytes:
    return _HEAD.pack(MIN_LENGTH, FrameType.PONG, cid)


def poll(cid: int, subscription: int) -> bytes:
    return _frame(FrameType.POLL, cid, _U64.pack(subscription))


def publish(cid: int, qos: int, topic: str, message: bytes) -> bytes:
    raw = topic.encode()
    fixed = MIN_LENGTH + _QOS_TOPIC.size + len(raw)
    return b"".join((_HEAD.pack(fixed + len(message), _PUBLISH, cid), _QOS_TOPIC.pack(qos, len(raw)), raw, message))


def publishes(cids: bytes, qos: int, topic: str, columns: Columns) -> Buffer:
    """A PUBLISH frame for each message. `cids` has eight bytes for each."""
    raw = topic.encode()
    prefix = _QOS_TOPIC.pack(qos, len(raw)) + raw
    fixed = MIN_LENGTH + len(prefix)
    values = columns.values()
    size = len(values[0])
    if columns.count < _WORTH_A_LOOK or size > _LARGE or not columns.step:
        pieces: list[bytes] = []
        for index, value in enumerate(values):
            head = _LENGTH_TYPE.pack(fixed + len(value), _PUBLISH)
            pieces += (head, cids[index * CID_BYTES : (index + 1) * CID_BYTES], prefix, value)
        return b"".join(pieces)
    # all of one size: joined as if they had one cid, and then each byte of the others is put where it belongs, in all at once
    head = _LENGTH_TYPE.pack(fixed + size, _PUBLISH)
    frames = bytearray().join((head, cids[:CID_BYTES], prefix)).join((b"", *values))
    step = LENGTH_BYTES + fixed + size
    for index in range(CID_BYTES):
        frames[CID + index :: step] = cids[index::CID_BYTES]
    return memoryview(frames)


def cids_of(numbers: Iterable[int]) -> bytes:
    cids = array("Q", numbers)
    if sys.byteorder == "little":
        cids.byteswap()
    return cids.tobytes()


# --- many frames at once ---


class PublishRun(msgspec.Struct, frozen=True):
    """Consecutive PUBLISH frames of one qos and topic."""

    qos: int
    topic: str
    messages: Sequence[bytes]
    cids: bytes
    """Eight bytes a message, needed only if one is refused."""
    end: int
    """Where the next frame begins."""


_WINDOW = 1024
"""Frames looked at together."""
_PATIENCE = 8
"""Frames that are parsed one by one before a look, lest it is in vain."""
_WORTH_A_LOOK = 16
"""A look that finds fewer is dearer than parsing them one by one; the next look then waits twice as long."""
_TOGETHER = 16
"""Of those that are alike, so many are cut at once."""
_LARGE = 1 << 10
"""Messages of this size are put together once: a byte less that is copied is worth more than a step less."""
_LONGEST_PREFIX = 64
"""A look costs a strided slice per byte of the prefix."""


def scan_publishes(data: bytes, position: int, end: int) -> PublishRun:
    """All PUBLISH frames from `position` on that are there whole and have the first one's qos and topic. The first one
    ends at `end`; raises RefusedFrame if it is refused (wire 1.3).
    """
    qos, topic, begin = decode_publish(data, position + HEAD, end)
    prefix = data[position + HEAD : begin]
    skip = HEAD + len(prefix)
    messages = [data[begin:end]]
    cids = bytearray(data[position + CID : position + HEAD])
    append = messages.append
    unpack_from = _LENGTH_TYPE.unpack_from
    last = len(data) - skip
    step = end - position
    position = end
    patience = _PATIENCE
    singles = 1  # the second frame tells most mixtures apart
    while position <= last:
        if not singles:
            alike = _alike(data, position, step, _PUBLISH, prefix)
            if alike:
                cut, stop = _cut(skip, step), position + alike * step
                cids += _cids(data, position, stop, step)
                for _ in range(alike // _TOGETHER):
                    messages += cut.unpack_from(data, position)
                    position += cut.size
                messages += [data[at + skip : at + step] for at in range(position, stop, step)]
                position = stop
            patience = 1 if alike >= _WORTH_A_LOOK else patience * 2
            singles = 0 if alike == _WINDOW else patience
            continue
        singles -= 1
        length, kind = unpack_from(data, position)
        end = position + LENGTH_BYTES + length
        if (
            kind != _PUBLISH
            or end > len(data)
            or length > MAX_LENGTH
            or not data.startswith(prefix, position + HEAD, end)
        ):
            break
        append(data[position + skip : end])
        cids += data[position + CID : position + HEAD]
        step = end - position
        position = end
    return PublishRun(qos, topic, messages, bytes(cids), position)


class PollRun(msgspec.Struct, frozen=True):
    """Consecutive POLLs of one subscription."""

    subscription: int
    cids: bytes
    """Eight bytes a POLL."""
    end: int
    """Where the next frame begins."""


def scan_polls(data: bytes, position: int, end: int) -> PollRun:
    """As `scan_publishes`, of POLLs."""
    subscription = decode_subscription(data, position + HEAD, end, mapping.POLL_INVALID)
    first, asked = position, data[position + HEAD : end]
    position, last = end, len(data) - LONE
    singles = _PATIENCE
    while position <= last:
        if not singles:
            alike = _alike(data, position, LONE, _POLL, asked)
            position += alike * LONE
            singles = 0 if alike == _WINDOW else _PATIENCE
        elif data.startswith(_POLL_HEAD, position) and data.startswith(asked, position + HEAD):
            position += LONE
            singles -= 1
        else:
            break
    cids = data[first + CID : first + HEAD] if position == end else bytes(_cids(data, first, position, LONE))
    return PollRun(subscription, cids, position)


def _alike(data: bytes, position: int, step: int, kind: int, prefix: bytes) -> int:
    # how many frames from here on are known to be of this kind and size, with this behind the cid: a few strided slices in C
    # instead of a loop over frames
    count = min((len(data) - position) // step, _WINDOW)
    if count < _WORTH_A_LOOK or len(prefix) > _LONGEST_PREFIX:
        return 0
    head = _LENGTH_TYPE.pack(step - LENGTH_BYTES, kind)
    for offset, wanted in ((0, head), (HEAD, prefix)):
        at = position + offset
        for index in range(len(wanted)):
            column = data[at + index : position + count * step : step]
            byte = wanted[index : index + 1]
            if column != byte * count:
                count -= len(column.lstrip(byte))
                if not count:
                    return 0
    return count


def _cids(data: bytes, first: int, stop: int, step: int) -> bytearray:
    # of frames of one size: all first bytes at once, all second ones, and so on
    cids = bytearray((stop - first) // step * CID_BYTES)
    for index in range(CID_BYTES):
        cids[index::CID_BYTES] = data[first + CID + index : stop : step]
    return cids


@functools.lru_cache(maxsize=64)
def _cut(skip: int, step: int) -> struct.Struct:
    # the messages of frames of one size, in one call for so many: a slice for each takes three times as long
    return struct.Struct(f"{skip}x{step - skip}s" * _TOGETHER)
