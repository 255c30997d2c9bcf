"""Normalised units."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onrig.hw.rig import Actuator, Observation
from onrig.runtime.normalisation import Normalisation

SIGNALS = (
    Observation("velocity", "rad/s", -20.0, 30.0),
    Actuator("voltage", "V", 0.001, 0.0, 3.0),
)


def test_the_ends_of_a_range_are_plus_and_minus_one() -> None:
    units = Normalisation.from_signals(SIGNALS)
    assert units.normalise(np.array([[-20.0, 0.0], [30.0, 3.0], [5.0, 1.5]])).tolist() == [[-1, -1], [1, 1], [0, 0]]
    assert units.to_si(np.array([-1.0, 1.0])).tolist() == [-20.0, 3.0]


def test_values_outside_are_not_clipped_and_float32_is_widened() -> None:
    normalised = Normalisation.from_signals(SIGNALS).normalise(np.array([55.0, -1.5], np.float32))
    assert normalised.tolist() == [2.0, -2.0]
    assert normalised.dtype == np.float64


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(-5.0, 5.0))
def test_normalising_and_back_is_the_identity(low: float, width: float, value: float) -> None:
    units = Normalisation.from_signals([Observation("x", "m", low, low + width)])
    round_trip = units.normalise(units.to_si(np.array([value])))
    assert abs(round_trip[0] - value) <= 1e-9 * (1.0 + abs(low) / width)


def test_no_signals_give_no_units() -> None:
    assert Normalisation.from_signals([]).normalise(np.zeros((3, 0))).shape == (3, 0)
