"""Mappings with known keys: what most of the file is made of."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import attrs

from gateway.config.document import INVALID, Place, read_secret
from gateway.settings import Says

FILE_SUFFIX = "_file"


class Shape(Protocol):
    """Something that reads one kind of value."""

    def read(self, place: Place) -> Any:
        """The value, or INVALID when a problem was noted."""
        ...

    def schema(self) -> dict[str, Any]:
        """What `read` takes, as JSON Schema."""
        ...


@attrs.frozen
class ConfigKey:
    """One key. `to` is the attribute, when it is called otherwise; a `secret` may also be given as `x_file`."""

    key: str
    shape: Shape
    required: bool = False
    secret: bool = False
    to: str = ""
    split: bool = False
    """The secret file holds one value a line."""
    stand_in: Any = INVALID
    """What a required value is taken for that is missing or cannot be read, so that one mistake does not hide those in the
    rest of the mapping. Without one the whole mapping cannot be read."""
    says: Says | None = None
    default: str | float | None = None
    """What counts where it is not given, as the file would say it."""

    def schema(self) -> dict[str, Any]:
        """The shape as JSON Schema, with what editors and the documentation show of the key."""
        schema = self.shape.schema()
        if self.says is not None:
            schema |= {"description": self.says.text, "x-since": self.says.since}
        if self.default is not None:
            schema["default"] = self.default
        return schema


def same(**values: Any) -> Mapping[str, Any]:
    """What was read goes to the class as it is."""
    return values


@attrs.frozen
class Record:
    """A mapping that becomes an instance of an attrs class. `adapt` has a last word on its arguments."""

    cls: Callable[..., Any]
    fields: tuple[ConfigKey, ...]
    adapt: Callable[..., Mapping[str, Any]] = same
    lenient: bool = False
    """Says nothing about keys it does not know: those of a listener whose protocol is not known may be right."""

    @property
    def known_keys(self) -> frozenset[str]:
        files = (field.key + FILE_SUFFIX for field in self.fields if field.secret)
        return frozenset((*(field.key for field in self.fields), *files))

    def read(self, place: Place) -> Any:
        """The instance; INVALID when something required could not be read."""
        if not place.is_mapping:
            return place.problem(f"expected a mapping, not {place.kind}")
        by_key = {field.key: field for field in self.fields}
        found: dict[str, Any] = {}
        strange: list[tuple[str, Place]] = []
        for key, entry in place.entries():
            field = by_key.get(key)
            if field is not None:
                self._keep(found, field, field.shape.read(entry), entry)
                continue
            field = by_key.get(key.removesuffix(FILE_SUFFIX)) if key.endswith(FILE_SUFFIX) else None
            if field is not None and field.secret:
                self._keep(found, field, _from_file(field, entry), entry)
            elif not self.lenient:
                strange.append((key, entry))
        for key, entry in strange:
            place.notes.unknown_key(entry, f"unknown key {key!r}{suggestion(key, self.known_keys)}")
            meant = by_key.get(closest(key, self.known_keys))
            if meant is not None and (meant.to or meant.key) not in found:
                # it is refused, and what it says is looked at all the same: one mistake at a time would take a run each
                value = found[meant.to or meant.key] = meant.shape.read(entry)
                if value is INVALID:
                    place.notes.stands_in(place.join(meant.key))
        if not self._stand_in(found, place):
            return INVALID
        arguments = {name: value for name, value in found.items() if value is not INVALID}
        value = self.cls(**self.adapt(**arguments))
        place.notes.place(value, place.path)
        return value

    def _stand_in(self, found: dict[str, Any], place: Place) -> bool:
        # fill in what is required and not there; False if nothing can stand for it
        whole = True
        for field in self.fields:
            name = field.to or field.key
            if not field.required or found.get(name, INVALID) is not INVALID:
                continue
            if name not in found:
                place.problem(f"missing key {field.key!r}")
            if field.stand_in is INVALID:
                whole = False
            else:
                place.notes.stands_in(place.join(field.key))
                found[name] = field.stand_in
        return whole

    @staticmethod
    def _keep(found: dict[str, Any], field: ConfigKey, value: Any, entry: Place) -> None:
        name = field.to or field.key
        if name in found:
            entry.problem(f"give either {field.key!r} or {field.key + FILE_SUFFIX!r}, not both")
        found[name] = value

    def schema(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        demands: list[dict[str, Any]] = []
        for field in self.fields:
            properties[field.key] = field.schema()
            if field.secret:
                properties[field.key + FILE_SUFFIX] = {"type": "string", "description": f"a file with the {field.key}"}
                if field.required:
                    either = [{"required": [field.key]}, {"required": [field.key + FILE_SUFFIX]}]
                    demands.append({"oneOf": either})
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        required = [field.key for field in self.fields if field.required and not field.secret]
        if required:
            schema["required"] = required
        return {**schema, "allOf": demands} if demands else schema


def _from_file(field: ConfigKey, entry: Place) -> Any:
    name = entry.text("the name of a file")
    if not isinstance(name, str):
        return name
    text = read_secret(name, entry)
    if not isinstance(text, str):
        return text
    if not text.strip():
        return entry.problem(f"{name!r} is empty")
    return tuple(filter(None, map(str.strip, text.splitlines()))) if field.split else text


def closest(word: str, known: Iterable[str]) -> str:
    """What was probably meant, or nothing."""
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)), "")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or nothing. For messages that name all the known words anyway."""
    close = closest(word, known)
    return f"; did you mean {close!r}?" if close else ""


def suggestion(word: str, known: Iterable[str]) -> str:
    """` (known: ...; did you mean ...?)`: all the words that could stand there, and the nearest of them."""
    words = sorted(known)
    return f" (known: {', '.join(words)}{nearest(word, words)})" if words else ""
