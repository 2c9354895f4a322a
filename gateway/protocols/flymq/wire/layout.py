"""Payloads as tables: a `Layout` is a list of field types that is read and written by the same definition.

The types are the document's (FlyMQ document, Binary Encoding Rules) and `str8`, the u8 length that the shipped clients
use for modes, types and role names (FlyMQ wire, Notation).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import attrs

from gateway.errors import InvalidRequest, Truncated, WireError
from gateway.wire.reader import InvalidText, Reader

Decode = Callable[[Reader], Any]
Encode = Callable[[Any], bytes]


@attrs.frozen
class LayoutField:
    """How one field is read and written, and the fewest bytes it takes: what a count is checked against."""

    decode: Decode
    encode: Encode
    smallest: int
    number: str = ""
    """How `struct` calls it, if it is a number."""


def _integer(form: str, decode: Decode) -> LayoutField:
    packer = struct.Struct(form)
    return LayoutField(decode, packer.pack, packer.size, form.removeprefix(">"))


def _text(value: str, form: str, longest: int) -> bytes:
    raw = value.encode()
    if len(raw) > longest:
        raise InvalidRequest(f"a name of {len(raw)} bytes does not fit its field of at most {longest}")
    return struct.pack(form, len(raw)) + raw


def _bytes(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


BOOL = LayoutField(lambda reader: reader.u8() != 0, lambda value: b"\x01" if value else b"\x00", 1)
I32 = _integer(">i", Reader.i32)
U32 = _integer(">I", Reader.u32)
I64 = _integer(">q", Reader.i64)
U64 = _integer(">Q", Reader.u64)
STR = LayoutField(Reader.text16, lambda value: _text(value, ">H", 0xFFFF), 2)
STR8 = LayoutField(Reader.text8, lambda value: _text(value, ">B", 0xFF), 1)
BYTES = LayoutField(Reader.bytes32, _bytes, 4)


class Layout:
    """Fields one after the other, decoded to a tuple in the same order."""

    __slots__ = ("_steps", "fields", "smallest")

    def __init__(self, *fields: LayoutField) -> None:
        self.fields = fields
        self.smallest = sum(field.smallest for field in fields)
        self._steps: list[Decode | struct.Struct] = []
        """Numbers that follow each other are read together."""
        for numbers, some in groupby(fields, lambda field: field.number != ""):
            if numbers:
                self._steps.append(struct.Struct(">" + "".join([field.number for field in some])))
            else:
                self._steps += [field.decode for field in some]

    def read(self, reader: Reader) -> tuple[Any, ...]:
        values: list[Any] = []
        for step in self._steps:
            if isinstance(step, struct.Struct):
                values += reader.fixed(step)
            else:
                values.append(step(reader))
        return tuple(values)

    def decode(self, payload: bytes) -> tuple[Any, ...]:
        """The fields of a payload; bytes behind them are ignored, as every real decoder does (FlyMQ wire, Notation)."""
        with WireWords():
            return self.read(Reader(payload))

    def exact(self, payload: bytes, position: int = 0) -> tuple[Any, ...] | None:
        """The fields if they fill the payload to its last byte, else None."""
        reader = Reader(payload, position)
        try:
            values = self.read(reader)
        except WireError:
            return None
        return values if reader.left == 0 else None

    def encode(self, *values: Any) -> bytes:
        return b"".join([field.encode(value) for field, value in zip(self.fields, values, strict=True)])


class WireWords:
    """What the shipped server says about payloads it cannot read (FlyMQ wire 2.1)."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Truncated):
            raise Truncated("buffer too small") from None
        if isinstance(error, InvalidText):
            raise WireError("invalid binary format") from None


def many(element: Layout | LayoutField, most: int | None = None) -> LayoutField:
    """`T[]`: a u32 count, then the elements. One-field elements decode to a list of values, others to tuples.

    `most`: what a request may have; they are decoded one by one.
    """
    if isinstance(element, LayoutField):
        decode, encode, smallest = element.decode, element.encode, element.smallest
    else:
        decode, smallest = element.read, element.smallest

        def encode(value: Any) -> bytes:
            return element.encode(*value)

    def read(reader: Reader) -> list[Any]:
        count = reader.count32(smallest)
        if most is not None and count > most:
            raise InvalidRequest(f"a list of {count} entries, at most {most}")
        return [decode(reader) for _ in range(count)]

    def write(values: Sequence[Any]) -> bytes:
        return struct.pack(">I", len(values)) + b"".join([encode(value) for value in values])

    return LayoutField(read, write, 4)


NAMES = many(STR)
"""`str[]`."""
