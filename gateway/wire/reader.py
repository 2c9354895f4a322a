"""Reading fields from a payload, with every bound checked before anything is allocated."""

from __future__ import annotations

import struct

from gateway.errors import Truncated, WireError

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")


class InvalidText(WireError):
    """A string is not UTF-8. `reason` and `position` come from the decoder."""

    def __init__(self, what: str, cause: UnicodeDecodeError) -> None:
        super().__init__(f"invalid utf8 {what}")
        self.what = what
        self.cause = cause


class Reader:
    """A cursor over one payload. Every method raises Truncated when the bytes are not there; `what` names the field."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end

    @property
    def left(self) -> int:
        return self.end - self.position

    def skip(self, size: int, what: str = "field") -> int:
        """Pass `size` bytes; returns where they began."""
        start = self.position
        if size > self.end - start:
            raise Truncated(f"truncated {what}")
        self.position = start + size
        return start

    def take(self, size: int, what: str = "field") -> bytes:
        start = self.skip(size, what)
        return self.data[start : start + size]

    def rest(self) -> bytes:
        return self.take(self.left)

    def u8(self, what: str = "field") -> int:
        return self.data[self.skip(1, what)]

    def u16(self, what: str = "field") -> int:
        """A big-endian u16."""
        value: int = _U16.unpack_from(self.data, self.skip(2, what))[0]
        return value

    def u32(self, what: str = "field") -> int:
        """A big-endian u32."""
        value: int = _U32.unpack_from(self.data, self.skip(4, what))[0]
        return value

    def i32(self, what: str = "field") -> int:
        """A big-endian i32."""
        value: int = _I32.unpack_from(self.data, self.skip(4, what))[0]
        return value

    def u64(self, what: str = "field") -> int:
        """A big-endian u64."""
        value: int = _U64.unpack_from(self.data, self.skip(8, what))[0]
        return value

    def i64(self, what: str = "field") -> int:
        """A big-endian i64."""
        value: int = _I64.unpack_from(self.data, self.skip(8, what))[0]
        return value

    def text8(self, what: str = "text") -> str:
        """u8 length, UTF-8."""
        return self._text(self.u8(what), what)

    def text16(self, what: str = "text") -> str:
        """u16 length, UTF-8."""
        data, start = self.data, self.skip(2, what)  # in nearly every request there is one: as few calls as it takes
        start = self.skip(data[start] << 8 | data[start + 1], what)
        raw = data[start : self.position]
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidText(what, error) from None

    def fixed(self, layout: struct.Struct, what: str = "field") -> tuple[int, ...]:
        """Numbers that stand one behind the other."""
        return layout.unpack_from(self.data, self.skip(layout.size, what))

    def bytes32(self, what: str = "bytes") -> bytes:
        """u32 length, raw bytes."""
        return self.take(self.u32(what), what)

    def count32(self, smallest: int, what: str = "count") -> int:
        """A u32 count of elements that take at least `smallest` bytes each: refused if they cannot all be there."""
        count = self.u32(what)
        if count * smallest > self.left:
            raise Truncated(f"truncated {what}")
        return count

    def _text(self, size: int, what: str) -> str:
        raw = self.take(size, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidText(what, error) from None
