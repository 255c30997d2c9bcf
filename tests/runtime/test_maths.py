"""Floats and arrays give the same bits, whatever the length of the array and the position in it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.maths import BATCHED, SCALAR, Array, maths_for

UNARY_FUNCTIONS = (
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "exp",
    "log",
    "sqrt",
    "sinh",
    "cosh",
    "tanh",
    "abs",
    "sign",
)
BINARY_FUNCTIONS = ("atan2", "hypot", "minimum", "maximum")
SPECIAL_VALUES = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.inf,
    -math.inf,
    math.nan,
    5e-324,
    1e308,
    -1e308,
    710.0,
    math.pi,
    -math.pi / 2,
)
numbers = st.floats() | st.floats(-10.0, 10.0) | st.sampled_from(SPECIAL_VALUES)
batches = st.lists(numbers, min_size=1, max_size=70)
"""Lengths around all widths of vector instructions."""


def bit_patterns(values: Sequence[float] | Array) -> list[int]:
    """Bits of float64 values; all NaN are equal."""
    array = np.array(values, np.float64)
    array[np.isnan(array)] = math.nan
    patterns: list[int] = array.view(np.int64).tolist()
    return patterns


@pytest.mark.parametrize("name", UNARY_FUNCTIONS)
@given(batch=batches)
def test_functions_of_one_value_agree(name: str, batch: list[float]) -> None:
    with np.errstate(all="ignore"):
        batched = getattr(BATCHED, name)(np.array(batch))
        strided = getattr(BATCHED, name)(np.repeat(np.array(batch), 3)[::3])
        individual = [getattr(SCALAR, name)(x) for x in batch]
    assert bit_patterns(batched) == bit_patterns(strided) == bit_patterns(individual)
    assert {type(x) for x in individual} == {float}


@pytest.mark.parametrize("name", BINARY_FUNCTIONS)
@given(pairs=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=70))
def test_functions_of_two_values_agree(name: str, pairs: list[tuple[float, float]]) -> None:
    first, second = (np.array(column) for column in zip(*pairs, strict=True))
    with np.errstate(all="ignore"):
        batched = getattr(BATCHED, name)(first, second)
        with_number = getattr(BATCHED, name)(first, pairs[0][1])
        assert bit_patterns(batched) == bit_patterns([getattr(SCALAR, name)(a, b) for a, b in pairs])
        assert bit_patterns(with_number) == bit_patterns([getattr(SCALAR, name)(a, pairs[0][1]) for a, _ in pairs])


@given(batches, numbers, numbers)
def test_clip_and_where_agree(batch: list[float], low: float, high: float) -> None:
    array = np.array(batch)
    assert bit_patterns(BATCHED.clip(array, low, high)) == bit_patterns([SCALAR.clip(x, low, high) for x in batch])
    selected = BATCHED.where(array > low, array, high)
    assert bit_patterns(selected) == bit_patterns([SCALAR.where(x > low, x, high) for x in batch])


def test_functions_compute_what_their_names_say() -> None:
    expected = {
        "tan": (math.tan(0.5), 0.5),
        "asin": (math.asin(0.5), 0.5),
        "acos": (math.acos(0.5), 0.5),
        "atan": (math.atan(0.5), 0.5),
        "exp": (math.exp(0.5), 0.5),
        "log": (math.log(0.5), 0.5),
        "sinh": (math.sinh(0.5), 0.5),
        "cosh": (math.cosh(0.5), 0.5),
        "tanh": (math.tanh(0.5), 0.5),
        "abs": (0.5, -0.5),
        "sign": (-1.0, -0.5),
        "atan2": (math.atan2(1.0, -2.0), 1.0, -2.0),
        "hypot": (5.0, 3.0, -4.0),
        "minimum": (-4.0, 3.0, -4.0),
        "maximum": (3.0, 3.0, -4.0),
        "clip": (2.0, 7.0, -2.0, 2.0),
    }
    for name, (value, *arguments) in expected.items():
        assert getattr(SCALAR, name)(*arguments) == pytest.approx(value, rel=1e-15), name


def test_the_functions_match_the_type_of_the_value() -> None:
    assert maths_for(1.0) is SCALAR
    assert maths_for(np.zeros(2)) is BATCHED
