"""What a route does to its messages before they are stored: headers, keys, filters, projections. Compiled once, applied
to batches.

Steps that touch only headers leave the values packed as they came. A message that a step cannot work on (its payload is
not JSON, a field is missing) is an error of that message alone, with its index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import attrs
import msgspec

from gateway import model
from gateway.envelope import NO_HEADERS, Columns, Headers
from gateway.errors import InvalidRequest
from gateway.routing.expression import TOO_DEEP, Expression, MessageView, compile_expression, is_true, to_json, to_key


class Transformed(NamedTuple):
    """What became of a batch: the columns that go on, which messages of the batch these are, and those that failed, with
    why. The rest was filtered out.
    """

    columns: Columns
    kept: Sequence[int]
    errors: Mapping[int, InvalidRequest]


class _Work:
    """A batch on its way through the steps. `indexes` are the messages that are still in it."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.indexes: Sequence[int] = range(columns.count)
        self.headers: list[Headers] | None = list(columns.headers) if columns.headers is not None else None
        self.keys: list[bytes | None] | None = list(columns.keys) if columns.keys is not None else None
        self.values: list[bytes] | None = None
        self.errors: dict[int, InvalidRequest] = {}
        self._messages: dict[int, MessageView] = {}

    def message(self, index: int) -> MessageView:
        """One message as expressions see it; what was decoded for one step serves the next."""
        found = self._messages.get(index)
        if found is None:
            key = self.keys[index] if self.keys is not None else None
            found = MessageView(self.columns.value(index), key, self.headers[index] if self.headers else NO_HEADERS)
            self._messages[index] = found
        return found

    def change_headers(self, change: Callable[[Headers], Headers]) -> None:
        if self.headers is None:
            self.headers = [change(NO_HEADERS)] * self.columns.count
        else:
            self.headers = list(map(change, self.headers))
        # expressions may look at headers: what was made of the old ones is void, but not what a step has made of the value
        if self._messages:
            self._messages.clear()
            if self.values is not None:
                for index in self.indexes:
                    self.message(index).replace(self.values[index])

    def each(self, step: Callable[[int, MessageView], bool]) -> None:
        """Every message through a step that says whether it stays; one that fails leaves with its error."""
        staying = []
        for index in self.indexes:
            try:
                if step(index, self.message(index)):
                    staying.append(index)
            except InvalidRequest as error:
                self.errors[index] = error
        if len(staying) != len(self.indexes):
            self.indexes = staying

    def finish(self) -> Transformed:
        source = self.columns
        whole = len(self.indexes) == source.count
        if self.values is not None:
            columns = Columns.of(self.values, self.keys, self.headers, source.expires)
        else:
            columns = Columns(source.packed, source.ends, self.keys, self.headers, source.expires)
        return Transformed(columns if whole else columns.pick(self.indexes), self.indexes, self.errors)


_Step = Callable[[_Work], None]


@attrs.frozen(eq=False)
class Transform:
    _steps: tuple[_Step, ...]

    def apply(self, columns: Columns) -> Transformed:
        work = _Work(columns)
        for step in self._steps:
            step(work)
        return work.finish()


def compile_transform(steps: Sequence[model.Step]) -> Transform | None:
    """The steps ready to run, None when there is nothing to do to a message; ConfigProblem for an expression that does
    not compile. A new address is not a message's business: the table sees to it.
    """
    compiled = [compile_step(step) for step in steps]
    useful = tuple(step for step in compiled if step is not None)
    return Transform(useful) if useful else None


def compile_step(step: model.Step) -> _Step | None:
    """One step, or None for one that changes no message."""
    match step:
        case model.SetHeader():
            return _set_header(step.headers)
        case model.RemoveHeader():
            return _remove_header(frozenset(step.names))
        case model.RenameHeader():
            return _rename_header(step.names)
        case model.Rewrite():
            return _rewrite_key(compile_expression(step.key)) if step.key else None
        case model.Filter():
            return _filter(compile_expression(step.expression))
        case model.Project():
            return _project({name: compile_expression(text) for name, text in step.fields.items()})


def _set_header(headers: Mapping[str, str]) -> _Step:
    tail = tuple((name, value.encode()) for name, value in headers.items())

    def change(old: Headers) -> Headers:
        return tuple(header for header in old if header[0] not in headers) + tail if old else tail

    return lambda work: work.change_headers(change)


def _remove_header(names: frozenset[str]) -> _Step:
    def change(old: Headers) -> Headers:
        return tuple(header for header in old if header[0] not in names)

    def step(work: _Work) -> None:
        if work.headers is not None:
            work.change_headers(change)

    return step


def _rename_header(names: Mapping[str, str]) -> _Step:
    def change(old: Headers) -> Headers:
        return tuple((names.get(name, name), value) for name, value in old)

    def step(work: _Work) -> None:
        if work.headers is not None:
            work.change_headers(change)

    return step


def _filter(expression: Expression) -> _Step:
    return lambda work: work.each(lambda _index, message: is_true(expression.evaluate(message), expression.text))


def _rewrite_key(expression: Expression) -> _Step:
    def step(work: _Work) -> None:
        # for every message of the batch: those that are filtered out keep their places until the end
        keys: list[bytes | None] = work.keys if work.keys is not None else [None] * work.columns.count
        work.keys = keys

        def rekey(index: int, message: MessageView) -> bool:
            message.rekey(to_key(expression.evaluate(message), expression.text))
            keys[index] = message.key
            return True

        work.each(rekey)

    return step


def _project(fields: Mapping[str, Expression]) -> _Step:
    def step(work: _Work) -> None:
        # from here on the values are not packed any more: only a projection pays for that
        values = work.values if work.values is not None else work.columns.values()
        work.values = values

        def project(index: int, message: MessageView) -> bool:
            try:
                made = {name: to_json(expression.evaluate(message)) for name, expression in fields.items()}
                message.replace(msgspec.json.encode(made))
            except RecursionError:
                raise InvalidRequest(TOO_DEEP) from None
            values[index] = message.payload
            return True

        work.each(project)

    return step
