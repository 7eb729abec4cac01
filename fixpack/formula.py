"""Small formulas in rules: numbers, texts, names, arithmetic, comparisons, and/or/not, min and max.  Nothing runs.

Python's parser reads a formula; the tree is then walked here, and every node that is not on the list is refused.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

#: a formula's length, the depth of its tree and the size of its numbers are bounded: it is configuration
MAX_LENGTH = 400
MAX_DEPTH = 40
MAX_NUMBER = 1e30

Value: TypeAlias = "bool | int | float | str | None"

_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[[float, float], float]] = {"min": min, "max": max}


class FormulaError(ValueError):
    """A text that is no formula, with the reason."""


class Undecided(ValueError):
    """A formula that has no value because a name in it has none, or because it divides by zero."""


class Formula(NamedTuple):
    """A checked formula."""

    text: str
    names: tuple[str, ...]  # in the order in which they stand
    tree: ast.expr

    def value(self, names: Mapping[str, Value]) -> Value:
        """Its value.

        :param names: a value for each of ``self.names``; None is "not given".
        :raises Undecided: if a name that is not given is needed for more than ``is None``.
        """
        return _value(self.tree, names)

    def holds(self, names: Mapping[str, Value]) -> bool:
        """Whether it is true.  Raises as ``value`` does."""
        return bool(_value(self.tree, names))


def read(text: str) -> Formula:
    """Parse and check a formula.

    :raises FormulaError: if it is not one; the message says what is not allowed.
    """
    if len(text) > MAX_LENGTH:
        raise FormulaError(f"it has {len(text)} characters; at most {MAX_LENGTH} are allowed")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or "it nests too deeply"
        raise FormulaError(f"it cannot be read: {reason}") from error
    names: dict[str, None] = {}
    _check(tree, names, 0)
    return Formula(text.strip(), tuple(names), tree)


def _check(node: ast.expr, names: dict[str, None], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise FormulaError("it nests too deeply")
    parts: list[ast.expr] = []
    if isinstance(node, ast.Constant):
        _check_constant(node.value)
    elif isinstance(node, ast.Name):
        names[node.id] = None
    elif isinstance(node, ast.BoolOp):
        parts = node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        parts = [node.operand]
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        parts = [node.left, node.right]
    elif isinstance(node, ast.Compare):
        for op, right in zip(node.ops, node.comparators, strict=True):
            none = isinstance(right, ast.Constant) and right.value is None
            if isinstance(op, (ast.Is, ast.IsNot)) != none:
                raise FormulaError("None is compared with `is None` and `is not None` only, and nothing else is so")
            if not none and not isinstance(op, (ast.Eq, ast.NotEq)) and type(op) not in _ORDER:
                raise FormulaError(f"the comparison {type(op).__name__} is not allowed")
        parts = [node.left, *(right for right in node.comparators if not _is_none(right))]
    elif isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS or node.keywords:
            raise FormulaError(f"only {' and '.join(_FUNCTIONS)} may be called")
        if len(node.args) != 2:
            raise FormulaError(f"{node.func.id} takes two values")
        parts = node.args
    else:
        raise FormulaError(f"{ast.unparse(node)[:60]!r} is not allowed ({type(node).__name__})")
    for part in parts:
        _check(part, names, depth + 1)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _check_constant(value: object) -> None:
    if isinstance(value, bool | str):
        return
    if not isinstance(value, int | float):
        raise FormulaError(f"{str(value)[:40]!r} is neither a number nor a text")
    if not abs(value) <= MAX_NUMBER:
        raise FormulaError("a number in it is too large")


def _value(node: ast.expr, names: Mapping[str, Value]) -> Value:
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, bool | int | float | str)
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.BoolOp):
        return _junction(node, names)
    if isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            return not _given(node.operand, names)
        return -_number(node.operand, names)
    if isinstance(node, ast.BinOp):
        return _bounded(_ARITHMETIC[type(node.op)], _number(node.left, names), _number(node.right, names))
    if isinstance(node, ast.Compare):
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            if not _compare(op, left, right, names):
                return False
            left = right
        return True
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    return _FUNCTIONS[node.func.id](_number(node.args[0], names), _number(node.args[1], names))


def _junction(node: ast.BoolOp, names: Mapping[str, Value]) -> bool:
    """ "and", "or": a part that decides alone decides, whatever the others are."""
    decides = isinstance(node.op, ast.Or)
    open_: Undecided | None = None
    for part in node.values:
        try:
            if bool(_given(part, names)) is decides:
                return decides
        except Undecided as error:
            open_ = open_ or error
    if open_:
        raise open_
    return not decides


def _compare(op: ast.cmpop, left: ast.expr, right: ast.expr, names: Mapping[str, Value]) -> bool:
    if isinstance(op, ast.Is):
        return _value(left, names) is None
    if isinstance(op, ast.IsNot):
        return _value(left, names) is not None
    if isinstance(op, ast.Eq):
        return _given(left, names) == _given(right, names)
    if isinstance(op, ast.NotEq):
        return _given(left, names) != _given(right, names)
    return _ORDER[type(op)](_number(left, names), _number(right, names))


def _given(node: ast.expr, names: Mapping[str, Value]) -> bool | int | float | str:
    found = _value(node, names)
    if found is None:
        raise Undecided(f"{ast.unparse(node)} is not given")
    return found


def _number(node: ast.expr, names: Mapping[str, Value]) -> float:
    found = _given(node, names)
    if isinstance(found, str):
        raise Undecided(f"{ast.unparse(node)} is {found!r}, which is no number")
    return found


def _bounded(act: Callable[[float, float], float], left: float, right: float) -> float:
    try:
        found = act(left, right)
    except (ZeroDivisionError, OverflowError) as error:
        raise Undecided(str(error)) from error
    if not abs(found) <= MAX_NUMBER:
        raise Undecided("a number in it grows too large")
    return found
