"""How an archive is divided below topic and day: by what expressions (CEL) make of each message, and when a file is full."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from gateway.arrow.schema import COLUMNS
from gateway.errors import ConfigProblem, InvalidRequest
from gateway.pipeline.manifest import value_directory
from gateway.routing.expression import Expression, MessageView, compile_expression

NOTHING = "__HIVE_DEFAULT_PARTITION__"
"""The directory of what an expression has no value for, as Spark and Hive call it: null in their tables."""
MOST_PARTS = 1_000
"""Files that one stretch of a partition may be divided into: each has a buffer."""
DAY_US = 86_400_000_000
ROLL_SIZE = 256 << 20
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = frozenset((*COLUMNS, "day", "epoch"))


@attrs.frozen
class ArchiveLayout:
    """What is written into which file."""

    by: Mapping[str, str] = attrs.field(factory=dict)
    """Names of directories, and the expressions whose values they are called by."""
    roll_size: int = ROLL_SIZE
    """About how many bytes a file has at most."""
    roll_time_ms: int | None = None
    """The span of store times that a file does not leave, counted from the epoch; a day, where none is said."""

    @classmethod
    def of(
        cls, by: Sequence[str] = (), *, roll_size: int = ROLL_SIZE, roll_time_ms: int | None = None
    ) -> ArchiveLayout:
        """From texts like `region=headers['region']`. Raises InvalidRequest."""
        made: dict[str, str] = {}
        for one in by:
            name, _, text = one.partition("=")
            if not _NAME.fullmatch(name) or name in _TAKEN or name in made:
                raise InvalidRequest(
                    f"{one!r}: say NAME=EXPRESSION, with a name of its own (a-z, 0-9, _) that no column has"
                )
            made[name] = text
        layout = cls(made, roll_size, roll_time_ms)
        layout.expressions()
        return layout

    def expressions(self) -> Mapping[str, Expression]:
        try:
            return {name: compile_expression(text) for name, text in self.by.items()}
        except ConfigProblem as error:
            raise InvalidRequest(str(error)) from error

    def stretches(self, batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        """A batch by days (UTC) and spans of time. Store time never goes back inside a partition, so each is one stretch."""
        times = batch.column("timestamp").cast(pa.int64()).to_numpy()
        days = times // DAY_US
        spans = days if self.roll_time_ms is None else times // (self.roll_time_ms * 1000)
        edges = [0, *(np.flatnonzero(np.diff(days) | np.diff(spans)) + 1).tolist(), len(days)]
        for start, stop in itertools.pairwise(edges):
            yield str(np.datetime64(int(days[start]), "D")), int(spans[start]), batch.slice(start, stop - start)


def values_of(expressions: Mapping[str, Expression], batch: pa.RecordBatch | pa.Table) -> dict[str, list[str | None]]:
    """What the expressions make of each record, as text; None where they have no value."""
    found: dict[str, list[str | None]] = {name: [] for name in expressions}
    if not expressions:
        return found
    cells = zip(*(batch.column(name).to_pylist() for name in ("key", "value", "headers")), strict=True)
    for key, value, headers in cells:
        view = MessageView(value, key, tuple((one["name"], one["value"]) for one in headers or ()))
        for name, expression in expressions.items():
            found[name].append(_text(expression, view))
    return found


def divided(expressions: Mapping[str, Expression], batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """A batch by the directories of its records, each with its own in order."""
    if not expressions:
        yield "", batch
        return
    values = values_of(expressions, batch)
    directories: dict[str, list[int]] = {}
    names = list(values)
    for index, row in enumerate(zip(*values.values(), strict=True)):
        part = "/".join(_directory(name, value) for name, value in zip(names, row, strict=True))
        directories.setdefault(part, []).append(index)
    for part, rows in directories.items():
        yield part, batch.take(pa.array(rows))


def _directory(name: str, value: str | None) -> str:
    return f"{name}={NOTHING}" if not value else value_directory(name, value)


def _text(expression: Expression, view: MessageView) -> str | None:
    try:
        value = expression.evaluate(view)
    except InvalidRequest:
        return None  # this message does not have what it asks for
    return _said(value)


def _said(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool) or type(value).__name__ == "BoolType":
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value + 0)
    return json.dumps(value, default=str, sort_keys=True)
