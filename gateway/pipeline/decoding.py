"""Payloads for people: as base64, text, JSON, or Avro by a schema that was registered."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import fastavro
import msgspec

from gateway.errors import InvalidRequest, NotFound, StoreError
from gateway.errors import Status as _Status
from gateway.schemas.avro import AvroSchema
from gateway.store.reader import LogReader

SCHEMAS = "schemas"
_VERSION_BYTES = 4
"""Behind the name and a NUL, in the key of a row; version 0 is the counter."""
_AVRO = "avro"


class Undecodable(StoreError):
    """A value is not what it was said to be."""

    status = _Status.SCHEMA


@attrs.frozen
class Definition:
    """One version of a registered schema."""

    name: str
    version: int
    text: bytes
    kind: str = _AVRO
    compiled: bytes = b""
    """Protobuf: the descriptor set."""


class _SchemaRow(msgspec.Struct):
    kind: str
    definition: bytes
    compiled: bytes = b""


def registered(store: str, name: str, version: int | None = None) -> Sequence[Definition]:
    """The versions of an Avro schema in a store's registry, the newest first. Raises NotFound, InvalidRequest."""
    found = definitions(store, name, version)
    other = next((one.kind for one in found if one.kind != _AVRO), "")
    if other:
        raise InvalidRequest(f"the schema {name} is {other}, not Avro")
    return found


def definitions(store: str, name: str, version: int | None = None) -> Sequence[Definition]:
    """The versions of a schema in a store's registry, the newest first. Raises NotFound."""
    prefix = name.encode() + b"\0"
    found: list[Definition] = []
    with LogReader(store) as reader:
        for key, row in reader.scan(SCHEMAS, prefix, 1 << 20):
            if not key.startswith(prefix):
                break
            number = int.from_bytes(key[-_VERSION_BYTES:], "big")
            if len(key) == len(prefix) + _VERSION_BYTES and number and version in {None, number}:
                kept = msgspec.msgpack.decode(row, type=_SchemaRow)
                found.append(Definition(name, number, kept.definition, kept.kind, kept.compiled))
    if not found:
        which = f" version {version}" if version is not None else ""
        raise NotFound(f"no schema {name}{which} is registered in {store}")
    return found[::-1]


Decode = Callable[[bytes], str]
"""Makes text of a value; raises Undecodable."""


def text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(f"not UTF-8 at byte {error.start}") from error


def base64(value: bytes) -> str:
    return b64encode(value).decode()


def as_json(value: bytes) -> str:
    """JSON, written anew in one line."""
    try:
        return json.dumps(json.loads(value), ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"not JSON: {error}") from error


class Avro:
    """By the versions of a schema: the newest under which the bytes are a whole value."""

    def __init__(self, definitions: Sequence[Definition]) -> None:
        self._versions = [(one, AvroSchema(one.text)) for one in definitions]

    def __call__(self, value: bytes) -> str:
        """As JSON; bytes as Avro's own JSON writes them, a character for each."""
        problems: list[str] = []
        for one, schema in self._versions:
            wrong = schema.problems(value)
            if not wrong:
                found = fastavro.schemaless_reader(io.BytesIO(value), schema.schema, None)
                return json.dumps(found, ensure_ascii=False, separators=(",", ":"), default=_latin)
            problems.append(f"version {one.version}: {wrong[0]}")
        raise Undecodable(f"not {self._versions[0][0].name}: {'; '.join(problems[:3])}")


def _latin(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return str(value)


@attrs.frozen
class Decoding:
    """How values become text. It travels to executors, where what it needs is made."""

    kind: str
    """base64, text, json, avro"""
    schemas: Mapping[str, Sequence[Definition]] = attrs.Factory(dict)
    """For Avro, by topic."""

    def maker(self) -> Callable[[str], Decode]:
        plain: Mapping[str, Decode] = {"base64": base64, "text": text, "json": as_json}
        if self.kind in plain:
            return lambda _topic: plain[self.kind]
        made: dict[str, Avro] = {}

        def by_topic(topic: str) -> Decode:
            if topic not in made:
                made[topic] = Avro(self.schemas[topic])
            return made[topic]

        return by_topic


def header_text(pairs: Sequence[Mapping[str, Any]] | None) -> str:
    """Headers as a JSON list of pairs; a value that is no text as {"base64": ...}."""

    def shown(value: bytes) -> object:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64(value)}

    rows = [[pair["name"], shown(pair["value"])] for pair in pairs or ()]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def lines(rows: Iterator[Mapping[str, Any]], *, embed: bool) -> Iterator[str]:
    """JSON lines; a value that is JSON stands in its line as it is."""
    for row in rows:
        value = row["value"]
        rest = {name: cell for name, cell in row.items() if name not in {"value", "headers"}}
        head = json.dumps(rest, ensure_ascii=False)[:-1]
        shown = value if embed or value is None else json.dumps(value, ensure_ascii=False)
        yield f'{head}, "headers": {row["headers"]}, "value": {"null" if shown is None else shown}}}'
