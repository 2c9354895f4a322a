"""Avro: one message is one value in Avro's binary encoding, without a header.

The library decodes in C without a limit of depth, so that a schema or a value that nests for ever ends the process; and
an array of values that take no bytes is as long as its count says. Such schemas are refused before they are used, and
values of a type that contains itself are read by the library's plain Python reader, which the interpreter guards.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fastavro
import fastavro.schema
import msgspec
from fastavro import _read_py  # the one private name: see `_reader`
from fastavro.schema import SchemaParseException, UnknownType

from gateway.errors import InvalidRequest

DEEPEST = 32
"""Levels of a schema, as it is written."""
MOST_NODES = 2_000
"""Values in a schema's JSON."""
MOST_IN_PLACE = 2_000
"""Fields of a record and of the records in it, which take time even where they take no bytes."""
MOST_BRANCHES = 64
"""Branches of one union."""
LARGEST_FIXED = 1 << 20
LARGEST_VALUE = 1 << 20
LARGEST_AT_ONCE = 32 << 10
"""The library's C reader lets nobody else run: a longer value is read by its Python reader, four times slower."""
_LONGEST_TEXT = 200

_NAMED = frozenset(("record", "error", "enum", "fixed"))
_PRIMITIVE = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))

# what decoding raises for bytes that are no value of the schema
_REFUSALS = (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, AttributeError)


class AvroSchema:
    def __init__(self, definition: bytes) -> None:
        self.schema, self.named = parse(definition)
        shape = _Shape(self.named)
        shape.check(self.schema)
        self._read = _reader(recursive=shape.recursive)

    def problems(self, value: bytes) -> list[str]:
        if len(value) > LARGEST_VALUE:
            return ["too large to validate"]
        stream = io.BytesIO(value)
        read = self._read if len(value) <= LARGEST_AT_ONCE else _read_py.schemaless_reader
        try:
            read(stream, self.schema, None)
        except RecursionError:
            return ["nested too deeply"]
        except _REFUSALS as problem:
            why = str(problem) or "cut off"
            return [f"not a value of the schema: {why[:_LONGEST_TEXT]}"]
        if stream.tell() != len(value):
            return ["bytes are left over after the value"]
        return []

    def decoded(self, value: bytes) -> str:
        """A value as JSON; bytes in base64. Raises InvalidRequest for one that is none of the schema."""
        if found := self.problems(value):
            raise InvalidRequest("; ".join(found))
        plain = self._read(io.BytesIO(value), self.schema, None)
        return msgspec.json.encode(plain).decode()

    def quickly(self, values: Sequence[bytes]) -> list[list[str]]:
        """What is wrong with each of a few short values."""
        return [self.problems(value) for value in values]


def _reader(*, recursive: bool) -> Any:
    return _read_py.schemaless_reader if recursive else fastavro.schemaless_reader


def parse(definition: bytes) -> tuple[Any, Mapping[str, Any]]:
    """The schema as the library wants it, and its named types; InvalidRequest if it is none."""
    try:
        plain = _plain(msgspec.json.decode(definition), [MOST_NODES], 0)
        named: dict[str, Any] = {}
        schema = fastavro.parse_schema(plain, named_schemas=named)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # a bare name of a primitive type is often written without quotes
        name = definition.decode("ascii", "replace").strip()
        if name not in _PRIMITIVE:
            raise InvalidRequest("the schema is not JSON") from None
        return name, {}
    except RecursionError:
        raise InvalidRequest("the schema is nested too deeply") from None
    except (SchemaParseException, UnknownType, *_REFUSALS) as problem:
        raise InvalidRequest(f"invalid schema: {problem!s:.{_LONGEST_TEXT}}") from None
    return schema, named


def _plain(node: Any, left: list[int], depth: int) -> Any:
    # the schema without logical types: they would turn values into dates and decimals that nobody asked for
    left[0] -= 1
    if depth > DEEPEST or left[0] < 0:
        raise InvalidRequest("the schema is too large or nested too deeply")
    if isinstance(node, dict):
        return {key: _plain(child, left, depth + 1) for key, child in node.items() if key != "logicalType"}
    if isinstance(node, list):
        return [_plain(child, left, depth + 1) for child in node]
    return node


class _Shape:
    """Looks for what no value of finite size can have, and for types that contain themselves."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._open: set[str] = set()
        self._checked: set[str] = set()
        self._measured: dict[str, tuple[bool, int]] = {}
        self.recursive = False

    def check(self, schema: Any) -> None:
        """Refuse a schema that cannot be used safely."""
        schema = resolve(schema, self._named)
        name = name_of(schema)
        if name in self._open:
            self.recursive = True
            return
        if name in self._checked:
            return
        if name:
            self._open.add(name)
        kind = kind_of(schema)
        if kind == "union" and len(schema) > MOST_BRANCHES:
            raise InvalidRequest(f"a union has at most {MOST_BRANCHES} branches")
        if kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or not 0 <= size <= LARGEST_FIXED:
                raise InvalidRequest(f"a fixed type has at most {LARGEST_FIXED} bytes")
        if self._measure(schema, ())[1] > MOST_IN_PLACE:
            raise InvalidRequest(f"a record has at most {MOST_IN_PLACE} fields, with those of the records in it")
        if kind == "array" and self._measure(schema["items"], ())[0]:
            raise InvalidRequest("an array's items must take at least one byte")
        for child in _children(schema):
            self.check(child)
        if name:
            self._open.discard(name)
            self._checked.add(name)

    def _measure(self, schema: Any, inside: tuple[str, ...]) -> tuple[bool, int]:
        # Whether values can be empty, and how many fields are read before a byte has to be there.
        #
        # InvalidRequest for a record that needs itself to be complete.
        schema = resolve(schema, self._named)
        kind = kind_of(schema)
        if kind == "fixed":
            return schema.get("size") == 0, 1
        if kind not in ("record", "error"):
            return kind == "null", 1
        name = name_of(schema)
        if name in inside:
            raise InvalidRequest(f"the record {name} contains itself without an end")
        if name not in self._measured:
            fields = [self._measure(field["type"], (*inside, name)) for field in schema["fields"]]
            self._measured[name] = all(empty for empty, _ in fields), 1 + sum(count for _, count in fields)
        return self._measured[name]


# --- walking a parsed schema ---


def resolve(schema: Any, named: Mapping[str, Any]) -> Any:
    """The definition behind a name."""
    return named[schema] if isinstance(schema, str) and schema in named else schema


def kind_of(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def name_of(schema: Any) -> str:
    """The full name of a named type, empty for others."""
    return str(schema["name"]) if isinstance(schema, dict) and schema.get("type") in _NAMED else ""


def _children(schema: Any) -> Iterator[Any]:
    match kind_of(schema):
        case "union":
            yield from schema
        case "array":
            yield schema["items"]
        case "map":
            yield schema["values"]
        case "record" | "error":
            for field in schema["fields"]:
                yield field["type"]
        case _:
            return
