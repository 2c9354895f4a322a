"""BlipMQ frames as values, and the numbers of the wire (BlipMQ document, Frame Layout; wire 1.1).

    u32 BE length | u8 type | u64 BE correlation id | payload (length - 9 bytes)

`length` counts what follows it. The correlation id (cid) is opaque: any u64, never checked, repeated in every reply.
"""

from __future__ import annotations

import enum

import attrs

HEAD = 13
"""Bytes before the payload."""
LENGTH_BYTES = 4
MIN_LENGTH = 9
MAX_LENGTH = 16 * 1024 * 1024
"""Legal lengths are 9 to 16 MiB inclusive (wire 1.1)."""

VERSION = 1
"""The only protocol version (BlipMQ document, HELLO)."""

LONGEST_LOGIN = MIN_LENGTH + 2 + 0xFFFF
"""An AUTH with the longest key there can be: what a frame may have before its sender is let in."""

LARGEST_PUBLISH = MAX_LENGTH - MIN_LENGTH - 3
"""Room for topic and message together in a PUBLISH: type, cid, qos and topic length are off (wire 1.1)."""


class FrameType(enum.IntEnum):
    """The type byte (BlipMQ document, Frame Types)."""

    HELLO = 0x01
    AUTH = 0x02
    PUBLISH = 0x03
    SUBSCRIBE = 0x04
    ACK = 0x05
    NACK = 0x06
    PING = 0x07
    PONG = 0x08
    POLL = 0x09


@attrs.frozen
class Hello:
    """HELLO: `u16 version`, exactly."""

    cid: int
    version: int


@attrs.frozen
class Auth:
    """AUTH: `u16 n, n bytes UTF-8 key`, exactly."""

    cid: int
    key: str


@attrs.frozen
class Publish:
    """PUBLISH, in both directions: `u8 qos, u16 n, n bytes UTF-8 topic, message`."""

    cid: int
    qos: int
    topic: str
    message: bytes


@attrs.frozen
class Subscribe:
    """SUBSCRIBE: `u16 n, n bytes UTF-8 topic, u8 qos`; what follows is ignored. The qos is at the other end than in PUBLISH."""

    cid: int
    topic: str
    qos: int


@attrs.frozen
class Ack:
    """ACK, in both directions: `u64 subscription id`, exactly. To a server the cid is the delivery tag."""

    cid: int
    subscription: int


@attrs.frozen
class Nack:
    """NACK: `u16 code, u16 n, n bytes UTF-8 text`."""

    cid: int
    code: int
    text: str


@attrs.frozen
class Ping:
    """PING: any payload is accepted."""

    cid: int


@attrs.frozen
class Pong:
    """PONG: empty."""

    cid: int


@attrs.frozen
class Poll:
    """POLL: `u64 subscription id`, exactly."""

    cid: int
    subscription: int


Frame = Hello | Auth | Publish | Subscribe | Ack | Nack | Ping | Pong | Poll
"""Every frame."""
