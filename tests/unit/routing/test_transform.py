"""What the steps of a route do to a batch, message by message, and what they leave alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import model
from gateway.envelope import Columns, Headers
from gateway.errors import ConfigProblem
from gateway.routing.expression import compile_expression
from gateway.routing.transform import Transform, Transformed, compile_transform


def transform(*steps: model.Step) -> Transform:
    compiled = compile_transform(steps)
    assert compiled is not None
    return compiled


def apply(columns: Columns, *steps: model.Step) -> Transformed:
    return transform(*steps).apply(columns)


def orders(*amounts: int) -> Columns:
    return Columns.of([b'{"amount": %d, "id": "o%d"}' % (amount, index) for index, amount in enumerate(amounts)])


def test_nothing_to_do_is_no_transform() -> None:
    assert compile_transform([]) is None
    assert compile_transform([model.Rewrite(address="x.{topic}")]) is None


HEADERS: list[tuple[model.Step, Headers, Headers]] = [
    (model.SetHeader({"a": "1"}), (), (("a", b"1"),)),
    (model.SetHeader({"a": "1"}), (("a", b"0"), ("b", b"2"), ("a", b"x")), (("b", b"2"), ("a", b"1"))),
    (model.SetHeader({"a": "é", "b": ""}), (), (("a", "é".encode()), ("b", b""))),
    (model.RemoveHeader(("a", "c")), (("a", b"0"), ("b", b"2"), ("a", b"x")), (("b", b"2"),)),
    (model.RemoveHeader(("a",)), (), ()),
    (model.RenameHeader({"a": "z"}), (("a", b"0"), ("b", b"2"), ("a", b"x")), (("z", b"0"), ("b", b"2"), ("z", b"x"))),
]


@pytest.mark.parametrize(("step", "before", "after"), HEADERS)
def test_headers(step: model.Step, before: Headers, after: Headers) -> None:
    columns = Columns.of([b"x"], headers=[before])
    done = apply(columns, step)
    assert done.columns.headers_of(0) == after
    assert list(done.kept) == [0]
    assert done.columns.packed is columns.packed  # values are not touched


def test_a_batch_without_headers_gets_them() -> None:
    done = apply(Columns.of([b"x", b"y"]), model.SetHeader({"a": "1"}))
    assert done.columns.headers == [(("a", b"1"),)] * 2
    assert apply(Columns.of([b"x"]), model.RenameHeader({"a": "b"})).columns.headers is None


def test_a_filter_keeps_what_it_is_true_for() -> None:
    done = apply(orders(5, 11, 10, 40), model.Filter("value.amount > 10"))
    assert list(done.kept) == [1, 3]
    assert done.columns.values() == [b'{"amount": 11, "id": "o1"}', b'{"amount": 40, "id": "o3"}']
    assert done.errors == {}


def test_keys_headers_and_expiry_stay_with_their_message() -> None:
    columns = Columns.of([b"1", b"2", b"3"], [b"a", None, b"c"], [(("h", b"1"),), (), (("h", b"3"),)], [10, 20, 30])
    done = apply(columns, model.Filter("value != 2"))
    assert (done.columns.keys, done.columns.expires) == ([b"a", b"c"], [10, 30])
    assert done.columns.headers == [(("h", b"1"),), (("h", b"3"),)]


BY_KEY_AND_HEADERS = [
    ("key == 'a'", [0]),
    ("key == null", [1]),
    ("key != null && key in ['a', 'b']", [0]),
    ("key == b'\\xff'", [2]),
    ("'kind' in headers", [0, 2]),
    ("has(headers.kind) && headers.kind == 'order'", [0]),
    ("'kind' in headers && headers['kind'] in ['order', 'bill']", [0, 2]),
    ("size(headers) == 0", [1]),
    ("true", [0, 1, 2]),
    ("false", []),
]


@pytest.mark.parametrize(("expression", "kept"), BY_KEY_AND_HEADERS)
def test_filters_over_keys_and_headers_need_no_json(expression: str, kept: list[int]) -> None:
    columns = Columns.of(
        [b"\xff", b"\xfe", b"\xfd"],
        [b"a", None, b"\xff"],
        [(("kind", b"order"), ("kind", b"second")), (), (("kind", b"bill"),)],
    )
    done = apply(columns, model.Filter(expression))
    assert (list(done.kept), done.errors) == (kept, {})


FAILING = [
    (b"not json", "the payload is not JSON"),
    (b"", "the payload is not JSON"),
    (b'{"other": 1}', "no such member"),
    (b'{"amount": "much"}', "found no matching overload"),
    (b'{"amount": 99999999999999999999}', "beyond 64 bits"),
    (b"[" * 100_000, "the payload is not JSON"),
    (b"null", "does not support"),
]


@pytest.mark.parametrize(("payload", "why"), FAILING)
def test_a_message_that_a_filter_cannot_judge_is_an_error_of_its_own(payload: bytes, why: str) -> None:
    columns = Columns.of([b'{"amount": 11}', payload, b'{"amount": 1}', b'{"amount": 12}'])
    done = apply(columns, model.Filter("value.amount > 10"))
    assert list(done.kept) == [0, 3]
    assert list(done.errors) == [1]
    assert why in done.errors[1].message
    assert done.columns.values() == [b'{"amount": 11}', b'{"amount": 12}']


@pytest.mark.parametrize("payload", [b"null", b"1", b"true", b'"s"', b'{"a": 1}'])
def test_a_macro_over_what_is_no_list(payload: bytes) -> None:
    done = apply(Columns.of([payload, b"[2]"]), model.Filter("value.map(x, x + 1).size() == 1 && value[0] == 2"))
    assert (list(done.kept), list(done.errors)) == ([1], [0])


def test_an_expression_that_is_no_condition() -> None:
    done = apply(orders(1), model.Filter("value.amount"))
    assert done.errors[0].message == "'value.amount' gives a number, not true or false"


def test_a_projection_makes_a_new_payload() -> None:
    done = apply(
        Columns.of([b'{"a": {"b": [1, 2.5, null, true]}, "n": 3}'], [b"k"]),
        model.Project(
            {"list": "value.a.b", "twice": "value.n * 2", "key": "key", "raw": "b'x'", "map": "{'z': value.n}"}
        ),
    )
    assert done.columns.values() == [b'{"list":[1,2.5,null,true],"twice":6,"key":"k","raw":"eA==","map":{"z":3}}']
    assert done.columns.keys == [b"k"]


def test_a_projection_that_fails_leaves_the_others() -> None:
    done = apply(orders(1, 2), model.Project({"x": "100 / (value.amount - 1)"}))
    assert list(done.kept) == [1]
    assert done.columns.values() == [b'{"x":100}']
    assert "divide" in done.errors[0].message


@pytest.mark.parametrize(
    ("expression", "key"),
    [("value.id", b"o0"), ("value.amount", b"7"), ("b'raw'", b"raw"), ("null", None), ("value.id + '-' + string(value.amount)", b"o0-7")],
)  # fmt: skip
def test_a_key_from_the_payload(expression: str, key: bytes | None) -> None:
    assert apply(orders(7), model.Rewrite(key=expression)).columns.key(0) == key


def test_a_key_that_is_none() -> None:
    done = apply(orders(7), model.Rewrite(key="value"))
    assert done.errors[0].message == "'value' gives a map, not a key"
    assert list(done.kept) == []


def test_each_step_sees_what_the_one_before_made() -> None:
    done = apply(
        orders(5, 50, 500),
        model.SetHeader({"seen": "1"}),
        model.Filter("value.amount > 10 && headers.seen == '1'"),
        model.Rewrite(key="value.id"),
        model.RenameHeader({"seen": "was"}),
        model.Project({"id": "key", "double": "value.amount * 2"}),
        model.SetHeader({"last": "1"}),
        model.Filter("value.double < 500 && headers.was == '1' && headers.last == '1' && key == value.id"),
    )
    assert list(done.kept) == [1]
    assert done.columns.values() == [b'{"id":"o1","double":100}']
    assert done.columns.keys == [b"o1"]
    assert done.columns.headers == [(("was", b"1"), ("last", b"1"))]
    assert done.errors == {}


def test_the_batch_that_came_in_is_not_changed() -> None:
    columns = Columns.of([b"1"], [b"k"], [(("h", b"1"),)])
    apply(columns, model.SetHeader({"x": "y"}), model.Rewrite(key="'z'"), model.Project({"v": "value"}))
    assert (columns.values(), columns.keys, columns.headers) == ([b"1"], [b"k"], [(("h", b"1"),)])


BAD = [
    ("value.(", "not an expression"),
    ("", "not an expression"),
    ("a b", "not an expression"),
    ("vaule.x", "unknown name 'vaule'"),
    ("value.all(x, y > 1)", "unknown name 'y'"),
    ("nosuch(value)", "unknown function 'nosuch'"),
    ("value.nosuch()", "unknown function 'nosuch'"),
    ("value.map(x)", "map takes a name and an expression"),
    ("value.all(1, true)", "all takes a name and an expression"),
    ("value.all(x.y, true)", "all takes a name and an expression"),
    ("__import__('os')", "unknown function '__import__'"),
]


@pytest.mark.parametrize(("text", "why"), BAD)
def test_what_is_wrong_with_an_expression_is_known_at_once(text: str, why: str) -> None:
    with pytest.raises(ConfigProblem, match=why):
        compile_expression(text)


GOOD = [
    "value.items.all(i, i.x > 0 && i.y.exists(j, j == i.x))",
    "value.a.map(x, x * 2).filter(y, y > 1).size() > 0",
    "has(value.a) ? value.a : 'none'",
    "type(value) == map",
    "dyn(value) == 1",
    "int(string(value.n)) + size(key) > 1",
    "timestamp('2024-01-01T00:00:00Z').getFullYear() == 2024",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_is_right_with_an_expression(text: str) -> None:
    assert compile_expression(text).names <= {"value", "key", "headers"}


json_values = st.integers(-5, 5)


@given(st.lists(st.tuples(json_values, st.booleans()), max_size=8))
def test_a_filter_is_a_filter(rows: Sequence[tuple[int, bool]]) -> None:
    columns = Columns.of([b'{"n": %d}' % n if good else b"{" for n, good in rows])
    done = FILTER.apply(columns)
    assert list(done.kept) == [index for index, (n, good) in enumerate(rows) if good and n > 0]
    assert sorted(done.errors) == [index for index, (_, good) in enumerate(rows) if not good]
    assert done.columns.values() == [columns.value(index) for index in done.kept]


FILTER = transform(model.Filter("value.n > 0"))
