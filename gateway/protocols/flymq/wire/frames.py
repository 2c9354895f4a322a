"""FlyMQ's frame: eight bytes of header, then a payload (FlyMQ document, Message Structure).

Magic 0xAF, version 1, operation, flags, u32 payload length. Anything wrong with the first two or the length closes the
connection without an answer (FlyMQ wire 2.1): there is no way to find the next frame.
"""

from __future__ import annotations

import enum
import struct
import zlib

from gateway.errors import FrameTooLarge, Unsupported, WireError

MAGIC = 0xAF
VERSION = 0x01
HEADER_SIZE = 8
MAX_PAYLOAD = 33_554_432
"""A payload of exactly this many bytes is still good (FlyMQ wire 2.1)."""

FLAG_BINARY = 0x01
COMPRESSION_MASK = 0x0E
"""Newer clients name the compression of the whole payload in bits 1 to 3 (FlyMQ wire 1)."""
GZIP = 0x02
INFLATED_AT_ONCE = 1 << 20
"""Bytes: a few milliseconds."""
COMPRESSIONS = {0x02: "gzip", 0x04: "lz4", 0x06: "zstd", 0x08: "snappy"}

HEADER = struct.Struct(">BBBBI")
SIGNATURE = bytes((MAGIC, VERSION))


class Op(enum.IntEnum):
    """The operations of the document, and CLUSTER_METADATA of newer clients (FlyMQ wire 2.2)."""

    PRODUCE = 0x01
    CONSUME = 0x02
    CREATE_TOPIC = 0x03
    METADATA = 0x04
    SUBSCRIBE = 0x05
    COMMIT = 0x06
    FETCH = 0x07
    LIST_TOPICS = 0x08
    DELETE_TOPIC = 0x09
    CONSUME_ZERO_COPY = 0x0A
    FETCH_BINARY = 0x0B
    REGISTER_SCHEMA = 0x10
    GET_SCHEMA = 0x11
    LIST_SCHEMAS = 0x12
    VALIDATE_SCHEMA = 0x13
    PRODUCE_WITH_SCHEMA = 0x14
    DELETE_SCHEMA = 0x15
    FETCH_DLQ = 0x20
    REPLAY_DLQ = 0x21
    PURGE_DLQ = 0x22
    PRODUCE_DELAYED = 0x30
    CANCEL_DELAYED = 0x31
    PRODUCE_WITH_TTL = 0x35
    TXN_BEGIN = 0x40
    TXN_COMMIT = 0x41
    TXN_ROLLBACK = 0x42
    TXN_PRODUCE = 0x43
    CLUSTER_JOIN = 0x50
    CLUSTER_LEAVE = 0x51
    CLUSTER_STATUS = 0x52
    CLUSTER_METADATA = 0x53
    GET_OFFSET = 0x60
    RESET_OFFSET = 0x61
    LIST_GROUPS = 0x62
    DESCRIBE_GROUP = 0x63
    GET_LAG = 0x64
    DELETE_GROUP = 0x65
    SEEK_TO_TIMESTAMP = 0x66
    AUTH = 0x70
    AUTH_RESPONSE = 0x71
    WHOAMI = 0x72
    USER_CREATE = 0x73
    USER_DELETE = 0x74
    USER_UPDATE = 0x75
    USER_LIST = 0x76
    USER_GET = 0x77
    ACL_SET = 0x78
    ACL_GET = 0x79
    ACL_DELETE = 0x7A
    ACL_LIST = 0x7B
    PASSWORD_CHANGE = 0x7C
    ROLE_LIST = 0x7D
    ERROR = 0xFF


def frame(op: int, payload: bytes, flags: int = FLAG_BINARY) -> bytes:
    """A whole frame. Raises FrameTooLarge rather than make one its peer must refuse."""
    return header(op, len(payload), flags) + payload


def header(op: int, size: int, flags: int = FLAG_BINARY) -> bytes:
    if size > MAX_PAYLOAD:
        raise FrameTooLarge(f"message too large: {size} bytes")
    return HEADER.pack(MAGIC, VERSION, op, flags, size)


def check_header(magic: int, version: int, length: int, most: int = MAX_PAYLOAD) -> None:
    """Raises a WireError for what closes the connection, before a byte of the payload is awaited."""
    if magic != MAGIC:
        raise WireError(f"bad magic byte 0x{magic:02x}")
    if version != VERSION:
        raise WireError(f"bad version {version}")
    if length > most:
        raise FrameTooLarge(f"payload of {length} bytes")


class Inflation:
    """A compressed payload on its way to what it was, in slices, never more than a frame may hold.

    Only gzip is spoken, by us as by the original (FlyMQ wire 1); the others are a typed refusal.
    """

    def __init__(self, payload: bytes, flags: int, most: int = MAX_PAYLOAD) -> None:
        method = flags & COMPRESSION_MASK
        if method != GZIP:
            raise Unsupported(f"unsupported compression: {COMPRESSIONS.get(method, f'0x{method:02x}')}")
        self._left = payload
        self.size = 0
        """Bytes that were unpacked so far."""
        self._most = most
        self._inflate = zlib.decompressobj(wbits=31)
        self._slices: list[bytes] = []

    def step(self) -> bytes | None:
        """Another slice; the whole payload once that was the last."""
        room = min(INFLATED_AT_ONCE, self._most + 1 - self.size)
        try:
            piece = self._inflate.decompress(self._left, room)
        except zlib.error:
            raise WireError("invalid binary format: bad gzip payload") from None
        self._left = self._inflate.unconsumed_tail
        self._slices.append(piece)
        self.size += len(piece)
        if self.size > self._most:
            raise FrameTooLarge("message too large: the gzip payload holds more than a frame may")
        if self._inflate.eof:
            return b"".join(self._slices)
        if not self._left and len(piece) < room:
            raise WireError("invalid binary format: the gzip payload is cut off")
        return None
