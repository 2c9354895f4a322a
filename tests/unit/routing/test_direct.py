"""The short way through an expression gives the interpreter's answers, or leaves the answer to it."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import ConfigProblem, InvalidRequest
from gateway.routing.expression import Expression, MessageView, compile_expression, to_json
from gateway.routing.operators import Unsure

compile_expression(
    "true"
)  # the interpreter raises the recursion limit once, which hypothesis must not see inside a test

PAYLOAD = {"n": 3, "f": 2.5, "s": "abc", "t": True, "z": None, "l": [1, 2], "m": {"n": 3, "s": "b"}, "e": []}
MESSAGE = (msgspec.json.encode(PAYLOAD), b"key", (("kind", b"order"), ("kind", b"later"), ("raw", b"\xff")))


def message() -> MessageView:
    return MessageView(*MESSAGE)


def directly(expression: Expression) -> Any:
    assert expression._direct is not None
    return expression._direct(message().plain(expression.names))


DIRECT = [
    "value.n > 2",
    "value.m.n == value.n && value.s != 'x'",
    "value['s'] in ['abc', 'd'] || value.t",
    "headers.kind == 'order' && key.startsWith('k')",
    "has(value.n) && !has(value.q) && size(value.l) == 2",
    "value.l[1] + 1 == value.n ? 'yes' : 'no'",
    "-value.n < 0",
    "value.f * 2.0",
    "value.z == null",
    "(value.n - 1) * 2",
    "value.s + '-' + value.m.s",
    "value.m",
    "'kind' in headers",
    "value.f > 2 && value.f <= 3",
    "value.l.exists(x, x > 1)",
    "value.l.all(x, x > 1) || value.e.all(x, x > 1)",
    "value.l.exists_one(x, x == value.n - 1)",
    "value.l.exists(x, value.l.exists(y, y > x))",
    "value.n / 2 == 1 && value.n % 2 == 1",
    "value.s.matches('^a.c$') && !value.s.matches('^b')",
    "string(value.n) == '3' && int(value.n) == 3 && double(value.f) == 2.5",
]


@pytest.mark.parametrize("text", DIRECT)
def test_everyday_expressions_need_no_interpreter(text: str) -> None:
    expression = compile_expression(text)
    assert same(directly(expression), expression.interpret(message()))


INTERPRETED = [
    "value.l.map(x, x + 1) == [2, 3]",
    "value.s.matches(value.s)",
    "bool('true')",
    "{'a': 1}.a == 1",
]


@pytest.mark.parametrize("text", INTERPRETED)
def test_the_rest_is_the_interpreters(text: str) -> None:
    expression = compile_expression(text)
    assert expression._direct is None
    expression.evaluate(message())


UNSURE = [
    "value.n > 2.5",
    "value.n == 'x'",
    "value.q > 1",
    "value.n && true",
    "value.l[9] == 1",
    "9223372036854775807 + value.n > 0",
    "headers.raw.startsWith('x')",
    "value.t > false",
    "(1 - value.n) / 2 == 0 - 1",
    "value.n % 0 == 1",
    "value.l.exists(x, x == 'a')",
    "value.m.exists(x, x == 's')",
    "value.l.exists(x, true) && x == 1",
    "int('3') == 3",
]


@pytest.mark.parametrize("text", UNSURE)
def test_what_is_not_beyond_doubt_is_left_to_the_interpreter(text: str) -> None:
    with pytest.raises(Unsure):
        directly(compile_expression(text))


def same(one: Any, two: Any) -> bool:
    return type(to_json(one)) is type(to_json(two)) and to_json(one) == to_json(two)


ATOMS = [
    "value.n", "value.f", "value.s", "value.t", "value.z", "value.l", "value.m", "value.m.n", "value['s']", "value.q", "value.l[1]",
    "key", "headers.kind", "headers", "1", "3", "2.5", "'abc'", "'n'", "true", "false", "null", "value.e", "0",
]  # fmt: skip
BINARY = ["==", "!=", "<", "<=", ">", ">=", "&&", "||", "+", "-", "*", "/", "%", "in"]
SHAPES = [
    "!({})", "-({})", "[{}]", "size({})", "({}).startsWith('a')", "({}).contains('b')", "({}).endsWith('c')",
    "({}).exists(x, x > 1)", "({}).all(x, x != 'b')", "({}).exists_one(x, x == 1)", "({}).all(x, value.l.exists(y, y == x))",
    "({}).matches('^a')", "string({})", "int({})", "double({})",
]  # fmt: skip


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(BINARY), inner),
        st.builds(lambda shape, one: shape.format(one), st.sampled_from(SHAPES), inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    )


@settings(max_examples=150, deadline=None)
@given(st.recursive(st.sampled_from(ATOMS), grow, max_leaves=5))
def test_both_ways_give_the_same_answer(text: str) -> None:
    expression = compile_expression(text)
    try:
        short = directly(expression) if expression._direct is not None else None
    except Unsure:
        return
    if expression._direct is not None:
        assert same(short, expression.interpret(message())), text


WORDS = [
    *ATOMS,
    *BINARY,
    "(",
    ")",
    "map",
    "size",
    ".",
    ",",
    ".map(x, x)",
    ".all(x, x)",
    "[",
    "]",
    "has(",
    "type(",
    "int(",
    "x",
    "/",
    "%",
    "?",
    ":",
]


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=20), st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join)))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    try:
        expression = compile_expression(text)
    except ConfigProblem:
        return
    with contextlib.suppress(InvalidRequest):
        expression.evaluate(message())
