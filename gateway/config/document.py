"""A YAML document in which every value knows its line, and the notebook of what is wrong with it.

The document is read value by value, as the grammar asks for them, never turned into plain dicts: so each problem knows
its line, duplicate keys are seen, and a quoted `"4"` is not taken for a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
import yaml

from gateway.errors import ConfigProblem
from gateway.notation import substitute

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_TEXT_TAG = "tag:yaml.org,2002:str"
_NULL_TAG = "tag:yaml.org,2002:null"
_KINDS = {"int": "a number", "float": "a number", "bool": "true or false", "timestamp": "a date", "null": "nothing"}

Node = yaml.Node


INVALID: Final[Any] = object()
"""In place of a value that could not be read; the problem is in the notebook already."""


class Shape(Protocol):
    """Something that reads one kind of value."""

    def read(self, place: Place) -> Any:
        """The value. ConfigProblem when it is none; INVALID when what is in it is not, which was noted there."""
        ...

    def schema(self) -> dict[str, Any]:
        """What `read` takes, as JSON Schema."""
        ...


@attrs.define(eq=False)
class Notebook:
    """Everything that is wrong with one file, and where its values stand."""

    file: str
    environ: Mapping[str, str]
    problems: list[ConfigProblem] = attrs.Factory(list)
    warnings: list[ConfigProblem] = attrs.Factory(list)
    """What the gateway can be served with, but hardly as it is meant."""
    listeners: set[str] = attrs.Factory(set)
    """The names of listeners, upstreams, and protocols that listeners speak, good or not: a name that was declared does
    not dangle."""
    upstreams: set[str] = attrs.Factory(set)
    spoken: set[str] = attrs.Factory(set)
    _lines: dict[str, int] = attrs.Factory(dict)
    _places: dict[int, tuple[object, str]] = attrs.Factory(dict)
    _unread: set[str] = attrs.Factory(set)
    """The paths of what could not be read, or is missing; complete at the end of reading."""
    _unknown: set[str] = attrs.Factory(set)
    """The paths of keys that nobody knows: what is beside them was read."""

    def add(self, message: str, line: int, path: str) -> Any:
        self.problems.append(ConfigProblem(message, file=self.file, line=line, path=path))
        return INVALID

    def visit(self, path: str, line: int) -> None:
        self._lines[path] = line

    def line(self, path: str, around: str = "") -> int:
        """The line of a path; of what is around it, when it is not in the file."""
        return self._lines.get(path) or self._lines.get(around, 1)

    def place(self, value: object, path: str) -> None:
        """Remember where a value was written, so that later checks can point at it. The first place counts: what only
        hands a value on does not know better.
        """
        self._places.setdefault(id(value), (value, path))

    def path_of(self, value: object) -> str:
        """Where a value was written; empty for one that was not."""
        return self._places.get(id(value), (None, ""))[1]

    def complain(self, value: object, key: str, message: str, *, as_written: bool = False) -> None:
        """Note a problem with one key of a value that was read. Silent about what could not be read: a check would judge
        the default in its place. `as_written`: it is so whatever was meant by the part that could not be read.
        """
        around = self.path_of(value)
        path = f"{around}.{key}" if around and key else around or key
        if key == "" or as_written or self.was_read(path):
            self.add(message, self.line(path, around), path)

    def unknown_key(self, place: Place, message: str) -> None:
        """Note a key that nobody knows: it hides nothing of what is beside it."""
        self._unknown.add(place.path)
        place.problem(message)

    def stands_in(self, path: str) -> None:
        """A value could not be read, and one that says nothing is in its place."""
        self._unread.add(path)

    def warn(self, value: object, key: str, message: str) -> None:
        """Note what somebody should know about a key of a value that was read."""
        around = self.path_of(value)
        path = f"{around}.{key}"
        self.warnings.append(ConfigProblem(message, file=self.file, line=self.line(path, around), path=path))

    def end_of_reading(self) -> None:
        """All values are read: problems from now on are between them."""
        self._unread.update(problem.path for problem in self.problems if problem.path not in self._unknown)

    def all_known(self, path: str) -> bool:
        """Whether a value has no key that nobody knows."""
        return not _any_within(self._unknown, path)

    def was_read(self, path: str) -> bool:
        return not _any_within(self._unread, path)

    def has(self, value: object, key: str) -> bool:
        return f"{self.path_of(value)}.{key}" in self._lines


def _any_within(paths: Iterable[str], around: str) -> bool:
    return any(path == around or path.startswith((f"{around}.", f"{around}[")) for path in paths)


@attrs.frozen(eq=False)
class Place:
    """A value in the file: its node, its path, the notebook."""

    node: Node
    path: str
    notes: Notebook
    line: int = 1
    """The line of its key, or of its own start when it is an item of a list."""

    def problem(self, message: str) -> Any:
        return self.notes.add(message, self.line, self.path)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_empty(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag == _NULL_TAG

    @property
    def kind(self) -> str:
        if self.is_mapping:
            return "a mapping"
        if self.is_list:
            return "a list"
        return _KINDS.get(str(self.node.tag).rpartition(":")[2], "text")

    def items_or_one(self) -> Iterator[Place]:
        return self.items() if self.is_list else iter((self,))

    def items(self) -> Iterator[Place]:
        for index, node in enumerate(self.node.value):
            path = f"{self.path}[{index}]"
            line = node.start_mark.line + 1
            self.notes.visit(path, line)
            yield attrs.evolve(self, node=node, path=path, line=line)

    def entries(self) -> Iterator[tuple[str, Place]]:
        """Keys and values of a mapping; a key that is written twice, or is no text, is a problem."""
        first: dict[str, int] = {}
        for key, node in self.node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.notes.add("a key is text", line, self.path)
                continue
            name = key.value
            path = self.join(name)
            if name == "<<":
                self.notes.add("keys are not merged here ('<<'): write them out", line, self.path)
                continue
            if name in first:
                self.notes.add(f"duplicate key {name!r} (first in line {first[name]})", line, path)
                continue
            first[name] = line
            self.notes.visit(path, line)
            yield name, attrs.evolve(self, node=node, path=path, line=line)

    def join(self, key: str) -> str:
        if not _PLAIN_KEY.fullmatch(key):
            return f'{self.path}["{key}"]'
        return f"{self.path}.{key}" if self.path else key

    def read(self, shape: Shape) -> Any:
        """What the shape makes of it; INVALID when that is a problem, which is noted."""
        try:
            return shape.read(self)
        except ConfigProblem as problem:
            return self.problem(problem.message)

    def text(self, expected: str, *, any_tag: bool = False) -> str:
        """The text of a scalar with its variables filled in. With `any_tag` unquoted numbers and such are text too."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise ConfigProblem(f"expected {expected}, not {self.kind}")
        if self.is_empty:
            raise ConfigProblem(f"expected {expected}, not nothing")
        raw: str = self.node.value
        if not any_tag and self.node.tag != _TEXT_TAG:
            raise ConfigProblem(f"expected {expected}, not {self.kind} (text that looks like it goes in quotes)")
        return substitute(raw, self.notes.environ) if "$" in raw else raw

    def plain(self, expected: str) -> str:
        """The text of a scalar that must not be quoted unless a variable was filled in: numbers, true and false."""
        if isinstance(self.node, yaml.ScalarNode) and self.node.style is not None and "$" not in self.node.value:
            raise ConfigProblem(f"expected {expected}, not text in quotes")
        return self.text(expected, any_tag=True)


def compose(text: str, notes: Notebook) -> Place | None:
    """Read a document; None when it is not YAML (the notebook says why)."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark
        notes.add(f"not YAML: {error.problem or error.context}", mark.line + 1 if mark else 1, "")
        return None
    except yaml.YAMLError as error:  # a byte that YAML does not allow: it has a position but no line
        position = getattr(error, "position", 0)
        notes.add(f"not YAML: {getattr(error, 'reason', 'unreadable')}", text.count("\n", 0, position) + 1, "")
        return None
    except RecursionError:
        notes.add("nested too deeply", 1, "")
        return None
    if node is None:
        notes.add("the file is empty", 1, "")
        return None
    return Place(node, "", notes)


def read_secret(path: str) -> str:
    """The content of a file that holds a secret, without the line end."""
    try:
        text = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ConfigProblem(f"cannot read {path!r}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigProblem(f"cannot read {path!r}: not UTF-8 text") from None
    if not text.strip():
        raise ConfigProblem(f"{path!r} is empty")
    return text
