"""CEL's operators over plain values, done only where their meaning is beyond doubt; anything else raises `Unsure`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

Variables = Mapping[str, Any]
Direct = Callable[[Variables], Any]

LARGEST = (1 << 63) - 1
SUMMED = (int, float)
_ORDERED = (int, float, str)


class Unsure(Exception):
    """The interpreter has to decide. Never leaves `gateway.routing.expression`."""


def sound(value: Any) -> Any:
    """A value that 64 bits can hold."""
    if type(value) is int and not -LARGEST <= value <= LARGEST:
        raise Unsure
    return value


def truth(value: Any) -> bool:
    if type(value) is not bool:
        raise Unsure
    return value


def _and(_operator: str, left: Direct, right: Direct) -> Direct:
    return lambda variables: truth(left(variables)) and truth(right(variables))


def _or(_operator: str, left: Direct, right: Direct) -> Direct:
    return lambda variables: truth(left(variables)) or truth(right(variables))


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "relation_lt": operator.lt,
    "relation_le": operator.le,
    "relation_gt": operator.gt,
    "relation_ge": operator.ge,
}
_SUMS: Mapping[str, Callable[[Any, Any], Any]] = {
    "addition_add": operator.add,
    "addition_sub": operator.sub,
    "multiplication_mul": operator.mul,
}


def _relation(name: str, left: Direct, right: Direct) -> Direct:
    if name in ("relation_eq", "relation_ne"):
        return _equality(left, right, wanted=name == "relation_eq")
    if name == "relation_in":
        return _membership(left, right)
    compare = _COMPARISONS[name]

    def comparison(variables: Variables) -> bool:
        one, two = left(variables), right(variables)
        if (type(one) is not type(two) or type(one) not in _ORDERED) and (
            type(one) is not float or type(two) is not int
        ):
            raise Unsure  # a fraction is compared with a whole number, but not the other way round
        return compare(one, two)

    return comparison


def _equality(left: Direct, right: Direct, *, wanted: bool) -> Direct:
    def equality(variables: Variables) -> bool:
        one, two = left(variables), right(variables)
        if type(one) is type(two) and (one is None or type(one) in (int, float, str, bool)):
            return (one == two) is wanted
        raise Unsure

    return equality


def _membership(left: Direct, right: Direct) -> Direct:
    def membership(variables: Variables) -> bool:
        one, many = left(variables), right(variables)
        if type(one) is str and type(many) is dict:
            return one in many
        if type(many) is list and type(one) in (int, str) and all(type(each) is type(one) for each in many):
            return one in many
        raise Unsure

    return membership


def _sum(name: str, left: Direct, right: Direct) -> Direct:
    calculate = _SUMS.get(name)
    if calculate is None:
        return _quotient(name, left, right)
    text = name == "addition_add"

    def calculation(variables: Variables) -> Any:
        one, two = left(variables), right(variables)
        if type(one) is not type(two) or not (type(one) in SUMMED or (text and type(one) is str)):
            raise Unsure
        return sound(calculate(one, two))

    return calculation


_QUOTIENTS: Mapping[str, Callable[[int, int], int]] = {
    "multiplication_div": operator.floordiv,
    "multiplication_mod": operator.mod,
}


def _quotient(name: str, left: Direct, right: Direct) -> Direct:
    # below 0 CEL rounds in another way than Python: left to the interpreter, as is a division by 0
    divide = _QUOTIENTS.get(name)
    if divide is None:
        raise Unsure

    def quotient(variables: Variables) -> int:
        one, two = left(variables), right(variables)
        if type(one) is not int or type(two) is not int or one < 0 or two <= 0:
            raise Unsure
        return divide(one, two)

    return quotient


LOGICAL = frozenset(("conditionaland", "conditionalor"))
BINARY: Mapping[str, Callable[[str, Direct, Direct], Direct]] = {
    "conditionaland": _and,
    "conditionalor": _or,
    "relation": _relation,
    "addition": _sum,
    "multiplication": _sum,
}
