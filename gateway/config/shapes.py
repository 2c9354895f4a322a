"""What a value of the file may look like: one description that reads it and says so as JSON Schema.

A shape is made of smaller ones. The shape of an attrs class follows from its fields' types, so a protocol's listener keys
are described by its settings class and by nothing else.

Apart from `grammar`, which says what the keys of this file are: a shape knows no key.
"""

from __future__ import annotations

import enum
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args, get_origin

import attrs

from gateway import notation
from gateway.config.document import INVALID, Place, Shape
from gateway.config.records import ConfigKey, Record, closest, nearest
from gateway.errors import ConfigProblem
from gateway.settings import Backoff, Says, Seconds, Size

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")
_VARIABLE = {"type": "string", "pattern": r"\$\{"}


@attrs.frozen
class Scalar:
    """Text, and what `convert` makes of it, which may raise ConfigProblem."""

    expected: str
    convert: Callable[[str], Any]
    json: Mapping[str, Any]
    show: Callable[[Any], str | float | None]
    """The other way: from the value to what the file would say."""
    any_tag: bool = True
    plain: bool = False
    empty: bool = True

    def read(self, place: Place) -> Any:
        text = place.plain(self.expected) if self.plain else place.text(self.expected, any_tag=self.any_tag)
        if not text and not self.empty:
            raise ConfigProblem(f"expected {self.expected}, not empty text")
        return self.convert(text)

    def schema(self) -> dict[str, Any]:
        return dict(self.json)


def text(
    expected: str = "text",
    convert: Callable[[str], Any] = str,
    *,
    empty: bool = False,
    any_tag: bool = False,
    description: str = "",
    show: Callable[[Any], str] = str,
) -> Scalar:
    json: dict[str, Any] = {"type": ["string", "integer"] if any_tag else "string"}
    title = ": ".join(filter(None, (expected, description)))
    return Scalar(expected, convert, json if title == "text" else {**json, "title": title}, show, any_tag, empty=empty)


def number(least: float = 0, most: float = math.inf, *, whole: bool = True) -> Scalar:
    expected = "a whole number" if whole else "a number"

    def convert(text: str) -> float:
        if not (_WHOLE if whole else _DECIMAL).fullmatch(text):
            raise ConfigProblem(f"expected {expected}, not {text!r}")
        value: float = int(text) if whole else float(text)
        if not least <= value <= most:
            bounds = f"from {least:g} to {most:g}" if most < math.inf else f"of at least {least:g}"
            raise ConfigProblem(f"expected {f'{least:g}' if least == most else f'{expected} {bounds}'}, not {text}")
        return value

    json = {"type": "integer" if whole else "number", "minimum": least}
    bounded = json | ({"maximum": most} if most < math.inf else {})
    return Scalar(expected, convert, {"anyOf": [bounded, _VARIABLE]}, lambda value: value, plain=True)


def words(meanings: Mapping[str, Any]) -> Scalar:
    """One of a few words, each with the value it stands for."""
    expected = alternatives(tuple(meanings))

    def convert(text: str) -> Any:
        if text not in meanings:
            raise ConfigProblem(f"expected {expected}, not {text!r}{nearest(text, meanings)}")
        return meanings[text]

    def show(value: Any) -> str | None:
        return next((word for word, meaning in meanings.items() if meaning == value), None)

    return Scalar(expected, convert, {"anyOf": [{"enum": list(meanings)}, _VARIABLE]}, show)


def alternatives(words: Sequence[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


@attrs.frozen
class ListOf:
    """A list. With `or_one` a single item may stand for a list of one."""

    item: Shape
    least: int = 0
    or_one: bool = False

    def read(self, place: Place) -> Any:
        if not place.is_list:
            if not self.or_one:
                raise ConfigProblem(f"expected a list, not {place.kind}")
            item = self.item.read(place)
            return item if item is INVALID else (item,)
        items = [item.read(self.item) for item in place.items()]
        if len(items) < self.least:
            raise ConfigProblem("expected a list of at least one, not an empty list")
        return tuple(item for item in items if item is not INVALID)

    def schema(self) -> dict[str, Any]:
        array: dict[str, Any] = {"type": "array", "items": self.item.schema()}
        if self.least:
            array["minItems"] = self.least
        return {"anyOf": [self.item.schema(), array]} if self.or_one else array


@attrs.frozen
class MapOf:
    """A mapping whose keys are the user's own. `key` says what they may be."""

    value: Shape
    key: Callable[[str], object] = str
    into: str = ""
    """Where the notebook keeps the names, good or not; the values are told theirs."""
    least: int = 0

    def read(self, place: Place) -> Any:
        """A dict of what could be read, in the order of the file."""
        if not place.is_mapping:
            raise ConfigProblem(f"expected a mapping, not {place.kind}")
        found: dict[str, Any] = {}
        entries = list(place.entries())
        for name, entry in entries:
            if self.into:
                getattr(place.notes, self.into).add(name)
            try:
                self.key(name)
            except ConfigProblem as problem:
                entry.problem(problem.message)
                continue
            value = entry.read(self.value)
            if value is not INVALID:
                found[name] = attrs.evolve(value, name=name) if self.into else value
                place.notes.place(found[name], entry.path)
        if len(entries) < self.least:
            raise ConfigProblem("expected at least one entry")
        return found

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object", "additionalProperties": self.value.schema()}
        return {**schema, "minProperties": self.least} if self.least else schema


@attrs.frozen
class Either:
    """Words or text, a list, or a mapping that is recognised by its keys, whichever is written."""

    expected: str
    scalar: Shape | None = None
    listed: Shape | None = None
    mappings: Sequence[Record] = ()

    def read(self, place: Place) -> Any:
        if place.is_mapping:
            chosen = self._choose(place)
            if chosen is not None:
                return chosen.read(place)
        elif place.is_list:
            if self.listed is not None:
                return self.listed.read(place)
        elif self.scalar is not None and not place.is_empty:
            return self.scalar.read(place)
        raise ConfigProblem(f"expected {self.expected}, not {place.kind}")

    def _choose(self, place: Place) -> Record | None:
        # the mapping that knows most of the keys; with one alternative there is no choice
        if len(self.mappings) == 1:
            return self.mappings[0]
        keys = {key.value for key, _ in place.node.value if isinstance(key.value, str)}
        best = max(self.mappings, key=lambda record: len(keys & record.known.keys()), default=None)
        return best if best is not None and keys & best.known.keys() else None

    def schema(self) -> dict[str, Any]:
        shapes = [shape for shape in (self.scalar, self.listed, *self.mappings) if shape is not None]
        return {"anyOf": [shape.schema() for shape in shapes]}


@attrs.frozen
class Tagged:
    """A mapping with exactly one key, which says what the value is."""

    what: str
    kinds: Mapping[str, Shape]
    says: Mapping[str, Says] = attrs.Factory(dict)

    def read(self, place: Place) -> Any:
        names = alternatives(tuple(self.kinds))
        if not place.is_mapping:
            raise ConfigProblem(f"expected {self.what} ({names}), not {place.kind}")
        entries = list(place.entries())
        if len(entries) != 1:
            raise ConfigProblem(f"expected {self.what} with exactly one of {names}")
        name, entry = entries[0]
        if name in self.kinds:
            return entry.read(self.kinds[name])
        message = f"unknown key {name!r}: expected {self.what} ({names}){nearest(name, self.kinds)}"
        meant = self.kinds.get(closest(name, self.kinds))
        if meant is None:
            return entry.problem(message)
        entry.notes.unknown_key(entry, message)
        return entry.read(meant)

    def schema(self) -> dict[str, Any]:
        keys = [ConfigKey(name, shape, required=True, says=self.says.get(name)) for name, shape in self.kinds.items()]
        return {"oneOf": [Record(dict, (key,)).schema() for key in keys]}


@attrs.frozen
class Then:
    """A shape whose value goes through a check or a conversion that may raise ConfigProblem."""

    shape: Shape
    convert: Callable[[Any], Any]

    def read(self, place: Place) -> Any:
        value = self.shape.read(place)
        if value is not INVALID:
            value = self.convert(value)
            place.notes.place(value, place.path)
        return value

    def schema(self) -> dict[str, Any]:
        return self.shape.schema()


YES_NO = attrs.evolve(
    words({"true": True, "false": False}), json={"anyOf": [{"type": "boolean"}, _VARIABLE]}, show=bool, plain=True
)
DURATION = text(
    "a duration", notation.duration, any_tag=True, description="5ms, 2s, 7d, or none", show=notation.show_duration
)
SIZE = text("a size", notation.size, any_tag=True, description="4096, 64KiB, 16MiB", show=notation.show_size)
BACKOFF = text("a back-off range", notation.backoff, description="100ms..30s", show=notation.show_backoff)
ENDPOINT = text("host:port", notation.endpoint, description="127.0.0.1:9092, [::1]:9092")
_SIMPLE: Mapping[Any, Shape] = {
    Seconds: DURATION,
    Size: SIZE,
    Backoff: BACKOFF,
    bool: YES_NO,
    int: number(),
    float: number(whole=False),
    str: text(),
}


def shape_of(kind: Any) -> Shape:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (only,) = (argument for argument in arguments if argument is not type(None))
        return shape_of(only)
    if origin is tuple:
        return ListOf(shape_of(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return MapOf(shape_of(arguments[1]))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return words({str(member.value): member for member in kind})
    if attrs.has(kind):
        return record(kind)
    raise TypeError(f"no shape for {kind!r}")


def record(
    cls: type[Any],
    *,
    but: Collection[str] = (),
    secrets: Collection[str] = (),
    stand_ins: Mapping[str, Any] | None = None,
    adapt: Callable[..., Mapping[str, Any]] = dict,
    **shapes: Shape,
) -> Record:
    """The shape of an attrs class, `but` for what does not come from the file as it is. `shapes` describe those fields whose
    type says too little; a `secret` may be given as `x_file`; a required text that is missing is taken for an empty one.
    """
    hints = typing.get_type_hints(cls)
    annotated = typing.get_type_hints(cls, include_extras=True)
    keys = []
    for field in attrs.fields(cls):
        hint = hints[field.name]
        if field.name in but:
            continue
        says = next((one for one in get_args(annotated[field.name]) if isinstance(one, Says)), None)
        shape = shapes[field.name] if field.name in shapes else shape_of(hint)
        default = field.default.factory() if hasattr(field.default, "factory") else field.default
        keys.append(
            ConfigKey(
                key=(says and says.key) or field.name,
                shape=shape,
                required=field.default is attrs.NOTHING,
                secret=field.name in secrets,
                to=field.name,
                split=isinstance(shape, ListOf),
                stand_in=(stand_ins or {}).get(field.name, "" if hint is str else INVALID),
                says=says,
                default=_written(shape, default),
            )
        )
    return Record(cls, tuple(keys), adapt)


def _written(shape: Shape, value: Any) -> str | float | None:
    # a default as the file would say it; None if there is none, or none that is a single value
    if value in (None, attrs.NOTHING, "", ()):
        return None
    match shape:
        case Either() | Then():
            inner = shape.scalar if isinstance(shape, Either) else shape.shape
            return _written(inner, value) if inner is not None else None
        case ListOf():
            return ", ".join(str(_written(shape.item, item)) for item in value)
        case Scalar():
            return shape.show(value)
        case _:
            return None
