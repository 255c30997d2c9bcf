from __future__ import annotations

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.learner.trials.intervals import Bounds
from onrig.tools.quantity import format_count, format_duration, format_estimate, format_size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (3.2e-23, "0 s"),
        (76.3e-6, "76.3 µs"),
        (999.6e-6, "1 ms"),
        (1.417e-3, "1.42 ms"),
        (0.5, "500 ms"),
        (4.0, "4 s"),
        (59.96, "60 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_a_duration_has_a_suitable_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0, 1e9))
def test_no_duration_needs_an_exponent(seconds: float) -> None:
    assert "e" not in format_duration(seconds)


def test_counts_and_sizes() -> None:
    assert [format_count(n) for n in (0, 9999, 12345)] == ["0", "9999", "12,345"]
    assert [format_size(n) for n in (0, 288, 640e3, 2.5e9)] == ["0 B", "288 B", "640 kB", "2.5 GB"]


@pytest.mark.parametrize(
    ("bounds", "unit", "text"),
    [
        (Bounds(24.082006, 24.081867, 24.082146), "1/s^2", "24.08201 [24.08187, 24.08215] 1/s²"),
        (Bounds(3.2e-23, 0.0, 1e-3), "s", "0.0000 [0.0000, 0.0010] s"),
        (Bounds(7e-5, 0.0, 2.36e-4), "", "(0.7 [0.0, 2.4])·10⁻⁴"),
        (Bounds(0.0, nan, nan), "m", "0 m"),
        (Bounds(0.5, nan, nan), "m", "0.50 m"),
    ],
)
def test_an_estimate_has_as_many_digits_as_its_interval_allows(bounds: Bounds, unit: str, text: str) -> None:
    assert format_estimate(bounds, unit=unit) == text


def test_decimals_can_be_given() -> None:
    assert format_estimate(Bounds(0.9117, 0.9, 0.923), 3) == "0.912 [0.900, 0.923]"
    assert format_estimate(Bounds(0.9117, nan, nan), 1, signed=True, at_least=True) == "≥ +0.9"
