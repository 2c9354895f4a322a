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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_origin

import attrs

from gateway import notation
from gateway.config.document import INVALID, Place
from gateway.config.records import ConfigKey, Record, Shape, closest, nearest
from gateway.errors import ConfigProblem
from gateway.settings import Backoff, Says, Seconds, Size

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")
_VARIABLE = {"type": "string", "pattern": r"\$\{"}


@attrs.frozen
class Text:
    """Text. `convert` makes something of it, or raises ConfigProblem."""

    expected: str = "text"
    convert: Callable[[str], Any] = attrs.field(default=lambda text: text)
    empty: bool = False
    any_tag: bool = False
    description: str = ""
    show: Callable[[Any], str] = attrs.field(default=str)
    """The other way: from the value to what the file would say."""

    def read(self, place: Place) -> Any:
        text = place.text(self.expected, any_tag=self.any_tag)
        if not isinstance(text, str):
            return text
        if not text and not self.empty:
            return place.problem(f"expected {self.expected}, not empty text")
        try:
            return self.convert(text)
        except ConfigProblem as problem:
            return place.problem(problem.message)

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": ["string", "integer"] if self.any_tag else "string"}
        title = ": ".join(filter(None, (self.expected, self.description)))
        return schema if title == "text" else {**schema, "title": title}


@attrs.frozen
class Number:
    least: float = 0
    most: float = math.inf
    whole: bool = True

    def read(self, place: Place) -> Any:
        expected = "a whole number" if self.whole else "a number"
        text = place.plain(expected)
        if not isinstance(text, str):
            return text
        if not (_WHOLE if self.whole else _DECIMAL).fullmatch(text):
            return place.problem(f"expected {expected}, not {text!r}")
        value: float = int(text) if self.whole else float(text)
        if not self.least <= value <= self.most:
            if self.least == self.most:
                return place.problem(f"expected {self.least:g}, not {text}")
            bounds = f"from {self.least:g} to {self.most:g}" if self.most < math.inf else f"of at least {self.least:g}"
            return place.problem(f"expected {expected} {bounds}, not {text}")
        return value

    def schema(self) -> dict[str, Any]:
        number: dict[str, Any] = {"type": "integer" if self.whole else "number", "minimum": self.least}
        if self.most < math.inf:
            number["maximum"] = self.most
        return {"anyOf": [number, _VARIABLE]}


@attrs.frozen
class YesNo:
    def read(self, place: Place) -> Any:
        text = place.plain("true or false")
        if not isinstance(text, str):
            return text
        if text not in ("true", "false"):
            return place.problem(f"expected true or false, not {text!r}")
        return text == "true"

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "boolean"}, _VARIABLE]}


@attrs.frozen
class Words:
    """One of a few words, each with the value it stands for."""

    meanings: Mapping[str, Any]

    def read(self, place: Place) -> Any:
        text = place.text(self.expected, any_tag=True)
        if not isinstance(text, str):
            return text
        if text not in self.meanings:
            return place.problem(f"expected {self.expected}, not {text!r}{nearest(text, self.meanings)}")
        return self.meanings[text]

    @property
    def expected(self) -> str:
        return alternatives(tuple(self.meanings))

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(self.meanings)}, _VARIABLE]}


@attrs.frozen
class ListOf:
    """A list. With `or_one` a single item may stand for a list of one."""

    item: Shape
    least: int = 0
    or_one: bool = False

    def read(self, place: Place) -> Any:
        if not place.is_list:
            if self.or_one:
                item = self.item.read(place)
                return item if item is INVALID else (item,)
            return place.problem(f"expected a list, not {place.kind}")
        items = [self.item.read(item) for item in place.items()]
        if len(items) < self.least:
            return place.problem("expected a list of at least one, not an empty list")
        return tuple(item for item in items if item is not INVALID)

    def schema(self) -> dict[str, Any]:
        array: dict[str, Any] = {"type": "array", "items": self.item.schema()}
        if self.least:
            array["minItems"] = self.least
        return {"anyOf": [self.item.schema(), array]} if self.or_one else array


@attrs.frozen
class MapOf:
    """A mapping whose keys are the user's own. `key` says what they may be; `named` tells the value its key."""

    value: Shape
    key: Callable[[str], object] = attrs.field(default=lambda text: text)
    named: bool = False
    into: str = ""
    """Where the notebook keeps the names, good or not."""
    least: int = 0

    def read(self, place: Place) -> Any:
        """A dict of what could be read, in the order of the file."""
        if not place.is_mapping:
            return place.problem(f"expected a mapping, not {place.kind}")
        found: dict[str, Any] = {}
        count = 0
        for name, entry in place.entries():
            count += 1
            if self.into:
                getattr(place.notes, self.into).add(name)
            try:
                self.key(name)
            except ConfigProblem as problem:
                entry.problem(problem.message)
                continue
            value = self.value.read(entry)
            if value is INVALID:
                continue
            if self.named:
                value = attrs.evolve(value, name=name)
                place.notes.place(value, entry.path)
            found[name] = value
        if count < self.least:
            return place.problem("expected at least one entry")
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
        return place.problem(f"expected {self.expected}, not {place.kind}")

    def _choose(self, place: Place) -> Record | None:
        # the mapping that knows most of the keys; with one alternative there is no choice
        if len(self.mappings) == 1:
            return self.mappings[0]
        keys = {key.value for key, _ in place.node.value if isinstance(key.value, str)}
        best = max(self.mappings, key=lambda record: len(keys & record.known_keys), default=None)
        return best if best is not None and keys & best.known_keys else None

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
            return place.problem(f"expected {self.what} ({names}), not {place.kind}")
        entries = list(place.entries())
        if len(entries) != 1:
            return place.problem(f"expected {self.what} with exactly one of {names}")
        name, entry = entries[0]
        if name not in self.kinds:
            message = f"unknown key {name!r}: expected {self.what} ({names}){nearest(name, self.kinds)}"
            meant = self.kinds.get(closest(name, self.kinds))
            if meant is None:
                return entry.problem(message)
            entry.notes.unknown_key(entry, message)
            return meant.read(entry)
        return self.kinds[name].read(entry)

    def schema(self) -> dict[str, Any]:
        return {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {name: ConfigKey(name, shape, says=self.says.get(name)).schema()},
                    "required": [name],
                    "additionalProperties": False,
                }
                for name, shape in self.kinds.items()
            ]
        }


@attrs.frozen
class Then:
    """A shape whose value goes through a check or a conversion that may raise ConfigProblem."""

    shape: Shape
    convert: Callable[[Any], Any]

    def read(self, place: Place) -> Any:
        value = self.shape.read(place)
        if value is INVALID:
            return value
        try:
            converted = self.convert(value)
        except ConfigProblem as problem:
            return place.problem(problem.message)
        place.notes.place(converted, place.path)
        return converted

    def schema(self) -> dict[str, Any]:
        return self.shape.schema()


DURATION = Text(
    "a duration", notation.duration, any_tag=True, description="5ms, 2s, 7d, or none", show=notation.show_duration
)
SIZE = Text("a size", notation.size, any_tag=True, description="4096, 64KiB, 16MiB", show=notation.show_size)
BACKOFF = Text("a back-off range", notation.backoff, description="100ms..30s", show=notation.show_backoff)
ENDPOINT = Text("host:port", notation.endpoint, description="127.0.0.1:9092, [::1]:9092")
_SIMPLE: Mapping[Any, Shape] = {
    Seconds: DURATION,
    Size: SIZE,
    Backoff: BACKOFF,
    bool: YesNo(),
    int: Number(),
    float: Number(whole=False),
    str: Text(),
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
        return Words({str(member.value): member for member in kind})
    if attrs.has(kind):
        return record(kind)
    raise TypeError(f"no shape for {kind!r}")


def record(cls: type[Any], *, secrets: Sequence[str] = (), **shapes: Shape) -> Record:
    """The shape of an attrs class. `shapes` describe those fields whose type says too little; a `secret` may be given as
    `x_file`.
    """
    return Record(cls, tuple(_fields(cls, secrets, shapes)))


def _fields(cls: type[Any], secrets: Sequence[str], shapes: Mapping[str, Shape]) -> typing.Iterator[ConfigKey]:
    hints = typing.get_type_hints(cls)
    annotated = typing.get_type_hints(cls, include_extras=True)
    for field in attrs.fields(cls):
        shape = shapes[field.name] if field.name in shapes else shape_of(hints[field.name])
        says = [one for one in get_args(annotated[field.name]) if isinstance(one, Says)]
        yield ConfigKey(
            key=field.name,
            shape=shape,
            required=field.default is attrs.NOTHING,
            secret=field.name in secrets,
            stand_in="" if hints[field.name] is str else INVALID,
            says=says[0] if says else None,
            default=_written(shape, _default(field)),
        )


def _default(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    return default.factory() if hasattr(default, "factory") else default


def _written(shape: Shape, value: Any) -> str | float | None:
    # a default as the file would say it; None if there is none, or none that is a single value
    if value in (None, attrs.NOTHING, "", ()):
        return None
    match shape:
        case Either() | Then():
            inner = shape.scalar if isinstance(shape, Either) else shape.shape
            return _written(inner, value) if inner is not None else None
        case Words():
            return next((word for word, meaning in shape.meanings.items() if meaning == value), None)
        case ListOf():
            return ", ".join(str(_written(shape.item, item)) for item in value)
        case Text():
            return shape.show(value)
        case Number() | YesNo():
            number: float = value
            return number
        case _:
            return None


def alternatives(words: Sequence[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
