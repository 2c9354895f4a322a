"""Frames of STOMP 1.2 (its specification, "STOMP Frames" and "Augmented BNF")."""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

LARGEST_HEAD = 16 << 10
LARGEST_BODY = 1 << 20
MOST_HEADERS = 64
PLAIN = ("CONNECT", "CONNECTED")
"""Their headers are not escaped, so that older clients can be told which version it is."""

_ESCAPES = {"\\": "\\\\", "\r": "\\r", "\n": "\\n", ":": "\\c"}
_MEANT = {escaped: plain for plain, escaped in _ESCAPES.items()}


class Malformed(Exception):
    """What came is no frame; the text says why."""


@attrs.frozen
class Frame:
    """A command with its headers, of which the first of a name counts, and a body."""

    command: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.headers if key == name), default)

    def needed(self, name: str) -> str:
        value = self.get(name)
        if not value:
            raise Malformed(f"{self.command} needs the header {name}")
        return value

    def encode(self) -> bytes:
        lines = [self.command]
        escape = self.command not in PLAIN
        lines += [
            f"{_escaped(name)}:{_escaped(value)}" if escape else f"{name}:{value}" for name, value in self.headers
        ]
        if self.body:
            lines.append(f"content-length:{len(self.body)}")
        return "\n".join(lines).encode() + b"\n\n" + self.body + b"\0"


def _escaped(text: str) -> str:
    return re.sub(r"[\\\r\n:]", lambda found: _ESCAPES[found[0]], text)


def _meant(text: str) -> str:
    def meaning(found: re.Match[str]) -> str:
        if found[0] not in _MEANT:
            raise Malformed(f"there is no escape {found[0]!r}")
        return _MEANT[found[0]]

    return re.sub(r"\\.?", meaning, text)


def take(buffer: bytearray, largest_body: int = LARGEST_BODY) -> Frame | None:
    """The next frame, taken off the buffer with the line ends before it; None as long as it is not whole."""
    beats = len(buffer) - len(buffer.lstrip(b"\r\n"))
    del buffer[:beats]
    end = re.search(rb"\n\r?\n", buffer)
    if end is None:
        if len(buffer) > LARGEST_HEAD:
            raise Malformed("the headers are too long")
        return None
    if end.start() > LARGEST_HEAD:
        raise Malformed("the headers are too long")
    try:
        lines = [line.removesuffix("\r") for line in buffer[: end.start()].decode().split("\n")]
    except UnicodeDecodeError:
        raise Malformed("the headers are no UTF-8") from None
    frame = _head(lines)
    length = frame.get("content-length")
    if length:
        if not (length.isascii() and length.isdecimal() and len(length) <= 10):
            raise Malformed("content-length is a number")
        stop = end.end() + int(length)
        if int(length) > largest_body:
            raise Malformed(f"a body has at most {largest_body} bytes")
        if len(buffer) <= stop:
            return None
        if buffer[stop]:
            raise Malformed("no NUL behind the body")
    else:
        stop = buffer.find(b"\0", end.end())
        if (stop if stop >= 0 else len(buffer)) - end.end() > largest_body:
            raise Malformed(f"a body has at most {largest_body} bytes")
        if stop < 0:
            return None
    body = bytes(buffer[end.end() : stop])
    del buffer[: stop + 1]
    return attrs.evolve(frame, body=body)


def _head(lines: Sequence[str]) -> Frame:
    command, *rest = lines
    if len(rest) > MOST_HEADERS:
        raise Malformed("too many headers")
    headers = []
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon:
            raise Malformed(f"no header: {line[:80]!r}")
        headers.append((name, value) if command in PLAIN else (_meant(name), _meant(value)))
    return Frame(command, headers)
