"""Globs and templates, compiled both ways.

A glob takes addresses: `*` is one or more characters but `.` and `/`, `**` is anything (nothing too). What the wildcards
took are the captures, counted from the left. A template makes names of captures: `{1}`, `{2}`, ..., `{topic}` for the
address as a whole; `{{` and `}}` are braces. Bound to the glob whose captures it uses, a template can be read backwards:
from a name to the captures it was made of.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping, Sequence

import attrs

from gateway.errors import ConfigProblem
from gateway.routing.patterns import ANYTHING, SEGMENT, Symbol, Symbols

_WILDS = re.compile(r"(\*+)")
_TEMPLATE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")


class Wild(enum.Enum):
    """The wildcards; the value is what each one is as a regular expression."""

    SEGMENT = r"[^./]+"
    ANYTHING = r".*"

    @property
    def symbol(self) -> Symbol:
        return SEGMENT if self is Wild.SEGMENT else ANYTHING


Captures = tuple[str, ...]


@attrs.frozen
class Glob:
    text: str
    parts: tuple[str | Wild, ...]
    _regex: re.Pattern[str] = attrs.field(repr=False, eq=False)

    @property
    def wilds(self) -> tuple[Wild, ...]:
        return tuple(part for part in self.parts if isinstance(part, Wild))

    @property
    def symbols(self) -> Symbols:
        return _symbols(self.parts)

    def match(self, address: str) -> Captures | None:
        """What the wildcards take of an address, or None if it is not one of ours."""
        found = self._regex.fullmatch(address)
        return found.groups() if found is not None else None


@functools.lru_cache(maxsize=4096)
def glob(text: str) -> Glob:
    if not text:
        raise ConfigProblem("a glob must not be empty")
    parts: list[str | Wild] = []
    for piece in _WILDS.split(text):
        if piece.startswith("***"):
            raise ConfigProblem(
                f"not a glob: {text!r} ('*' is part of a segment, '**' is anything; {piece!r} is neither)"
            )
        if piece.startswith("*"):
            parts.append(Wild.SEGMENT if piece == "*" else Wild.ANYTHING)
        elif piece:
            parts.append(piece)
    return Glob(text, tuple(parts), re.compile(_regex(parts), re.DOTALL))


def byte_glob(text: str) -> re.Pattern[bytes]:
    """A glob over bytes, for keys and header values."""
    return re.compile(_regex(glob(text).parts).encode(), re.DOTALL)


def _regex(parts: Sequence[str | Wild]) -> str:
    return "".join(f"({part.value})" if isinstance(part, Wild) else re.escape(part) for part in parts)


def _symbols(parts: Sequence[str | Wild]) -> Symbols:
    row: list[Symbol] = []
    for part in parts:
        row.extend([part.symbol] if isinstance(part, Wild) else map(Symbol, part))
    return row


TOPIC = 0
"""`{topic}` among the numbers of captures."""


@attrs.frozen
class Template:
    """A template that is not bound to a glob yet: text, numbers of captures, TOPIC."""

    text: str
    parts: tuple[str | int, ...]


def template(text: str) -> Template:
    if not text:
        raise ConfigProblem("a template must not be empty")
    parts: list[str | int] = []
    for found in _TEMPLATE.finditer(text):
        piece, name = found[0], found[1]
        if piece in ("{{", "}}"):
            parts.append(piece[0])
        elif piece in ("{", "}"):
            raise ConfigProblem(f"not a template: {text!r} (a literal brace is doubled: '{{{{' and '}}}}')")
        elif name is None:
            parts.append(piece)
        elif name == "topic":
            parts.append(TOPIC)
        elif name.isascii() and name.isdigit() and 1 <= int(name) <= 99:
            parts.append(int(name))
        else:
            raise ConfigProblem(
                f"unknown {piece!r} in {text!r} (captures are {{1}}, {{2}}, ..., the address is {{topic}})"
            )
    return Template(text, tuple(parts))


@attrs.frozen
class BoundTemplate:
    """A template over the captures of one glob. `parts` are texts and indexes of captures, from 0."""

    text: str
    parts: tuple[str | int, ...]
    wilds: tuple[Wild, ...]
    _regex: re.Pattern[str] = attrs.field(repr=False, eq=False)

    @property
    def used(self) -> frozenset[int]:
        return frozenset(part for part in self.parts if isinstance(part, int))

    @property
    def symbols(self) -> Symbols:
        return _symbols([self.wilds[part] if isinstance(part, int) else part for part in self.parts])

    def expand(self, captures: Sequence[str] | Mapping[int, str]) -> str:
        return "".join([captures[part] if isinstance(part, int) else part for part in self.parts])

    def invert(self, name: str) -> dict[int, str] | None:
        """The captures (those it carries) a name was made of, or None if it could not have made it."""
        found = self._regex.fullmatch(name)
        if found is None:
            return None
        return {int(group[1:]): value for group, value in found.groupdict().items()}

    def startswith(self, prefix: str) -> bool:
        return bool(self.parts) and isinstance(self.parts[0], str) and self.parts[0].startswith(prefix)


def bind(source: Template, pattern: Glob, topic: BoundTemplate | None = None) -> BoundTemplate:
    """Tie a template to the glob that its captures come from. `topic` is what `{topic}` means: the whole address if not
    given.

    The whole address is itself made of the glob's captures, so everything is captures in the end. ConfigProblem for a
    capture that the glob does not have.
    """
    whole = topic.parts if topic is not None else _whole(pattern)
    wilds = pattern.wilds
    parts: list[str | int] = []
    for part in source.parts:
        if part == TOPIC:
            # written out, so that what was made of an address can be read backwards to its captures
            parts.extend(whole)
        elif isinstance(part, str):
            parts.append(part)
        elif part > len(wilds):
            raise ConfigProblem(f"{{{part}}} in {source.text!r}: {_count(len(wilds))} in the glob {pattern.text!r}")
        else:
            parts.append(part - 1)
    return bound(source.text, parts, wilds)


def bound(text: str, parts: Sequence[str | int], wilds: tuple[Wild, ...]) -> BoundTemplate:
    seen: set[int] = set()
    expression = ""
    for part in parts:
        if isinstance(part, str):
            expression += re.escape(part)
        elif part in seen:  # a capture that stands twice is the same both times
            # read backwards the same text has to stand at both places, or the name was made of another address
            expression += f"(?P=c{part})"
        else:
            seen.add(part)
            expression += f"(?P<c{part}>{wilds[part].value})"
    return BoundTemplate(text, tuple(parts), wilds, re.compile(expression, re.DOTALL))


def whole(pattern: Glob) -> BoundTemplate:
    """The address itself, as made of its captures."""
    return bound("{topic}", _whole(pattern), pattern.wilds)


def _whole(pattern: Glob) -> tuple[str | int, ...]:
    parts: list[str | int] = []
    number = 0
    for part in pattern.parts:
        if isinstance(part, Wild):
            parts.append(number)
            number += 1
        else:
            parts.append(part)
    return tuple(parts)


def _count(wilds: int) -> str:
    return {0: "there is no wildcard", 1: "there is only one wildcard"}.get(wilds, f"there are only {wilds} wildcards")
