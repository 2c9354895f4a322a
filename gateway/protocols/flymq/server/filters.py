"""FETCH's filter: a JSON path, else a substring, else a pattern (FlyMQ wire 1, FETCH)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.errors import InvalidRequest
from gateway.protocols.flymq.server.patterns import SPECIAL, Pattern

LONGEST_FILTER = 1024
PATTERN_REACH = 256 << 10
"""How much of a key or value a pattern is tried on: it takes a step of Python for each letter."""

Filter = Callable[[bytes | None, bytes], bool]
"""(key, value) -> whether the record is wanted."""


def compile_filter(text: str) -> Filter:
    """The filter a text stands for. Raises InvalidRequest for one that is too long or not a pattern."""
    if len(text) > LONGEST_FILTER:
        raise InvalidRequest(f"invalid filter: longer than {LONGEST_FILTER} characters")
    if text.startswith("$."):
        return _path(text[2:].split("."))
    contains = _substring(text)
    if SPECIAL.isdisjoint(text):
        return contains
    pattern = Pattern(text)

    def matches(key: bytes | None, value: bytes) -> bool:
        if contains(key, value) or pattern.found(_text(value[:PATTERN_REACH])):
            return True
        return key is not None and pattern.found(_text(key[:PATTERN_REACH]))

    return matches


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _path(names: list[str]) -> Filter:
    """Whether the value is JSON that has something at this path; a number picks from a list."""

    def exists(_key: bytes | None, value: bytes) -> bool:
        try:
            node = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        for name in names:
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name[:9]) < len(node):
                node = node[int(name[:9])]
            else:
                return False
        return True

    return exists


def _substring(text: str) -> Filter:
    """Whether key or value hold the text, in whatever case."""
    if text.isascii():  # no letter outside ASCII folds to one inside that UTF-8 would show: bytes are enough
        wanted = text.lower().encode()
        return lambda key, value: wanted in value.lower() or (key is not None and wanted in key.lower())
    folded = text.lower()
    return lambda key, value: folded in _text(value).lower() or (key is not None and folded in _text(key).lower())
