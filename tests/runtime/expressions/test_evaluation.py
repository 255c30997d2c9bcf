"""Floats and arrays give the same bits; non-finite results are defined for both."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onrig.runtime.expressions.evaluation import UndefinedValueError, compile_scalar, evaluate_batch
from onrig.runtime.expressions.syntax import FUNCTIONS, parse
from onrig.runtime.expressions.tokens import ExpressionError

NAMES = ["x", "y", "z"]
SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, math.pi, 1e-300, 1e308, -1e308, 710.0, 5e-324, math.inf, math.nan)
rows = st.lists(
    st.tuples(*[st.floats(-20.0, 20.0) | st.floats() | st.sampled_from(SPECIAL)] * 3), min_size=1, max_size=20
)


@st.composite
def numbers(draw: st.DrawFn, depth: int = 3) -> str:
    """Text of an expression for a number."""
    choice = draw(st.integers(0, 6)) if depth else 0
    if choice <= 1:
        return draw(st.sampled_from([*NAMES, "pi", "0", "1.5", "1e300"]))
    inner = numbers(depth=depth - 1)
    if choice == 2:
        return f"({draw(inner)} {draw(st.sampled_from('+-*/'))} {draw(inner)})"
    if choice == 3:
        return f"({draw(inner)}) ** {draw(st.sampled_from(['2', '3', '4', '5', '0.5', '-1', '-2', '(1/3)', '0']))}"
    if choice == 4:
        return f"-({draw(inner)})"
    if choice == 5:
        return f"where({draw(conditions(depth=depth - 1))}, {draw(inner)}, {draw(inner)})"
    name = draw(st.sampled_from(sorted(set(FUNCTIONS) - {"where"})))
    count = draw(st.integers(*FUNCTIONS[name]).filter(lambda n: n < 5))
    return f"{name}({', '.join([draw(inner) for _ in range(count)])})"


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> str:
    """Text of an expression for a condition."""
    choice, inner = draw(st.integers(0, 3)) if depth else 0, conditions(depth=depth - 1)
    if choice <= 1:
        number = numbers(depth=max(depth - 1, 0))
        return f"{draw(number)} {draw(st.sampled_from(['<', '<=', '>', '>=', '==', '!=']))} {draw(number)}"
    if choice == 2:
        return f"({draw(inner)} {draw(st.sampled_from(['and', 'or']))} {draw(inner)})"
    return f"not ({draw(inner)})"


def bits(values: Sequence[float] | NDArray[np.float64]) -> list[int]:
    """Bits of float64 values; all NaN are equal."""
    array = np.array(values, np.float64)
    array[np.isnan(array)] = math.nan
    bit_patterns: list[int] = array.view(np.int64).tolist()
    return bit_patterns


def evaluate_rows(text: str, table: Sequence[Sequence[float]], *, condition: bool = False) -> list[float]:
    """Value for each row, NaN where it is undefined."""
    compiled, values = compile_scalar(parse(text, NAMES, condition=condition)), []
    for row in table:
        try:
            values.append(float(compiled(row)))
        except UndefinedValueError:
            values.append(math.nan)
    return values


def evaluate_together(text: str, table: Sequence[Sequence[float]], *, condition: bool = False) -> list[float]:
    """The same, computed with arrays."""
    array = np.array(table)
    outcome = evaluate_batch(parse(text, NAMES, condition=condition), lambda slot: array[:, slot])
    values = np.broadcast_to(np.asarray(outcome.value, np.float64), len(table))
    return list(np.where(outcome.is_undefined, math.nan, values))


@settings(max_examples=300)
@given(numbers(), rows)
def test_floats_and_arrays_agree_bit_for_bit(text: str, table: list[tuple[float, ...]]) -> None:
    try:
        parse(text, NAMES)
    except ExpressionError:  # more operations than allowed
        return
    assert bits(evaluate_rows(text, table)) == bits(evaluate_together(text, table))


@given(conditions(), rows)
def test_conditions_of_floats_and_arrays_agree(text: str, table: list[tuple[float, ...]]) -> None:
    try:
        parse(text, NAMES, condition=True)
    except ExpressionError:
        return
    assert bits(evaluate_rows(text, table, condition=True)) == bits(evaluate_together(text, table, condition=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 / x", math.inf),
        ("-1 / x", -math.inf),
        ("1 / -x", -math.inf),
        ("x / x", math.nan),
        ("log(x)", -math.inf),
        ("log(y)", math.nan),
        ("sqrt(y)", math.nan),
        ("y ** 0.5", math.nan),
        ("x ** -1", math.inf),
        ("exp(1000)", math.inf),
        ("1e300 * 1e300", math.inf),
        ("z ** 4", math.inf),
        ("where(1 / x > 2, 1, 2)", math.nan),
        ("where(x < 1, 7, where(log(y) < 1, 1, 2))", math.nan),
        ("min(log(y), 1)", math.nan),
    ],
)
def test_non_finite_results_are_defined(text: str, expected: float) -> None:
    table = [(0.0, -1.0, 1e300)]
    assert bits(evaluate_rows(text, table)) == bits(evaluate_together(text, table)) == bits([expected])


@pytest.mark.parametrize("text", ["1 / x > 0", "not log(y) > 0", "x == 0 or log(y) < 1", "x > 1 and log(y) < 1"])
def test_a_comparison_with_a_non_finite_value_has_no_answer(text: str) -> None:
    with pytest.raises(UndefinedValueError):
        compile_scalar(parse(text, NAMES, condition=True))((0.0, -1.0, 1.0))
    assert math.isnan(evaluate_together(text, [(0.0, -1.0, 1.0)], condition=True)[0])


def test_shapes_broadcast_and_a_constant_has_none() -> None:
    x = np.arange(6.0).reshape(2, 3)
    assert evaluate_batch(parse("x + y", NAMES), lambda slot: x if slot == 0 else x[0]).value.shape == (2, 3)
    assert np.shape(evaluate_batch(parse("2 * pi", NAMES), lambda slot: x).value) == ()
