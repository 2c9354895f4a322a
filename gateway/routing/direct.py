"""The everyday part of CEL as Python closures over plain values: fields, comparisons, `&&`, `||`, `in`, sums.

The interpreter takes hundreds of microseconds for what is a dictionary look-up and a comparison, and a filter runs for
every message. Here an operation is done only where its meaning is beyond doubt: known operators, both sides of one type.
Anything else (another operator, mixed types, a missing field, a number beyond 64 bits) raises `Unsure`, and the
interpreter decides, errors included. A test holds both to the same answers.

Apart from `expression`, so that what is quick and what is complete can be held against each other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gateway.errors import ConfigProblem
from gateway.routing.operators import BINARY, LARGEST, LOGICAL, SUMMED, Direct, Unsure, Variables, sound, truth

if TYPE_CHECKING:
    import lark

VARIABLES = frozenset(("value", "key", "headers"))
"""What an expression may look at."""
MOST_ITEMS = 100_000
"""That `all` and `exists` look at for one message, inside each other too: a tenth of a second."""
_LEFT = " left"
"""How many of them are left; no name of a variable has a space."""


def compile_direct(tree: lark.Tree[Any]) -> Direct | None:
    """The expression as a function of its variables, or None when it needs the interpreter anyway."""
    try:
        return _compile(tree)
    except Unsure:
        return None


def _compile(node: Any) -> Direct:
    # One node of the syntax tree. Most of them only wrap the next (the grammar has a level per precedence).
    if isinstance(node, str):  # a bare token: nothing that is known here
        raise Unsure
    children = [child for child in node.children if child is not None]
    rule = _RULES.get(node.data)
    if rule is not None:
        return rule(children)
    if len(children) == 1:
        return _compile(children[0])
    binary = BINARY.get(node.data)
    if binary is None:
        raise Unsure
    if node.data in LOGICAL:
        return binary("", _compile(children[0]), _compile(children[1]))
    # relation, addition, multiplication: the first child is `<left side> <operator>`
    left, right = children
    return binary(left.data, _compile(left.children[0]), _compile(right))


def _literal(children: list[Any]) -> Direct:
    from celpy.evaluation import celstr

    token = children[0]
    value: Any
    if token.type == "INT_LIT" and token.isdigit() and int(token) <= LARGEST:
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


def _member_dot(children: list[Any]) -> Direct:
    source, name = _compile(children[0]), str(children[1])

    def field(variables: Variables) -> Any:
        found = source(variables)
        if type(found) is not dict or name not in found:
            raise Unsure
        return sound(found[name])

    return field


def _member_index(children: list[Any]) -> Direct:
    source, index = _compile(children[0]), _compile(children[1])

    def item(variables: Variables) -> Any:
        found, at = source(variables), index(variables)
        if type(found) is dict and type(at) is str and at in found:
            return sound(found[at])
        if type(found) is list and type(at) is int and 0 <= at < len(found):
            return sound(found[at])
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
    if name not in _TEXT_METHODS or len(children[2].children) != 1:
        raise Unsure
    test = _TEXT_METHODS[name]
    source, argument = _compile(children[0]), _compile(children[2].children[0])

    def method(variables: Variables) -> bool:
        text, wanted = source(variables), argument(variables)
        if type(text) is not str or type(wanted) is not str:
            raise Unsure
        return test(text, wanted)

    return method


_QUANTIFIERS: Mapping[str, Callable[[Iterator[bool]], bool]] = {
    "exists": any,
    "all": all,
    "exists_one": lambda truths: sum(truths) == 1,
}
"""`any` and `all` stop at the first that decides, as CEL may: whatever the others are, they change nothing."""


def _quantifier(decide: Callable[[Iterator[bool]], bool], items: Any, name: Any, condition: Any) -> Direct:
    source, test = _compile(items), _compile(condition)
    (bound,) = map(str, name.scan_values(lambda _token: True))

    def quantifier(variables: Variables) -> bool:
        found = source(variables)
        if type(found) is not list:
            raise Unsure
        scope = dict(variables)
        left = scope.setdefault(_LEFT, [MOST_ITEMS])

        def truths() -> Iterator[bool]:
            for item in found:
                left[0] -= 1
                if left[0] < 0:
                    raise Unsure
                scope[bound] = sound(item)
                yield truth(test(scope))

        return decide(truths())

    return quantifier


def _matches(text: Any, pattern: Any) -> Direct:
    # only for a pattern that is written out: it is compiled once, by the library that the interpreter uses
    import re2

    from gateway.routing import interpreter

    source, literal = _compile(text), _compile(pattern)
    try:
        search = interpreter.pattern(written := literal({})).search
    except (LookupError, TypeError):  # no text that is known beforehand
        raise Unsure from None
    except re2.error:
        raise ConfigProblem(f"not a pattern: {written!r}") from None

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


def _conversion(name: str, source: Direct) -> Direct:
    kinds, convert = _CONVERSIONS[name]

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
            if type(found := source(variables)) not in (str, list, dict):
                raise Unsure
            return len(found)

        return size
    if children[0] == "has":
        return _has(arguments[0])
    if children[0] in _CONVERSIONS:
        return _conversion(str(children[0]), _compile(arguments[0]))
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
    return lambda variables: yes(variables) if truth(condition(variables)) else no(variables)


def _unary(children: list[Any]) -> Direct:
    if len(children) == 1:
        return _compile(children[0])
    inner = _compile(children[1])
    if children[0].data == "unary_not":
        return lambda variables: not truth(inner(variables))

    def negative(variables: Variables) -> Any:
        value = inner(variables)
        if type(value) not in SUMMED:
            raise Unsure
        return sound(-value)

    return negative


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
