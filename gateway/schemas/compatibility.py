"""Backward compatibility: whether what fits a schema's old version can be read with its new one.

JSON Schema has no rules of its own for that; ours are those of the FlyMQ document's implementation (a newly required
field must have been known, FlyMQ wire 4) and the plain sense of narrowing: a type, an enumeration or the set of allowed
fields only grows. Avro's are the rules of schema resolution in its specification.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.schemas.avro import kind_of, name_of, resolve
from gateway.schemas.avro import parse as parse_avro
from gateway.schemas.json_schema import parse as parse_json

# --- JSON Schema ---


def json_incompatibilities(old: bytes, new: bytes) -> list[str]:
    """Why values of the old version may not fit the new one; empty if they do as far as the rules see."""
    return list(_json(parse_json(old), parse_json(new), ""))


def _json(old: Any, new: Any, path: str) -> Iterator[str]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        if new is False and old is not False:
            yield f"nothing is allowed any more at {path or 'the top'}"
        return
    before = _dict(old.get("properties"))
    after = _dict(new.get("properties"))
    for name in _texts(new.get("required")):
        if name not in before and name not in _texts(old.get("required")):
            yield f"new required field: {path}{name}"
    if new.get("additionalProperties") is False:
        if "properties" in old and old.get("additionalProperties") is not False and not after.keys() >= before.keys():
            yield f"other fields are not allowed any more at {path or 'the top'}"
        elif old.get("additionalProperties") is False:
            for name in before.keys() - after.keys():
                yield f"field is not allowed any more: {path}{name}"
    yield from _narrowed_type(old, new, path)
    if isinstance(new.get("enum"), list):
        allowed = old.get("enum")
        if not isinstance(allowed, list) or any(value not in new["enum"] for value in allowed):
            yield f"values are not allowed any more at {path or 'the top'}"
    for name in sorted(before.keys() & after.keys()):
        yield from _json(before[name], after[name], f"{path}{name}.")
    if isinstance(old.get("items"), dict) and isinstance(new.get("items"), dict):
        yield from _json(old["items"], new["items"], f"{path}[].")


def _narrowed_type(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[str]:
    if "type" not in new:
        return
    allowed = set(_texts(new["type"]))
    if "number" in allowed:
        allowed.add("integer")
    if "type" not in old or not allowed.issuperset(_texts(old["type"])):
        yield f"type is narrower than before: {path.rstrip('.') or 'the top'}"


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value) if isinstance(value, list) else []


# --- Avro ---

_PROMOTIONS: Mapping[str, frozenset[str]] = {
    "int": frozenset(("long", "float", "double")),
    "long": frozenset(("float", "double")),
    "float": frozenset(("double",)),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}


def avro_incompatibilities(old: bytes, new: bytes) -> list[str]:
    """Why values of the old version cannot be read with the new one; empty if they can."""
    writer, writer_names = parse_avro(old)
    reader, reader_names = parse_avro(new)
    return list(_Resolution(writer_names, reader_names).problems(writer, reader, "the top"))


class _Resolution:
    """Avro's schema resolution (Avro specification 1.11, "Schema Resolution"), without values."""

    def __init__(self, writer_names: Mapping[str, Any], reader_names: Mapping[str, Any]) -> None:
        self._writer_names = writer_names
        self._reader_names = reader_names
        self._seen: set[tuple[str, str]] = set()

    def problems(self, writer: Any, reader: Any, path: str) -> Iterator[str]:
        writer = resolve(writer, self._writer_names)
        reader = resolve(reader, self._reader_names)
        wrote, reads = kind_of(writer), kind_of(reader)
        if wrote == "union":
            for branch in writer:
                yield from self.problems(branch, reader, path)
        elif reads == "union":
            if all(self._first(writer, branch, path) for branch in reader):
                yield f"{wrote} cannot be read any more at {path}"
        elif wrote == reads:
            yield from self._same_kind(wrote, writer, reader, path)
        elif reads not in _PROMOTIONS.get(wrote, ()):
            yield f"type mismatch at {path}: {wrote} cannot be read as {reads}"

    def _first(self, writer: Any, reader: Any, path: str) -> str:
        return next(self.problems(writer, reader, path), "")

    def _same_kind(self, kind: str, writer: Any, reader: Any, path: str) -> Iterator[str]:
        match kind:
            case "array":
                yield from self.problems(writer["items"], reader["items"], f"{path}[]")
            case "map":
                yield from self.problems(writer["values"], reader["values"], f"{path}{{}}")
            case "fixed":
                if writer["size"] != reader["size"] or not _same_name(writer, reader):
                    yield f"fixed type changed at {path}"
            case "enum":
                gone = set(writer["symbols"]) - set(reader["symbols"])
                if gone and "default" not in reader:
                    yield f"symbols are gone at {path}: {', '.join(sorted(gone))[:200]}"
            case "record" | "error":
                yield from self._records(writer, reader, path)
            case _:
                return

    def _records(self, writer: Any, reader: Any, path: str) -> Iterator[str]:
        pair = name_of(writer), name_of(reader)
        if pair in self._seen:
            return
        self._seen.add(pair)
        if not _same_name(writer, reader):
            yield f"record {pair[0]} was renamed to {pair[1]}"
            return
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            names: Sequence[str] = (field["name"], *field.get("aliases", ()))
            source = next((written[name] for name in names if name in written), None)
            if source is not None:
                yield from self.problems(source["type"], field["type"], f"{path}.{field['name']}")
            elif "default" not in field:
                yield f"new required field: {path}.{field['name']}"


def _same_name(writer: Any, reader: Any) -> bool:
    wanted = {name.rsplit(".", 1)[-1] for name in (name_of(reader), *reader.get("aliases", ()))}
    return name_of(writer).rsplit(".", 1)[-1] in wanted
