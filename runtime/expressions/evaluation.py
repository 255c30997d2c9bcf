"""Values of expressions: closures over floats for the tick, numpy for arrays, with identical results.

Arithmetic is that of IEEE 754: a division by zero gives an infinity or NaN, and a function outside its domain gives
NaN.  A comparison of a non-finite value is undefined, which makes the entire expression undefined.  All parts are
evaluated, including the branch that ``where`` does not select and both sides of ``and`` and ``or``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.expressions.syntax import Node
from onrig.runtime.maths import BATCHED, SCALAR

Values = NDArray[np.float64]
Bools = NDArray[np.bool_]
ScalarFunction = Callable[[Sequence[float]], Any]
"""Function from the values of the names to the value of an expression or part of one; raises UndefinedValueError."""
ColumnLookup = Callable[[int], Values]
"""Function from the slot of a name to its values (...)."""

_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_NUMPY_REDUCTIONS: Final = {"min": "minimum", "max": "maximum"}
"""Binary functions of ``maths``, keyed by the name of the function that takes any number of values."""
_WARNING_OPERATIONS: Final = ("tan", "exp", "log", "hypot", "**")
"""Operations that numpy computes even for a single float, with a warning if the result is non-finite."""


class UndefinedValueError(Exception):
    """Raised for a comparison of non-finite values."""


class Outcome(NamedTuple):
    """Values (...) of an expression or part of one."""

    value: Any
    is_undefined: Bools | bool
    """Mask of undefined comparisons."""


def compile_scalar(node: Node) -> ScalarFunction:
    """Compile an expression into a function of one value per name, which raises UndefinedValueError if it is
    undefined."""
    function = _compile_node(node)
    if not _operations_of(node).intersection(_WARNING_OPERATIONS):
        return function

    def without_warnings(values: Sequence[float]) -> Any:
        with np.errstate(all="ignore"):
            return function(values)

    return without_warnings


def _operations_of(node: Node) -> set[str]:
    return {node.operation}.union(*map(_operations_of, node.operands))


def _compile_node(node: Node) -> ScalarFunction:
    operation, value = node.operation, node.value
    if operation == "number":
        return lambda values: value
    if operation == "name":
        return operator.itemgetter(node.slot)
    if len(node.operands) == 1:
        return _compile_unary(node, _compile_node(node.operands[0]))
    operands = tuple(map(_compile_node, node.operands))
    if len(operands) == 2:
        return _compile_binary(node, *operands)
    if operation == "where":
        condition, first, second = operands

        def where(values: Sequence[float]) -> Any:
            is_true, a, b = condition(values), first(values), second(values)
            return a if is_true else b

        return where
    function = _find_function(SCALAR, operation)
    return lambda values: function(*[operand(values) for operand in operands])


def _compile_unary(node: Node, operand: ScalarFunction) -> ScalarFunction:
    operation = node.operation
    if operation == "negative":
        return lambda values: -operand(values)
    if operation == "not":
        return lambda values: not operand(values)
    is_power = operation == "**"
    function = (
        _power_as_product(node.value) or _float_power(node.value) if is_power else _find_function(SCALAR, operation)
    )
    return lambda values: function(operand(values))


def _compile_binary(node: Node, left: ScalarFunction, right: ScalarFunction) -> ScalarFunction:
    match node.operation:
        case "+":
            return lambda values: left(values) + right(values)
        case "-":
            return lambda values: left(values) - right(values)
        case "*":
            return lambda values: left(values) * right(values)
        case "/":
            return lambda values: _quotient(left(values), right(values))
        case "and":
            return lambda values: left(values) & right(values)
        case "or":
            return lambda values: left(values) | right(values)
    if node.operation in _COMPARISONS:
        compare, isfinite = _COMPARISONS[node.operation], math.isfinite

        def comparison(values: Sequence[float]) -> bool:
            a, b = left(values), right(values)
            if isfinite(a) and isfinite(b):
                return bool(compare(a, b))
            raise UndefinedValueError

        return comparison
    function = _find_function(SCALAR, node.operation)
    return lambda values: function(left(values), right(values))


def _quotient(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0.0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _power_as_product(exponent: float) -> Callable[[Any], Any] | None:
    """Build a power with a small integer exponent as a product; return None for other exponents, which numpy
    computes."""
    if exponent == 2.0:
        return lambda x: x * x
    if exponent in (1.0, 3.0, 4.0):
        count = int(exponent)
        return lambda x: reduce(operator.mul, [x] * count)
    return None


def _float_power(exponent: float) -> Callable[[float], float]:
    return lambda x: float(np.power(x, exponent))


def _find_function(maths: Any, name: str) -> Callable[..., Any]:
    if name not in _NUMPY_REDUCTIONS:
        function: Callable[..., Any] = getattr(maths, name)
        return function
    binary = getattr(maths, _NUMPY_REDUCTIONS[name])
    return lambda *values: reduce(binary, values)


def evaluate_batch(node: Node, column: ColumnLookup) -> Outcome:
    """Evaluate an expression for all values of its names, with broadcasting."""
    with np.errstate(all="ignore"):
        return _evaluate_node(node, column)


def _evaluate_node(node: Node, column: ColumnLookup) -> Outcome:
    operation = node.operation
    if operation == "number":
        return Outcome(np.float64(node.value), False)
    if operation == "name":
        return Outcome(column(node.slot), False)
    outcomes = [_evaluate_node(operand, column) for operand in node.operands]
    operands = [outcome.value for outcome in outcomes]
    is_undefined = reduce(operator.or_, [outcome.is_undefined for outcome in outcomes])
    if operation in _COMPARISONS:
        is_undefined = is_undefined | ~reduce(operator.and_, map(np.isfinite, operands))
        return Outcome(_COMPARISONS[operation](*operands), is_undefined)
    return Outcome(_evaluate_operation(node, operands), is_undefined)


def _evaluate_operation(node: Node, operands: Sequence[Any]) -> Any:
    match node.operation:
        case "+" | "-" | "*":
            return _ARITHMETIC[node.operation](*operands)
        case "/":
            return np.divide(*operands)
        case "negative":
            return -operands[0]
        case "**":
            product = _power_as_product(node.value)
            return np.power(operands[0], node.value) if product is None else product(operands[0])
        case "not":
            return np.logical_not(operands[0])
        case "and":
            return np.logical_and(*operands)
        case "or":
            return np.logical_or(*operands)
    return _find_function(BATCHED, node.operation)(*operands)
