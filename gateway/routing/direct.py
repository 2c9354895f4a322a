"""The everyday part of CEL as Python closures over plain values: fields, comparisons, `&&`, `||`, `in`, sums.

The interpreter takes hundreds of microseconds for what is a dictionary look-up and a comparison, and a filter runs for
every message. Here an operation is done only where its meaning is beyond doubt: known operators, both sides of one type.
Anything else (another operator, mixed types, a missing field, a number beyond 64 bits) raises `Unsure`, and the
interpreter decides, errors included. A test holds both to the same answers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lark

VARIABLES = frozenset(("value", "key", "headers"))
"""What an expression may look at."""

Variables = Mapping[str, Any]
Direct = Callable[[Variables], Any]

_LARGEST = (1 << 63) - 1
_ORDERED = (int, float, str)
_SUMMED = (int, float)


class Unsure(Exception):
    """The interpreter has to decide. Never leaves `gateway.routing.expression`."""


def compile_direct(tree: lark.Tree[Any]) -> Direct | None:
    """The expression as a function of its variables, or None when it needs the interpreter anyway."""
    try:
        return _compile(tree)
    except Unsure:
        return None


def _compile(node: Any) -> Direct:
    """One node of the syntax tree. Most of them only wrap the next (the grammar has a level per precedence)."""
    if isinstance(node, str):  # a bare token: nothing that is known here
        raise Unsure
    children = [child for child in node.children if child is not None]
    rule = _RULES.get(node.data)
    if rule is not None:
        return rule(children)
    if len(children) == 1:
        return _compile(children[0])
    binary = _BINARY.get(node.data)
    if binary is None:
        raise Unsure
    if node.data in _LOGICAL:
        return binary("", _compile(children[0]), _compile(children[1]))
    # relation, addition, multiplication: the first child is `<left side> <operator>`
    left, right = children
    return binary(left.data, _compile(left.children[0]), _compile(right))


def _literal(children: list[Any]) -> Direct:
    from celpy.evaluation import celstr

    token = children[0]
    value: Any
    if token.type == "INT_LIT" and token.isdigit() and int(token) <= _LARGEST:
        value = int(token)
    elif token.type == "FLOAT_LIT":
        value = float(token)
    elif token.type == "STRING_LIT":
        value = str(celstr(token))
    elif token.type in ("BOOL_LIT", "NULL_LIT"):
        value = {"true": True, "false": False, "null": None}[str(token)]
    else:
        raise Unsure
    return lambda _variables: value


def _ident(children: list[Any]) -> Direct:
    name = str(children[0])
    if name in VARIABLES:
        return operator.itemgetter(name)

    def bound(variables: Variables) -> Any:
        if name not in variables:  # the name of a type, or one that is bound elsewhere
            raise Unsure
        return variables[name]

    return bound


def _sound(value: Any) -> Any:
    if type(value) is int and not -_LARGEST <= value <= _LARGEST:
        raise Unsure
    return value


def _member_dot(children: list[Any]) -> Direct:
    source, name = _compile(children[0]), str(children[1])

    def field(variables: Variables) -> Any:
        found = source(variables)
        if type(found) is not dict or name not in found:
            raise Unsure
        return _sound(found[name])

    return field


def _member_index(children: list[Any]) -> Direct:
    source, index = _compile(children[0]), _compile(children[1])

    def item(variables: Variables) -> Any:
        found, at = source(variables), index(variables)
        if type(found) is dict and type(at) is str and at in found:
            return _sound(found[at])
        if type(found) is list and type(at) is int and 0 <= at < len(found):
            return _sound(found[at])
        raise Unsure

    return item


_TEXT_METHODS: Mapping[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
}


def _method(children: list[Any]) -> Direct:
    name = str(children[1])
    if len(children) != 3:
        raise Unsure
    if name in _QUANTIFIERS:
        return _quantifier(_QUANTIFIERS[name], children[0], *children[2].children)
    if name == "matches":
        return _matches(children[0], *children[2].children)
    test = _TEXT_METHODS.get(name)
    if test is None or len(children[2].children) != 1:
        raise Unsure
    source, argument = _compile(children[0]), _compile(children[2].children[0])

    def method(variables: Variables) -> bool:
        text, wanted = source(variables), argument(variables)
        if type(text) is not str or type(wanted) is not str:
            raise Unsure
        return test(text, wanted)

    return method


def _exactly_one(truths: Iterator[bool]) -> bool:
    return sum(truths) == 1


_QUANTIFIERS: Mapping[str, Callable[[Iterator[bool]], bool]] = {"exists": any, "all": all, "exists_one": _exactly_one}
"""`any` and `all` stop at the first that decides, as CEL may: whatever the others are, they change nothing."""


def _quantifier(decide: Callable[[Iterator[bool]], bool], items: Any, name: Any, condition: Any) -> Direct:
    source, test = _compile(items), _compile(condition)
    (bound,) = map(str, name.scan_values(lambda _token: True))

    def quantifier(variables: Variables) -> bool:
        found = source(variables)
        if type(found) is not list:
            raise Unsure
        scope = dict(variables)

        def truths() -> Iterator[bool]:
            for item in found:
                scope[bound] = _sound(item)
                yield _bool(test(scope))

        return decide(truths())

    return quantifier


def _matches(text: Any, pattern: Any) -> Direct:
    """Only for a pattern that is written out: it is compiled once, by the library that the interpreter uses."""
    import re2

    source, literal = _compile(text), _compile(pattern)
    try:
        search = re2.compile(literal({})).search
    except (LookupError, TypeError, re2.error):  # no text that is known beforehand, or no pattern
        raise Unsure from None

    def matches(variables: Variables) -> bool:
        found = source(variables)
        if type(found) is not str:
            raise Unsure
        return search(found) is not None

    return matches


_CONVERSIONS: Mapping[str, tuple[tuple[type, ...], Callable[[Any], Any]]] = {
    "string": ((str, int), str),
    "int": ((int,), int),
    "double": ((int, float), float),
}
"""Only from the types where nothing can go wrong or be rounded in a way of its own."""


def _conversion(kinds: tuple[type, ...], convert: Callable[[Any], Any], argument: Any) -> Direct:
    source = _compile(argument)

    def conversion(variables: Variables) -> Any:
        value = source(variables)
        if type(value) not in kinds:
            raise Unsure
        return convert(value)

    return conversion


def _call(children: list[Any]) -> Direct:
    arguments = children[1].children if len(children) == 2 else []
    if len(arguments) != 1:
        raise Unsure
    if children[0] == "size":
        source = _compile(arguments[0])

        def size(variables: Variables) -> int:
            found = source(variables)
            if type(found) not in (str, list, dict):
                raise Unsure
            return len(found)

        return size
    if children[0] == "has":
        return _has(arguments[0])
    if children[0] in _CONVERSIONS:
        return _conversion(*_CONVERSIONS[str(children[0])], arguments[0])
    raise Unsure


def _has(node: Any) -> Direct:
    while node.data != "member_dot":
        if len(node.children) != 1 or not hasattr(node.children[0], "children"):
            raise Unsure
        node = node.children[0]
    source, name = _compile(node.children[0]), str(node.children[1])

    def has(variables: Variables) -> bool:
        found = source(variables)
        if type(found) is not dict:
            raise Unsure
        return name in found

    return has


def _list(children: list[Any]) -> Direct:
    items = [_compile(item) for item in children[0].children] if children else []
    return lambda variables: [item(variables) for item in items]


def _choice(children: list[Any]) -> Direct:
    if len(children) == 1:
        return _compile(children[0])
    condition, yes, no = map(_compile, children)
    return lambda variables: yes(variables) if _bool(condition(variables)) else no(variables)


def _unary(children: list[Any]) -> Direct:
    if len(children) == 1:
        return _compile(children[0])
    inner = _compile(children[1])
    if children[0].data == "unary_not":
        return lambda variables: not _bool(inner(variables))

    def negative(variables: Variables) -> Any:
        value = inner(variables)
        if type(value) not in _SUMMED:
            raise Unsure
        return _sound(-value)

    return negative


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise Unsure
    return value


def _and(_operator: str, left: Direct, right: Direct) -> Direct:
    return lambda variables: _bool(left(variables)) and _bool(right(variables))


def _or(_operator: str, left: Direct, right: Direct) -> Direct:
    return lambda variables: _bool(left(variables)) or _bool(right(variables))


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
        if type(one) is not type(two) or type(one) not in _ORDERED:
            raise Unsure
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
        if type(one) is not type(two) or not (type(one) in _SUMMED or (text and type(one) is str)):
            raise Unsure
        return _sound(calculate(one, two))

    return calculation


_QUOTIENTS: Mapping[str, Callable[[int, int], int]] = {
    "multiplication_div": operator.floordiv,
    "multiplication_mod": operator.mod,
}


def _quotient(name: str, left: Direct, right: Direct) -> Direct:
    """Below 0 CEL rounds in another way than Python: left to the interpreter, as is a division by 0."""
    divide = _QUOTIENTS.get(name)
    if divide is None:
        raise Unsure

    def quotient(variables: Variables) -> int:
        one, two = left(variables), right(variables)
        if type(one) is not int or type(two) is not int or one < 0 or two <= 0:
            raise Unsure
        return divide(one, two)

    return quotient


_RULES: Mapping[str, Callable[[list[Any]], Direct]] = {
    "expr": _choice,
    "unary": _unary,
    "literal": _literal,
    "ident": _ident,
    "ident_arg": _call,
    "list_lit": _list,
    "member_dot": _member_dot,
    "member_index": _member_index,
    "member_dot_arg": _method,
}
_LOGICAL = frozenset(("conditionaland", "conditionalor"))
_BINARY: Mapping[str, Callable[[str, Direct, Direct], Direct]] = {
    "conditionaland": _and,
    "conditionalor": _or,
    "relation": _relation,
    "addition": _sum,
    "multiplication": _sum,
}
