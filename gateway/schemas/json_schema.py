"""JSON Schema (drafts 7, 2019-09 and 2020-12), with everything bounded that a schema or a value could use against us.

A schema refers only to itself, and its patterns run in linear time. The library cannot be stopped, and nothing else runs
meanwhile: what a value may cost at most is known before it is asked. Alternatives that would double at each level end in a
refusal, not in a stalled event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import msgspec
import re2
from jsonschema_rs import ValidationError

from gateway.errors import InvalidRequest, TooLarge

DEEPEST = 32
"""Levels of a schema, and of a value."""
MOST_NODES = 5_000
"""Values inside a schema."""
MOST_REFERENCES = 64
"""How far subschemas and references that apply to one place may lead on: each is a frame on the library's stack."""
MOST_IN_PLACE = 10_000
"""Keywords that can apply to one and the same place of a value."""
STEPS = 5_000_000
"""What one value may cost. The library takes up to 10 ns a step, and nothing else runs meanwhile."""
QUICK_STEPS = 500_000
"""What is spent in the event loop before a thread is asked."""
_FIXED_STEPS = 16
"""Of each keyword at each place; one more for each value inside of that, since it may look at all of them."""
_TOLD_STEPS = 25
"""Saying what is wrong costs so much more than finding out whether anything is: a problem has a copy of its value."""
LARGEST_VALUE = 1 << 20
MOST_VALUES = 20_000
"""Values inside a message."""
MOST_PROBLEMS = 10
_LONGEST_TEXT = 200
_MASK = "\0"
"""What the library writes into its messages in place of the value, which may be long."""

_DRAFTS = {
    "": jsonschema_rs.Draft202012Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
}
_IN_PLACE = ("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
"""Keywords with schemas for the value itself."""
_FOR_EACH = ("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties")
_FOR_ITEMS = ("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems")
_BY_NAME = ("dependentSchemas", "dependencies", "properties", "patternProperties", "$defs", "definitions")
"""Keywords with schemas by name; others have one, or a list."""
_WITH_SCHEMAS = {*_IN_PLACE, *_FOR_EACH, *_FOR_ITEMS, *_BY_NAME, "contentSchema"}
_CHARACTERS = (
    dict.fromkeys(_WITH_SCHEMAS, 7)
    | dict.fromkeys(("required", "dependentRequired", "dependencies"), 2)
    | {"uniqueItems": 0}
)
"""How many characters of a keyword cost as much as a keyword, as a power of two, where it is not 32: each name that is
required may be missed, while subschemas are only looked up.
"""
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20


def parse(definition: bytes) -> dict[str, Any]:
    """The schema as an object; InvalidRequest if it is none."""
    try:
        schema = msgspec.json.decode(definition)
        _sizes(schema, MOST_NODES)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise InvalidRequest(f"the schema is not JSON: {problem}") from None
    except (TooLarge, RecursionError):
        raise InvalidRequest("the schema is too large or nested too deeply") from None
    if not isinstance(schema, dict):
        raise InvalidRequest("a JSON schema must be an object")
    return schema


def _sizes(value: Any, most: int) -> list[int]:
    # how many values there are on each level, names by their length
    sizes: list[int] = []
    level = [value]
    names = 0
    while level:
        sizes.append(len(level) + (names >> 4))
        most -= len(level)
        if len(sizes) > DEEPEST + 1:
            raise TooLarge("nested too deeply")
        if most < 0:
            raise TooLarge("too many values")
        objects = [one for one in level if isinstance(one, dict)]
        names = sum(len(name) for one in objects for name in one)
        inside = [item for one in level if isinstance(one, list) for item in one]
        level = [item for one in objects for item in one.values()] + inside
    return sizes


class JsonSchema:
    def __init__(self, definition: bytes) -> None:
        schema = parse(definition)
        self._schema: Any = schema
        named = str(schema.pop("$schema", "")).removesuffix("#")
        schema.pop("$id", None)
        if named not in _DRAFTS:
            raise InvalidRequest(f"this gateway does not know the draft {named[:_LONGEST_TEXT]!r}")
        try:
            jsonschema_rs.meta.validate(schema | ({"$schema": named} if named else {}))
            self._reach = _reach(_places(schema))
            self._validator = _DRAFTS[named](
                schema,
                validate_formats=False,
                offline=True,
                mask=_MASK,
                pattern_options=jsonschema_rs.RegexOptions(),
                keywords={"pattern": _Pattern},
            )
        except ValidationError as problem:
            raise InvalidRequest(f"invalid schema: {problem.message[:_LONGEST_TEXT]}") from None

    def problems(self, value: bytes) -> list[str]:
        if len(value) > LARGEST_VALUE:
            return ["too large to validate"]
        return self._problems(value, [STEPS])

    def decoded(self, value: bytes) -> str:
        """A value of this kind is JSON as it is."""
        return value.decode(errors="backslashreplace")

    def quickly(self, values: Sequence[bytes]) -> list[list[str]] | None:
        """The same for several, with few steps for all of them; None when they do not suffice."""
        steps = [QUICK_STEPS]
        found = [self._problems(value, steps) for value in values]
        return found if steps[0] >= 0 else None

    def _problems(self, value: bytes, left: list[int]) -> list[str]:
        try:
            instance = msgspec.json.decode(value)
            steps = self._steps(_sizes(instance, MOST_VALUES), len(value))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ["not a JSON document"]
        except TooLarge as problem:
            return [problem.message]
        except RecursionError:
            return ["nested too deeply"]
        left[0] -= steps
        if left[0] < 0:
            return ["too costly to validate"]
        if self._validator.is_valid(instance):
            return []
        left[0] -= steps * _TOLD_STEPS
        if left[0] < 0:
            return ["does not fit, and is too large to say where"]
        return [text for error in self._validator.iter_errors(instance) for text in self._texts(error)][:MOST_PROBLEMS]

    def _steps(self, sizes: Sequence[int], length: int) -> int:
        # what can be asked of a value at most; long texts count with their length
        below = sum(sizes) + (length >> 9)
        steps = 0
        for keywords, here in zip(self._reach, sizes, strict=False):
            steps += keywords * (_FIXED_STEPS * here + below)
            below -= here
        return steps

    def _texts(self, error: ValidationError) -> Iterator[str]:
        # a problem in the words of the FlyMQ document's implementation (FlyMQ wire 4)
        place = ".".join(map(str, error.instance_path))[:_LONGEST_TEXT]
        inside = f"{place}." if place else ""
        match error.kind.name:
            case "required":
                yield f"missing required field: {inside}{error.kind.value}"
            case "additionalProperties":
                yield from (f"unexpected field: {inside}{name}" for name in error.kind.value)
            case "type":
                wanted = reduce(getitem, error.schema_path, self._schema)
                names = " or ".join(wanted) if isinstance(wanted, list) else str(wanted)
                yield f"type mismatch at {place or 'the top'}: expected {names}, got {type_name(error.instance)}"
            case _:
                message = error.message.replace(_MASK, _shown(error.instance))[:_LONGEST_TEXT]
                yield f"{message} at {place}" if place else message


class _Pattern:
    """A pattern: the library's own, beside which nothing runs, may take a microsecond for each byte of a long text."""

    def __init__(self, _schema: object, pattern: str, _path: object) -> None:
        self._pattern = re2.compile(pattern, _OPTIONS)

    def validate(self, value: object) -> None:
        if isinstance(value, str) and not self._pattern.search(value):
            raise ValueError(f"does not match {self._pattern.pattern!r}")


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_TEXT >> 2 else f"the {type_name(value)}"


def type_name(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", type(None): "null", str: "string", list: "array"}
    return names.get(type(value), "object")


# --- what a schema may ask ---


def _places(schema: dict[str, Any]) -> dict[str, Any]:
    # its subschemas, by how they are referred to
    found: dict[str, Any] = {"#": schema}
    todo = [("#", schema)]
    for place, node in todo:  # grows while it is walked
        for name in _WITH_SCHEMAS & node.keys():
            for part, subschema in _parts(node, name):
                found[f"{place}/{part}"] = subschema
                if isinstance(subschema, dict):
                    todo.append((f"{place}/{part}", subschema))
    return found | {f"#{node['$anchor']}": node for _, node in todo if "$anchor" in node}


def _parts(node: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    # the schemas of a keyword
    value = node.get(name)
    if name in _BY_NAME and isinstance(value, dict):
        for key, subschema in value.items():
            if isinstance(subschema, dict | bool):  # `dependencies` may have lists of names
                yield f"{name}/{key.replace('~', '~0').replace('/', '~1')}", subschema
    elif isinstance(value, list):
        yield from ((f"{name}/{index}", subschema) for index, subschema in enumerate(value))
    elif value is not None:
        yield name, value


def _reach(places: Mapping[str, Any]) -> list[int]:
    # how many keywords of a schema can apply to one place of a value, level by level; refuses what has no bound
    below: dict[int, int] = {}
    here: dict[int, int] = {}
    within: list[int] = []

    def inside(node: Mapping[str, Any], *names: str) -> list[int]:
        return [below[id(part)] for name in names for _, part in _parts(node, name)]

    def weigh(node: Any) -> int:
        if id(node) in here:
            return here[id(node)]
        if isinstance(node, bool):
            return 0 if below else 1
        if id(node) in within:
            raise InvalidRequest("the schema refers to itself without going into the value")
        if len(within) >= MOST_REFERENCES:
            raise InvalidRequest("the schema's references are nested too deeply")
        within.append(id(node))
        parts = [part for name in _IN_PLACE for _, part in _parts(node, name)]
        if "$ref" in node:
            parts.append(_referred(node["$ref"], places))
        weight = sum(map(weigh, parts))
        if "unevaluatedProperties" in node or "unevaluatedItems" in node:
            weight *= 3  # once more, to see what they took, and what is in them does the same
        if below:
            named = max(inside(node, "properties"), default=0)
            weight += max(named + sum(inside(node, *_FOR_EACH)), sum(inside(node, *_FOR_ITEMS)))
        else:
            weight += _own(node)
        within.pop()
        here[id(node)] = weight
        return weight

    levels: list[int] = []
    for _ in range(DEEPEST + 1):
        here = {}
        for node in places.values():
            here[id(node)] = weigh(node)
        if not below and max(here.values()) > MOST_IN_PLACE:
            raise InvalidRequest("the schema has too many alternatives for one value")
        below = here
        levels.append(below[id(places["#"])])
    return levels


def _own(node: Mapping[str, Any]) -> int:
    # what a schema asks of a value by itself; refuses references elsewhere, and patterns that are not linear
    if "$dynamicRef" in node or "$recursiveRef" in node or "$id" in node:
        raise InvalidRequest("a schema has one $id at its top, and only plain references")
    patterns = [*node.get("patternProperties", ()), *([node["pattern"]] if "pattern" in node else ())]
    keywords = sum(1 + (len(msgspec.json.encode(said)) >> _CHARACTERS.get(name, 5)) for name, said in node.items())
    return keywords + 2 * sum(map(_instructions, patterns))


def _instructions(pattern: str) -> int:
    try:
        return int(re2.compile(pattern, _OPTIONS).programsize)
    except re2.error:
        raise InvalidRequest(f"this pattern cannot be served: {pattern[:_LONGEST_TEXT]!r}") from None


def _referred(reference: str, places: Mapping[str, Any]) -> Any:
    if not reference.startswith("#"):
        raise InvalidRequest(f"a schema refers only to itself, not to {reference[:_LONGEST_TEXT]!r}")
    try:
        return places[unquote(reference)]
    except KeyError:
        raise InvalidRequest(f"no schema is at {reference[:_LONGEST_TEXT]!r}") from None
