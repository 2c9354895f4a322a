"""The one expression language of `routes.yaml`: CEL, over the message's `value` (its JSON payload), `key` and `headers`.

CEL has no loops, no side effects and no way out, so an expression can be wrong but not dangerous. Names are checked when
the configuration is read; what a payload holds is only known when it comes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from gateway.envelope import Headers
from gateway.errors import ConfigProblem, InvalidRequest
from gateway.routing.direct import VARIABLES, compile_direct
from gateway.routing.operators import Direct, Unsure

if TYPE_CHECKING:
    import lark

_MACROS = frozenset(("all", "exists", "exists_one", "filter", "map"))
_TYPES = frozenset(
    (
        "bool",
        "bytes",
        "double",
        "duration",
        "dyn",
        "int",
        "list",
        "map",
        "null_type",
        "string",
        "timestamp",
        "type",
        "uint",
    )
)
_SPECIAL = frozenset(("has", "dyn", "type"))
_FAILURES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What the interpreter lets through when a value is not of the kind that an operator takes."""

LONGEST = 8_192
"""Characters of an expression: the parser takes a time that grows with their square."""
MOST_INTERPRETED = 256 << 10
"""Bytes of a payload that is made into the interpreter's own values; nothing else is served meanwhile."""
TOO_DEEP = "the payload is nested too deeply"


@attrs.define(eq=False)
class MessageView:
    """What an expression may look at. The payload is decoded when the first expression asks for it."""

    payload: bytes
    key: bytes | None
    headers: Headers
    _plain: dict[str, Any] = attrs.Factory(dict)
    _cel: dict[str, Any] = attrs.Factory(dict)

    def plain(self, names: frozenset[str]) -> Mapping[str, Any]:
        """The variables an expression uses. InvalidRequest for a payload that is not JSON."""
        for name in names - self._plain.keys():
            self._plain[name] = self._bind(name)
        return self._plain

    def cel(self, names: frozenset[str]) -> Mapping[str, Any]:
        """The same as the interpreter wants them. InvalidRequest for what is too much for it."""
        from celpy.adapter import json_to_cel

        plain = self.plain(names)
        for name in names - self._cel.keys():
            if name == "value":
                if len(self.payload) > MOST_INTERPRETED:
                    raise InvalidRequest(
                        f"the payload has {len(self.payload)} bytes: only {MOST_INTERPRETED} can be looked at in this way"
                    )
                try:
                    self._cel[name] = json_to_cel(plain[name])
                except ValueError:
                    raise InvalidRequest("the payload has a number beyond 64 bits") from None
                except RecursionError:
                    raise InvalidRequest(TOO_DEEP) from None
            else:
                self._cel[name] = _cel_scalar(plain[name]) if name == "key" else _cel_headers(plain[name])
        return self._cel

    def replace(self, payload: bytes) -> None:
        self.payload = payload
        self._forget("value")

    def rekey(self, key: bytes | None) -> None:
        self.key = key
        self._forget("key")

    def _forget(self, name: str) -> None:
        self._plain.pop(name, None)
        self._cel.pop(name, None)

    def _bind(self, name: str) -> Any:
        if name == "key":
            return None if self.key is None else _text_or_bytes(self.key)
        if name == "headers":  # the first of several with one name
            return {name: _text_or_bytes(value) for name, value in reversed(self.headers)}
        try:
            return msgspec.json.decode(self.payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"the payload is not JSON: {error}") from None


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _cel_scalar(value: str | bytes | None) -> Any:
    from celpy import celtypes

    if value is None:
        return None
    return celtypes.StringType(value) if isinstance(value, str) else celtypes.BytesType(value)


def _cel_headers(headers: Mapping[str, str | bytes]) -> Any:
    from celpy import celtypes

    return celtypes.MapType({celtypes.StringType(name): _cel_scalar(value) for name, value in headers.items()})


@attrs.frozen(eq=False)
class Expression:
    text: str
    names: frozenset[str]
    _program: Any = attrs.field(repr=False)
    _direct: Direct | None = attrs.field(repr=False)

    def evaluate(self, message: MessageView) -> Any:
        """Its value; InvalidRequest when this message does not have what it asks for."""
        if self._direct is not None:
            try:
                return self._direct(message.plain(self.names))
            except Unsure:
                pass
        return self.interpret(message)

    def interpret(self, message: MessageView) -> Any:
        from celpy.evaluation import CELEvalError, CELSyntaxError

        from gateway.routing.interpreter import TooManySteps

        bindings = message.cel(self.names)
        try:
            value = self._program.evaluate(bindings)
        except TooManySteps:
            raise InvalidRequest(f"{self.text!r}: takes too many steps for this payload") from None
        except (CELEvalError, CELSyntaxError, *_FAILURES) as error:
            raise InvalidRequest(f"{self.text!r}: {error.args[0] if error.args else 'failed'}") from None
        if isinstance(value, CELEvalError):  # some operators hand errors on as values
            raise InvalidRequest(f"{self.text!r}: {value.args[0]}")
        return value


def compile_expression(text: str) -> Expression:
    """Compile; ConfigProblem when it is not CEL or names something that does not exist."""
    from celpy import Environment
    from celpy.celparser import CELParseError

    from gateway.routing.interpreter import FUNCTIONS, BoundedRunner

    if len(text) > LONGEST:
        raise ConfigProblem(f"an expression has at most {LONGEST} characters, not {len(text)}")
    environment = Environment(runner_class=BoundedRunner)
    try:
        tree = environment.compile(text)
        names = _check_names(tree)
        return Expression(text, names, environment.program(tree, FUNCTIONS), compile_direct(tree))
    except CELParseError as error:
        raise ConfigProblem(f"not an expression: {text!r} (at character {error.column or 1})") from None
    except RecursionError:
        raise ConfigProblem(f"nested too deeply: {text[:64]!r}") from None


def _check_names(tree: lark.Tree[Any]) -> frozenset[str]:
    # the variables it uses; ConfigProblem for a variable or function that does not exist
    from celpy.evaluation import base_functions

    bound = frozenset(_macro_variables(tree))
    used: set[str] = set()
    for node in tree.iter_subtrees():
        name = str(node.children[0]) if node.children else ""
        if node.data == "ident":
            if name in VARIABLES:
                used.add(name)
            elif name not in bound and name not in _TYPES:
                raise ConfigProblem(f"unknown name {name!r} (there are value, key and headers)")
        elif node.data in ("dot_ident", "dot_ident_arg"):
            raise ConfigProblem(f"unknown name '.{name}' (there are value, key and headers)")
        elif node.data == "ident_arg" and name not in base_functions and name not in _SPECIAL:
            raise ConfigProblem(f"unknown function {name!r}")
        elif node.data == "member_dot_arg":
            method = str(node.children[1])
            if method not in base_functions and method not in _MACROS:
                raise ConfigProblem(f"unknown function {method!r}")
    return frozenset(used)


def _macro_variables(tree: lark.Tree[Any]) -> Iterator[str]:
    # the names that `list.map(name, ...)` and its like bind
    for node in tree.find_data("member_dot_arg"):
        if node.children[1] not in _MACROS:
            continue
        arguments = node.children[2].children if len(node.children) > 2 else []
        names = [str(each) for each in arguments[0].scan_values(lambda _token: True)] if arguments else []
        if len(arguments) != 2 or len(names) != 1 or not names[0].isidentifier():
            raise ConfigProblem(f"{node.children[1]} takes a name and an expression, like list.all(x, x > 0)")
        yield names[0]


# The interpreter's types are Python's own with CEL's arithmetic; some operators give the plain ones back.


def is_true(value: Any, text: str) -> bool:
    """The truth of a condition; InvalidRequest when it is no truth value."""
    if not _is_bool(value):
        raise InvalidRequest(f"{text!r} gives {_kind(value)}, not true or false")
    return bool(value)


def to_key(value: Any, text: str) -> bytes | None:
    """An expression's value as a key: null is no key, numbers are written out."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, str | int) and not _is_bool(value):
        return str(value).encode()
    raise InvalidRequest(f"{text!r} gives {_kind(value)}, not a key")


def to_json(value: Any) -> Any:
    """An expression's value as what JSON can say; bytes become base64, times and durations text."""
    if value is None:
        return None
    if _is_bool(value):
        return bool(value)
    for plain in (int, float):
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(to_json(name)): to_json(item) for name, item in value.items()}
    return str(value)


def _is_bool(value: Any) -> bool:
    from celpy.celtypes import BoolType

    return isinstance(value, bool | BoolType)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if _is_bool(value):
        return "true or false"
    words = {int | float: "a number", str: "text", bytes: "bytes", list: "a list", dict: "a map"}
    return next((word for kind, word in words.items() if isinstance(value, kind)), "a time")
