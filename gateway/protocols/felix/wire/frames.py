"""The frame: twelve bytes of header, flags that say what the payload is (Felix document, Frame Structure)."""

from __future__ import annotations

import struct

from gateway.errors import FrameTooLarge, WireError

HEADER = struct.Struct(">IHHI")
HEADER_SIZE = HEADER.size

MAGIC = 0x464C5831
"""FLX1"""

VERSION = 1

MAX_PAYLOAD = 16 << 20
"""Inclusive (Felix wire 2.8)."""

JSON = 0x0000
BATCH = 0x0001
"""Binary publish batch (document)."""
EVENTS = 0x0002
"""Binary event batch with its subscription's id (Felix wire 1.1)."""
SHARED_EVENTS = 0x0004
"""Binary event batch without an id (Felix wire 1.2)."""
ACKED = 0x0008
"""With BATCH: a request id and an acknowledgement mode come first (Felix wire 1.2)."""
ACK = 0x0010
"""Binary acknowledgement of a publish (Felix wire 1.2)."""
OFFSETS = 0x0020
"""With EVENTS or SHARED_EVENTS: the offset of the first event comes before the count (Felix wire 1.2)."""

COPIES = 0x4000
"""With BATCH and ACKED, between gateways only: which messages of another log these are comes before the names. Named at
login by both sides before it is used, so that no other peer ever sees it."""

AFTER = 0x2000
"""With COPIES: the message that these are stored behind, or not at all, comes before the ranges. Named at login as that."""

BETWEEN_GATEWAYS = COPIES | AFTER

KNOWN = BATCH | EVENTS | SHARED_EVENTS | ACKED | ACK | OFFSETS

UNADVERTISED = BATCH | EVENTS | SHARED_EVENTS
"""What a peer that authenticates without naming flags understands (Felix wire 1.2)."""


class MalformedHeader(WireError):
    """A header that is none."""


class OversizeFrame(MalformedHeader, FrameTooLarge):
    """A payload beyond the limit."""


def check_header(magic: int, version: int, length: int, most: int = MAX_PAYLOAD) -> None:
    """Refuse a frame by its header alone."""
    if magic != MAGIC:
        raise MalformedHeader("malformed frame: bad magic")
    if version != VERSION:
        raise MalformedHeader(f"malformed frame: unsupported version {version}")
    if length > most:
        raise OversizeFrame(f"malformed frame: payload of {length} bytes (max: {most})")


def frame(payload: bytes, flags: int = JSON) -> bytes:
    return HEADER.pack(MAGIC, VERSION, flags, len(payload)) + payload
