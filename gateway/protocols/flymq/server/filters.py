"""FETCH's filter: a JSON path that exists, a text in key or value, or a regular expression (FlyMQ wire 2.2, FETCH).

A filter comes from any client and runs over thousands of records, and a value may have tens of megabytes. RE2's time
grows with the text alone; where a pattern has too many states for RE2's memory that is up to (its size) times (the
text's), so what one look may cost is bounded as well. RE2 lets go of the interpreter while it searches: beside the event
loop it holds up nobody.

Apart from the topics' operations: what a pattern means and may cost is the original's, and has a page of examples to
agree with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import attrs
import msgspec
import re2

from gateway.envelope import Run
from gateway.errors import InvalidRequest

LONGEST_FILTER = 1024
LARGEST_PATTERN = 1 << 14
"""Instructions. `\\pL{3}` has 3 825, a pattern that people write some dozens."""
MOST_STEPS = 1 << 29
"""Bytes times instructions for one FETCH, and for one value: two seconds if RE2 has to go the slow way
for all of it, a fiftieth of that otherwise."""
MOST_LEVELS = 64
LARGEST_INDEX = 1000
"""In a JSON path. What lies before it in the list is passed one by one."""


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False  # the library writes patterns to standard error otherwise, and clients choose them
    options.never_capture = True  # where groups lie would be worked out for each match
    options.max_mem = 1 << 20
    return options


_UTF8 = _options()
_BYTES = _options()
_BYTES.encoding = re2.Options.Encoding.LATIN1
_TEXT = re2.compile(r"(?s).*", _UTF8)
"""What is UTF-8 from end to end."""


@attrs.frozen
class FetchFilter:
    """What a text asks for: any one of its three meanings is enough."""

    _contains: Any
    """The text as it is written, whatever its case, and the pattern that it is, if it is one."""
    _bytes: Any | None
    """The same for values that are no UTF-8, where `.` has to stand for a byte."""
    _path: tuple[str, ...]
    steps: int
    """What a byte costs at most."""

    def matches(self, key: bytes | None, value: bytes) -> bool:
        """Whether the record is wanted. Of a value longer than MOST_STEPS allow, its beginning is looked at."""
        reach = MOST_STEPS // self.steps
        return (
            self._found(value, reach)
            or (key is not None and self._found(key, reach))
            or (bool(self._path) and _exists(value, self._path))
        )

    def _found(self, text: bytes, reach: int) -> bool:
        if self._contains.search(text, endpos=reach):
            return True
        if self._bytes is None or not self._bytes.search(text, endpos=reach):
            return False
        return not _TEXT.fullmatch(text)


@attrs.define(eq=False)
class Sieve:
    """One FETCH's search: it ends when so many records are found or MOST_STEPS are spent."""

    wanted: FetchFilter
    most: int
    left: int = MOST_STEPS

    def __call__(self, runs: Sequence[Run]) -> tuple[Sequence[Run], int | None]:
        """What matches, and where it ended if that was before the last record."""
        found: list[Run] = []
        for run in runs:
            columns = run.columns
            chosen: list[int] = []
            for index in range(run.count):
                if self.left <= 0 or self.most <= 0:
                    return [*found, *_pieces(run, chosen)], run.base_offset + index
                key, value = columns.key(index), columns.value(index)
                self.left -= (len(value) + len(key or b"") + 1) * self.wanted.steps
                if self.wanted.matches(key, value):
                    chosen.append(index)
                    self.most -= 1
            found += _pieces(run, chosen)
        return found, None


def _pieces(run: Run, chosen: Sequence[int]) -> Iterator[Run]:
    # the chosen records, neighbours together
    for _, neighbours in groupby(enumerate(chosen), key=lambda numbered: numbered[1] - numbered[0]):
        indexes = [index for _, index in neighbours]
        yield run.slice(indexes[0], indexes[-1] + 1)


@lru_cache(maxsize=128)  # whoever filters asks the same again with each FETCH
def compile_filter(text: str) -> FetchFilter:
    """The filter a text stands for; what is no pattern is only a text. Raises InvalidRequest for what is too long."""
    if len(text) > LONGEST_FILTER:
        raise InvalidRequest(f"invalid filter: longer than {LONGEST_FILTER} characters")
    path = tuple(text[2:].split(".")) if text.startswith("$.") else ()
    if len(path) > MOST_LEVELS:
        path = ()
    literal = f"(?i:{re2.escape(text)})"
    either = literal
    try:
        re2.compile(text, _UTF8)
        either = f"{literal}|{text}"
    except re2.error as error:
        if b"too large" in error.args[0]:
            raise InvalidRequest("invalid filter: the pattern is too large") from None
    contains = re2.compile(either, _UTF8)
    as_bytes = re2.compile(either.encode(), _BYTES) if either.isascii() and either != literal else None
    if contains.programsize > LARGEST_PATTERN:
        raise InvalidRequest("invalid filter: the pattern is too large")
    return FetchFilter(contains, as_bytes, path, contains.programsize)


def _exists(value: bytes, path: Sequence[str]) -> bool:
    # Whether the value is JSON that has something at this path; a number picks from a list.
    #
    # Each level is decoded to that one member, and what lies beside it is passed over.
    node: Any = value
    try:
        for name in path:
            listed = bytes(node[:64]).lstrip()[:1] == b"["
            if listed and not (name.isdecimal() and len(name) <= 4 and int(name) <= LARGEST_INDEX):
                return False
            shape = _item(int(name)) if listed else _member(name)
            node = msgspec.json.decode(node, type=shape).wanted
            if node is msgspec.UNSET:
                return False
            node = bytes(node)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError):
        return False
    return True


_Maybe = msgspec.Raw | msgspec.UnsetType


@lru_cache(maxsize=256)
def _member(name: str) -> type:
    # An object of which one member counts. Raises ValueError for a name that would have to be escaped.
    return msgspec.defstruct("Member", [("wanted", _Maybe, msgspec.UNSET)], rename={"wanted": name})


@lru_cache(maxsize=64)
def _item(index: int) -> type:
    # a list of which one item counts
    before = [(f"before_{one}", _Maybe, msgspec.UNSET) for one in range(index)]
    return msgspec.defstruct("Item", [*before, ("wanted", _Maybe, msgspec.UNSET)], array_like=True)
