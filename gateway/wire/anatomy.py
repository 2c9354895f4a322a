"""A frame taken apart for people: which bytes are which field, what they say, and why they are there."""

from __future__ import annotations

import msgspec

from gateway.errors import Truncated


class FramePart(msgspec.Struct, frozen=True):
    """Bytes [start, end) of a frame."""

    name: str
    start: int
    end: int
    shows: str
    """What the bytes say, for people."""
    says: str = ""
    """What the bytes are for."""
    holds: str = ""
    """What of the message is in them: `value`, `key`, `offset`, `time`, `partition`, or nothing."""


class Carried(msgspec.Struct, frozen=True):
    """A message as one protocol carries it: the frame that goes out, whole, and its parts without a gap."""

    title: str
    frame: bytes
    parts: tuple[FramePart, ...]
    dialect: str = ""
    """Of a frame of a dialect that carries something else than the protocol's first one."""
    without: tuple[str, ...] = ()
    """What the dialect carries, and this kind of its frames does not: `key`, `headers`, `expiry`."""


class Dissection:
    """Goes through a frame from its first byte to its last; `carried` refuses one that was not gone through."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._at = 0
        self._parts: list[FramePart] = []

    @property
    def left(self) -> int:
        return len(self._frame) - self._at

    def number(self, size: int, name: str, says: str = "", *, holds: str = "", hexadecimal: bool = False) -> int:
        """An unsigned number, big-endian."""
        value = int.from_bytes(self._frame[self._at : self._at + size], "big")
        self._add(size, name, f"0x{value:0{2 * size}x}" if hexadecimal else str(value), says, holds)
        return value

    def word(self, size: int, name: str, meaning: str, says: str = "") -> None:
        """Bytes whose meaning is known to who wrote them."""
        raw = self._frame[self._at : self._at + size]
        self._add(size, name, f"0x{raw.hex()}: {meaning}", says, "")

    def text(self, size: int, name: str, says: str = "", *, holds: str = "") -> str:
        raw = self._frame[self._at : self._at + size].decode(errors="backslashreplace")
        self._add(size, name, raw, says, holds)
        return raw

    def content(self, size: int, name: str, holds: str, says: str = "") -> None:
        """Bytes of the message's own."""
        self._add(size, name, f"{size} bytes", says, holds)

    def base64_after(self, before: bytes, name: str, holds: str) -> None:
        """JSON, with a value in base64 between the first place where `before` stands and the next quote."""
        start = self._frame.index(before, self._at) + len(before)
        end = self._frame.index(b'"', start)
        self.text(start - self._at, "json", "What surrounds the value, as it is.")
        self._add(end - start, name, f"{(end - start) // 4 * 3} bytes or less", "The value, in base64.", holds)
        self.text(self.left, "json", "The rest.")

    def carried(self, title: str, dialect: str = "", *, without: tuple[str, ...] = ()) -> Carried:
        if self.left:
            raise Truncated(f"{self.left} bytes of a frame are not explained")
        return Carried(title, self._frame, tuple(self._parts), dialect, without)

    def _add(self, size: int, name: str, shows: str, says: str, holds: str) -> None:
        end = self._at + size
        if size < 0 or end > len(self._frame):
            raise Truncated(f"the frame ends before {name}")
        self._parts.append(FramePart(name, self._at, end, shows, says, holds))
        self._at = end
