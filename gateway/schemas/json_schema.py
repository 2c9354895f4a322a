"""JSON Schema (drafts 7, 2019-09 and 2020-12), with everything bounded that a schema or a value could use against us.

A schema refers only to itself, its patterns run in linear time (re2), and what it asks of one value is counted in steps:
nested alternatives that would double at each level end in a refusal, not in a stalled event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import jsonschema
import msgspec
import re2
import referencing
import referencing.jsonschema
from jsonschema.exceptions import SchemaError, ValidationError

from gateway.errors import InvalidRequest, TooLarge

DEEPEST = 32
"""Levels of a schema, and of a value."""
MOST_NODES = 5_000
"""Values inside a schema."""
MOST_REFERENCES = 100
"""How far references that lead on to references may go at one place."""
MOST_IN_PLACE = 1_000
"""Subschemas that can apply to one and the same place of a value."""
FEWEST_STEPS, STEPS_PER_BYTE, MOST_STEPS = 500, 20, 100_000
"""Keywords applied to one message, by its size (a step takes about 9 us): what it may cost follows what it cost to send."""
QUICK_STEPS = 400
"""What is spent in the event loop before a thread is asked."""
LARGEST_VALUE = 1 << 20
MOST_VALUES = 20_000
"""Values inside a message."""
MOST_PROBLEMS = 10
_LONGEST_TEXT = 200
_BITS = 1024
"""Bits of a number: longer ones only serve to keep us busy."""

_DRAFTS = {
    "": jsonschema.Draft202012Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema.Draft202012Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema.Draft201909Validator,
    "http://json-schema.org/draft-07/schema": jsonschema.Draft7Validator,
}
_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
_ONES = (
    *_IN_PLACE,
    *("additionalProperties", "propertyNames", "unevaluatedProperties", "contentSchema"),
    *("items", "additionalItems", "contains", "unevaluatedItems"),
)
_LISTS = (*_IN_PLACE_LISTS, "prefixItems", "items")
_MAPS = (*_IN_PLACE_MAPS, "properties", "patternProperties", "$defs", "definitions")
"""Keywords that hold a schema, a list of them, or schemas by name."""
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20


class _TooMuch(Exception):
    """The steps are used up."""


# --- the value ---

_PLAIN = frozenset((str, int, float, bool, type(None)))


class _Object(dict[str, Any]):
    """An object whose text is short: the library writes the text of what it looks at into each message it makes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "the object"


class _Array(list[Any]):
    """An array whose text is short."""

    __slots__ = ()

    def __repr__(self) -> str:
        return super().__repr__() if len(self) <= 8 and _PLAIN.issuperset(map(type, self)) else "the array"


class _Text(str):
    """A long text whose text is short."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "the text"


def _bounded(value: Any, left: list[int], depth: int) -> Any:
    # the value with short texts; raises TooLarge where it is too deep or too much
    left[0] -= 1
    if depth > DEEPEST:
        raise TooLarge("nested too deeply")
    if left[0] < 0:
        raise TooLarge("too many values")
    if isinstance(value, dict):
        return _Object({key: _bounded(item, left, depth + 1) for key, item in value.items()})
    if isinstance(value, list):
        return _Array([_bounded(item, left, depth + 1) for item in value])
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return _Text(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)  # 1.0 is the integer 1
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise TooLarge("a number is too large")
    return value


# --- keywords of our own: our texts, linear patterns, steps ---

_steps: ContextVar[list[int]] = ContextVar("steps")


def _spend(steps: int) -> None:
    left = _steps.get()
    left[0] -= steps
    if left[0] < 0:
        raise _TooMuch


_Keyword = Callable[[Any, Any, Any, Any], Any]


def _counted(keyword: _Keyword) -> _Keyword:
    def count(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _spend(1 + (len(value) if isinstance(value, list) else 0))
        return keyword(validator, value, instance, schema)

    return count


def _matches(pattern: str, text: str) -> bool:
    _spend(len(text) >> 8)
    return re2.search(pattern, text, _OPTIONS) is not None


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield ValidationError(f"does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for name, item in instance.items():
                _spend(1)
                if _matches(pattern, name):
                    yield from validator.descend(item, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, extra: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    known = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    for name, item in instance.items():
        _spend(1 + len(patterns))
        if name in known or any(_matches(pattern, name) for pattern in patterns):
            continue
        if extra is False:
            yield ValidationError("", path=[name])
        elif extra is not True:
            yield from validator.descend(item, extra, path=name)


def _required(validator: Any, required: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for name in required:
            if name not in instance:
                yield ValidationError("", path=[name])


def _unique_items(validator: Any, unique: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if unique and validator.is_type(instance, "array"):
        encoded = [msgspec.json.encode(item, order="sorted") for item in instance]
        _spend(len(encoded) + (sum(map(len, encoded)) >> 6))
        if len(set(encoded)) != len(encoded):
            yield ValidationError("the array has equal items")


_OURS: Mapping[str, _Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "required": _required,
    "uniqueItems": _unique_items,
}


def _guarded(draft: Any) -> Any:
    keywords = {**draft.VALIDATORS, **_OURS}
    extend: Any = jsonschema.validators.extend
    return extend(draft, {name: _counted(keyword) for name, keyword in keywords.items()})


_GUARDED = {draft: _guarded(draft) for draft in set(_DRAFTS.values())}


# --- the schema ---


def parse(definition: bytes) -> dict[str, Any]:
    """The schema as an object; InvalidRequest if it is none."""
    try:
        schema = msgspec.json.decode(definition)
        plain = _bounded(schema, [MOST_NODES], 0)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise InvalidRequest(f"the schema is not JSON: {problem}") from None
    except (TooLarge, RecursionError):
        raise InvalidRequest("the schema is too large or nested too deeply") from None
    if not isinstance(plain, dict):
        raise InvalidRequest("a JSON schema must be an object")
    return plain


class JsonSchema:
    def __init__(self, definition: bytes) -> None:
        schema = parse(definition)
        named = str(schema.pop("$schema", "")).removesuffix("#")
        schema.pop("$id", None)
        if named not in _DRAFTS:
            raise InvalidRequest(f"this gateway does not know the draft {named[:_LONGEST_TEXT]!r}")
        draft = _DRAFTS[named]
        try:
            draft.check_schema(schema)
        except SchemaError as problem:
            raise InvalidRequest(f"invalid schema: {problem.message[:_LONGEST_TEXT]}") from None
        schemas = _subschemas(schema)
        _check_keywords(schemas)
        specification = referencing.jsonschema.specification_with(draft.META_SCHEMA["$schema"])
        resource = specification.create_resource(schema)
        _Weights(schemas, referencing.Registry().resolver_with_root(resource)).check()
        self._validator = _GUARDED[draft](schema, registry=referencing.Registry())

    def problems(self, value: bytes) -> list[str]:
        if len(value) > LARGEST_VALUE:
            return ["too large to validate"]
        return self._problems(value, [min(FEWEST_STEPS + STEPS_PER_BYTE * len(value), MOST_STEPS)])

    def decoded(self, value: bytes) -> str:
        """A value of this kind is JSON as it is."""
        return value.decode(errors="backslashreplace")

    def quickly(self, values: Sequence[bytes]) -> list[list[str]] | None:
        """The same for several, with few steps for all of them; None when they do not suffice."""
        steps = [QUICK_STEPS]
        found = [self._problems(value, steps) for value in values]
        return found if steps[0] >= 0 else None

    def _problems(self, value: bytes, steps: list[int]) -> list[str]:
        _steps.set(steps)
        found: list[str] = []
        try:
            instance = _bounded(msgspec.json.decode(value), [MOST_VALUES], 0)
            for error in self._validator.iter_errors(instance):
                found.append(_text(error))
                if len(found) == MOST_PROBLEMS:
                    break
        except (msgspec.DecodeError, UnicodeDecodeError):
            found.append("not a JSON document")
        except TooLarge as problem:
            found.append(problem.message)
        except (_TooMuch, RecursionError):
            found.append("too costly to validate")
        except ArithmeticError:
            found.append("a number is too large")
        return found


def _text(error: ValidationError) -> str:
    # a problem in the words of the FlyMQ document's implementation (FlyMQ wire 4)
    place = ".".join(str(part) for part in error.absolute_path)[:_LONGEST_TEXT]
    match error.validator:
        case "required":
            return f"missing required field: {place}"
        case "additionalProperties":
            return f"unexpected field: {place}"
        case "type":
            wanted = error.validator_value
            names = " or ".join(wanted) if isinstance(wanted, list) else str(wanted)
            return f"type mismatch at {place or 'the top'}: expected {names}, got {type_name(error.instance)}"
        case _:
            message = error.message[:_LONGEST_TEXT]
            return f"{message} at {place}" if place else message


def type_name(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", type(None): "null"}
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return names.get(type(value), "object")


def _subschemas(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = [schema]
    for node in found:  # grows while it is walked
        for name in _ONES:
            found += _dicts([node.get(name)])
        for name in _LISTS:
            found += _dicts(node[name] if isinstance(node.get(name), list) else ())
        for name in _MAPS:
            found += _dicts(node[name].values() if isinstance(node.get(name), dict) else ())
    return found


def _dicts(children: Iterable[Any]) -> list[dict[str, Any]]:
    return [child for child in children if isinstance(child, dict)]


def _check_keywords(schemas: Sequence[dict[str, Any]]) -> None:
    # refuse what cannot be bounded: references elsewhere, and patterns that re2 does not take
    for schema in schemas:
        _check_reference(schema)
        patterns = [schema["pattern"]] if "pattern" in schema else []
        for pattern in (*patterns, *schema.get("patternProperties", ())):
            try:
                re2.compile(pattern, _OPTIONS)
            except re2.error:
                raise InvalidRequest(f"this pattern cannot be served: {pattern[:_LONGEST_TEXT]!r}") from None
    used = set().union(*schemas)
    if "unevaluatedProperties" in used and "patternProperties" in used:
        raise InvalidRequest("unevaluatedProperties beside patternProperties cannot be served")


def _check_reference(node: dict[str, Any]) -> None:
    if "$dynamicRef" in node or "$recursiveRef" in node or isinstance(node.get("$id"), str):
        raise InvalidRequest("a schema has one $id at its top, and only plain references")
    reference = node.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise InvalidRequest(f"a schema refers only to itself, not to {reference[:_LONGEST_TEXT]!r}")


class _Weights:
    """Counts the subschemas that apply to one place, following references."""

    def __init__(self, schemas: Sequence[dict[str, Any]], resolver: Any) -> None:
        self._schemas = schemas
        self._ids = set(map(id, schemas))
        self._resolver = resolver
        self._known: dict[int, int] = {}
        self._open: set[int] = set()

    def check(self) -> None:
        """Refuse a schema with a place that has too many, or one that leads back to itself."""
        if any(self._weigh(schema) > MOST_IN_PLACE for schema in self._schemas):
            raise InvalidRequest("the schema has too many alternatives for one value")

    def _weigh(self, schema: Any) -> int:
        if not isinstance(schema, dict):
            return 1
        if id(schema) in self._open:
            raise InvalidRequest("the schema refers to itself without going into the value")
        if id(schema) not in self._known:
            if len(self._open) >= MOST_REFERENCES:
                raise InvalidRequest("the schema's references are nested too deeply")
            self._open.add(id(schema))
            self._known[id(schema)] = 1 + sum(map(self._weigh, self._in_place(schema)))
            self._open.discard(id(schema))
        return self._known[id(schema)]

    def _in_place(self, schema: dict[str, Any]) -> Iterator[Any]:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            try:
                target = self._resolver.lookup(reference).contents
            except referencing.exceptions.Unresolvable:
                target = None
            if not isinstance(target, bool) and id(target) not in self._ids:
                raise InvalidRequest(f"no schema is at {reference[:_LONGEST_TEXT]!r}")
            yield target
        for name in _IN_PLACE:
            if name in schema:
                yield schema[name]
        for name in _IN_PLACE_LISTS:
            if isinstance(schema.get(name), list):
                yield from schema[name]
        for name in _IN_PLACE_MAPS:
            if isinstance(schema.get(name), dict):
                yield from schema[name].values()
