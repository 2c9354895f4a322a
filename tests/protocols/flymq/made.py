"""Payloads made by hand: the document's types written with struct alone, so that tests do not lean on the codec."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from gateway.protocols.flymq.server.operations import FlymqSettings
from gateway.protocols.flymq.server.session import FlymqServer
from gateway.settings import Dialect, Limits, Seconds
from gateway.wire.session import SessionContext
from tests.protocols.script import Script

YES, NO = b"\x01", b"\x00"


def s(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">H", len(raw)) + raw


def s8(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">B", len(raw)) + raw


def b(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def i32(value: int) -> bytes:
    return struct.pack(">i", value)


def u32(value: int) -> bytes:
    return struct.pack(">I", value)


def i64(value: int) -> bytes:
    return struct.pack(">q", value)


def u64(value: int) -> bytes:
    return struct.pack(">Q", value)


def array(items: Iterable[bytes]) -> bytes:
    items = list(items)
    return u32(len(items)) + b"".join(items)


def fr(op: int, payload: bytes = b"", flags: int = 1) -> bytes:
    return struct.pack(">BBBBI", 0xAF, 1, op, flags, len(payload)) + payload


def error(text: str, dialect: Dialect = Dialect.DOCUMENT) -> bytes:
    """An ERROR frame as each dialect has it before any sign (FlyMQ document, ERROR; FlyMQ wire 2.1)."""
    if dialect is Dialect.STOCK:
        return fr(0xFF, text.encode(), flags=0)
    return fr(0xFF, NO + s(text))


def produce(topic: str, value: bytes, key: bytes = b"", partition: int = -1, flags: int = 1) -> bytes:
    return fr(1, s(topic) + b(key) + b(value) + i32(partition), flags)


def recorded(
    topic: str, partition: int, offset: int, time: int, key_size: int, value_size: int, *, more: bytes = b""
) -> bytes:
    return s(topic) + i32(partition) + u64(offset) + i64(time) + i32(key_size) + i32(value_size) + more


def server(
    dialect: Dialect = Dialect.AUTO,
    *,
    auth: bool = True,
    fetch_hold: float = 0.0,
    resume: bool = False,
    limits: Limits | None = None,
) -> Script:
    context = SessionContext(
        "flymq",
        FlymqSettings(Seconds(fetch_hold), resume),
        dialect,
        auth_required=auth,
        limits=limits or Limits(),
        advertised="127.0.0.1:9092",
        server_id="node1",
    )
    return Script(FlymqServer(context))
