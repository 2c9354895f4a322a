"""Bytes of a message as people see and write them: cut to a bound, as JSON, text or hex, and never taken for something else."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.errors import InvalidRequest

SHOWN_BYTES = 64 << 10
"""What is shown of a value, a key or a header at most."""
DECODED_BYTES = 256 << 10
"""A larger value is not made into JSON."""

Decode = Callable[[bytes], str]


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes of a message, at most the first of them, and what they are to people."""

    size: int
    data: bytes
    format: str
    """`json`, `text` or `binary`; `avro` or `protobuf` where the topic's schema says so; `redacted`."""
    text: str | None = None
    """As text, where they are some."""
    decoded: str | None = None
    """As JSON, where a schema makes it so."""


class HeaderShown(msgspec.Struct, frozen=True):
    name: str
    value: Content


class HeaderSent(msgspec.Struct, frozen=True):
    name: str
    value: bytes


def content_of(data: bytes, kind: str = "", decode: Decode | None = None, *, most: int = SHOWN_BYTES) -> Content:
    """Bytes, to be shown. What is no text is not made one."""
    head = data[:most]
    decoded = None
    if decode is not None and len(data) <= DECODED_BYTES:
        try:
            decoded = decode(data)
        except InvalidRequest:
            kind = ""  # not of the schema: shown as what it is
    try:
        text: str | None = head.decode()
    except UnicodeDecodeError as error:
        whole = len(data) > most and error.start >= most - 3
        text = head[: error.start].decode() if whole else None
    if text is not None and any(ord(char) < 32 and char not in "\t\r\n" for char in text):
        text = None
    if not kind or decoded is None:
        kind = "binary" if text is None else "json" if _is_json(data) else "text"
    return Content(len(data), head, kind, text, decoded)


def _is_json(data: bytes) -> bool:
    if len(data) > DECODED_BYTES or data.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
