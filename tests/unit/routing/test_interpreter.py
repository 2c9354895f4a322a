"""What a payload holds decides neither how long an expression takes, nor how large an error becomes, nor what is logged."""

from __future__ import annotations

import msgspec
import pytest

from gateway import model
from gateway.envelope import Columns
from gateway.errors import ConfigProblem
from gateway.routing.expression import LONGEST, MOST_INTERPRETED, compile_expression
from gateway.routing.transform import Transformed, compile_transform


def apply(step: model.Step, *payloads: object) -> Transformed:
    transform = compile_transform([step])
    assert transform is not None
    return transform.apply(Columns.of([msgspec.json.encode(one) for one in payloads]))


def items(count: int) -> dict[str, object]:
    return {"items": [{"a": number} for number in range(count)]}


@pytest.mark.parametrize(
    "condition",
    [
        "value.items.exists(x, x.b == 1)",
        "value.items.all(x, x.b == 1)",
        " || ".join(f"value.kind == 'k{number}'" for number in range(40)),
        " && ".join(f"value.kind == 'k{number}'" for number in range(40)),
        "value.kind ? 1 : " * 30 + "2",
        "!(" * 30 + "value.kind" + ")" * 30,
        "value.kind + " * 30 + "1",
    ],
)
def test_an_error_stays_a_line_however_many_others_it_is_made_of(condition: str) -> None:
    done = apply(model.Filter(condition), items(60))
    assert len(done.errors[0].message) < len(condition) + 300


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("value.l.exists(x, x.a == 1)", True),
        ("value.l.all(x, x.a == 2)", False),
        ("value.l.all(x, x.a == 1)", None),
        ("value.l.exists(x, x.a == 2)", None),
        ("[].all(x, x.a == 2) && ![].exists(x, x.a == 2)", True),
        ("value.l.exists(x, x.a)", None),
    ],
)
def test_an_error_counts_only_where_no_item_decides(condition: str, kept: bool | None) -> None:
    done = apply(model.Filter(condition), {"l": [{"b": 1}, {"a": 1}]})
    assert (None if done.errors else bool(done.kept)) is kept


def test_an_expression_that_takes_too_long_for_a_message_is_an_error_of_that_message() -> None:
    done = apply(model.Project({"x": "value.items.map(x, x.a)"}), items(3), items(2_000))
    assert list(done.kept) == [0]
    assert "too many steps" in done.errors[1].message
    nested = "value.items.all(x, value.items.all(y, x.a + y.a >= 0))"
    done = apply(model.Filter(nested), items(30), items(400))
    assert list(done.kept) == [0]
    assert "too many steps" in done.errors[1].message


def test_a_payload_too_large_for_the_interpreter_is_looked_at_only_without_it() -> None:
    payload = {"n": 1, "text": "x" * MOST_INTERPRETED}
    assert list(apply(model.Filter("value.n == 1"), payload).kept) == [0]
    assert "can be looked at" in apply(model.Filter("value.m == 1"), payload).errors[0].message


@pytest.mark.parametrize("depth", [900, 1_300, 1_900, 2_450])
@pytest.mark.parametrize("expression", ["value", "[value].map(x, x)", "value == value"])
def test_deep_nesting_is_an_error_of_that_message(expression: str, depth: int) -> None:
    transform = compile_transform([model.Project({"x": expression})])
    assert transform is not None
    done = transform.apply(Columns.of([b"[" * depth + b"]" * depth, b"[]"]))
    assert done.kept[-1] == 1


@pytest.mark.parametrize("expression", ["(" * 400 + "true" + ")" * 400, "value" + ".a" * 2_000 + " == 1"])
def test_an_expression_that_is_nested_too_deeply(expression: str) -> None:
    with pytest.raises(ConfigProblem, match="nested too deeply"):
        compile_expression(expression)


def test_an_expression_has_a_length() -> None:
    with pytest.raises(ConfigProblem, match="at most"):
        compile_expression(" " * LONGEST + "true")


def test_patterns_are_checked_when_they_are_written_out_and_never_logged(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigProblem, match="not a pattern"):
        compile_expression("value.a.matches('(')")
    done = apply(model.Filter("value.a.matches(value.b)"), {"a": "x", "b": "(secret"}, {"a": "x", "b": "x|y"})
    assert list(done.kept) == [1]
    assert list(done.errors) == [0]
    assert capfd.readouterr().err == ""
