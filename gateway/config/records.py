"""Mappings with known keys: what most of the file is made of."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from gateway.config.document import INVALID, Place, Shape, read_secret
from gateway.errors import ConfigProblem
from gateway.settings import Says

FILE_SUFFIX = "_file"


@attrs.frozen
class ConfigKey:
    """One key. `to` is the attribute, when it is called otherwise; a `secret` may also be given as `x_file`."""

    key: str
    shape: Shape
    required: bool = False
    secret: bool = False
    to: str = attrs.Factory(lambda self: self.key, takes_self=True)
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


@attrs.frozen
class Record:
    """A mapping that becomes an instance of an attrs class. `adapt` has a last word on its arguments."""

    cls: Callable[..., Any]
    fields: tuple[ConfigKey, ...]
    adapt: Callable[..., Mapping[str, Any]] = dict

    @property
    def known(self) -> Mapping[str, tuple[ConfigKey, Shape]]:
        """What can be written, secrets as files as well."""
        found: dict[str, tuple[ConfigKey, Shape]] = {}
        for field in self.fields:
            found[field.key] = field, field.shape
            if field.secret:
                found[field.key + FILE_SUFFIX] = field, _SecretFile(field)
        return found

    def read(self, place: Place) -> Any:
        """The instance; INVALID when something required could not be read."""
        if not place.is_mapping:
            raise ConfigProblem(f"expected a mapping, not {place.kind}")
        known = self.known
        found: dict[str, Any] = {}
        strange: list[tuple[str, Place]] = []
        for key, entry in place.entries():
            if key in known:
                field, shape = known[key]
                value = entry.read(shape)
                if field.to in found:
                    entry.problem(f"give either {field.key!r} or {field.key + FILE_SUFFIX!r}, not both")
                found[field.to] = value
            else:
                strange.append((key, entry))
        for key, entry in strange:
            place.notes.unknown_key(entry, f"unknown key {key!r}{suggestion(key, known)}")
            meant = known.get(closest(key, known))
            if meant is not None and meant[0].to not in found:
                # it is refused, and what it says is looked at all the same: one mistake at a time would take a run each
                field, shape = meant
                found[field.to] = entry.read(shape)
                if found[field.to] is INVALID:
                    place.notes.stands_in(place.join(field.key))
        for field in self.fields:
            if field.required and found.get(field.to, INVALID) is INVALID:
                if field.to not in found:
                    place.problem(f"missing key {field.key!r}")
                place.notes.stands_in(place.join(field.key))
                found[field.to] = field.stand_in
        if any(field.required and found[field.to] is INVALID for field in self.fields):
            return INVALID
        value = self.cls(**self.adapt(**{name: value for name, value in found.items() if value is not INVALID}))
        place.notes.place(value, place.path)
        return value

    def schema(self) -> dict[str, Any]:
        shown = {key: shape if shape is not field.shape else field for key, (field, shape) in self.known.items()}
        properties = {key: one.schema() for key, one in shown.items()}
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        demanded = [field for field in self.fields if field.required]
        if required := [field.key for field in demanded if not field.secret]:
            schema["required"] = required
        either = [[{"required": [key]} for key in (one.key, one.key + FILE_SUFFIX)] for one in demanded if one.secret]
        return {**schema, "allOf": [{"oneOf": one} for one in either]} if either else schema


@attrs.frozen
class _SecretFile:
    """A secret by the name of its file."""

    field: ConfigKey

    def read(self, place: Place) -> Any:
        text = read_secret(place.text("the name of a file"))
        return tuple(filter(None, map(str.strip, text.splitlines()))) if self.field.split else text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "description": f"a file with the {self.field.key}"}


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
