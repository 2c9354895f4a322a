"""CEL as the library interprets it, with bounds: what a payload holds decides how long an expression takes, and what an
error says.

The library keeps errors as values, and an operator over two of them names both in the text of a third. A list of thirty
items that lack a field made a text of gigabytes that way. Here every error is cut to one line as soon as it is made,
`all` and `exists` end in the first of theirs, and an expression that takes too many steps is refused.

Imported when the first expression is compiled: nothing else needs the library.
"""

from __future__ import annotations

from typing import Any

import lark
import re2
from celpy import InterpretedRunner
from celpy.celtypes import BoolType
from celpy.evaluation import CELEvalError, Evaluator

MOST_STEPS = 20_000
"""Nodes of the syntax tree that are visited for one message: about 0.15 s, in which nothing else is served."""
LONGEST_ERROR = 200
_QUIET = re2.Options()
_QUIET.log_errors = False  # the library writes patterns to standard error otherwise, and they may come from a payload


class TooManySteps(Exception):
    """The expression takes too long for this message. Never leaves `gateway.routing.expression`."""


class BoundedEvaluator(Evaluator):
    """Evaluates one expression for one message."""

    def __init__(self, ast: lark.Tree[Any], activation: Any, left: list[int] | None = None) -> None:
        super().__init__(ast, activation)
        self._left = [MOST_STEPS] if left is None else left
        """How many steps are left, shared with those who evaluate a part of it."""

    def sub_evaluator(self, ast: lark.Tree[Any]) -> Evaluator:
        return BoundedEvaluator(ast, self.activation, self._left)

    def _visit_tree(self, tree: lark.Tree[Any]) -> Any:
        left = self._left
        left[0] -= 1
        if left[0] < 0:
            raise TooManySteps
        result = super()._visit_tree(tree)
        if isinstance(result, CELEvalError):
            result.args = (str(result.args[0])[:LONGEST_ERROR] if result.args else "failed",)
            result.tree = result.token = None  # both would be written out with it
        return result

    def member_dot_arg(self, tree: lark.Tree[Any]) -> Any:
        """A method or a macro. `all` and `exists` are decided here: an error counts only if no item decides without it."""
        name = str(tree.children[1])
        if name not in ("all", "exists"):
            return super().member_dot_arg(tree)
        items: Any = self.visit(tree.children[0])
        if isinstance(items, CELEvalError):
            return items
        test = self.build_ss_macro_eval(tree)
        deciding = name == "exists"
        failure: CELEvalError | None = None
        for item in items:
            outcome = test(item)
            if isinstance(outcome, CELEvalError):
                failure = failure or outcome
            elif not isinstance(outcome, bool | BoolType):
                failure = failure or CELEvalError("no such overload")
            elif bool(outcome) is deciding:
                return BoolType(deciding)
        return failure if failure is not None else BoolType(not deciding)


class BoundedRunner(InterpretedRunner):
    def evaluate(self, context: Any) -> Any:
        return BoundedEvaluator(self.ast, self.new_activation()).evaluate(context)


def pattern(text: str) -> Any:
    return re2.compile(text, options=_QUIET)


def matches(text: str, expression: str) -> Any:
    """CEL's function of that name, silent."""
    try:
        return BoolType(pattern(expression).search(text) is not None)
    except re2.error:
        return CELEvalError("the pattern of matches is none")


FUNCTIONS = {"matches": matches}
"""Functions that take the place of the library's own."""
