from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.hw.units import is_rate, parse_unit, per_second, same_unit

ALIKE = [
    ("m/s^2", "m s^-2"),
    ("m/s/s", "m/s²"),
    ("A^2", "A2"),
    ("rad/s", "rad·s^-1"),
    ("m/(V s^2)", "m/V/s^2"),
    ("°/s", "deg/s"),
    ("", "1"),
    ("1/s", "Hz"),
    ("rpm", "rev/min"),
    ("N*m", "N m"),
]
UNLIKE = [
    ("rad", "deg"),
    ("rad", "rad/s"),
    ("m", "mm"),
    ("V", "mV"),
    ("A", "A^2"),
    ("rad/s", "rad/s^2"),
    ("N m", "N/m"),
    ("rad/s", "1/s"),
    ("rad", ""),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_one_unit_may_be_written_in_two_ways(one: str, other: str) -> None:
    assert same_unit(one, other)


@pytest.mark.parametrize(("one", "other"), UNLIKE)
def test_nothing_converts_between_units(one: str, other: str) -> None:
    assert not same_unit(one, other)


@pytest.mark.parametrize("unit", ["rad/s", "deg/s", "m s^-1", "rpm", "Hz", "mm/ms", "1/min"])
def test_a_velocity_is_a_quantity_per_time(unit: str) -> None:
    assert is_rate(unit)


@pytest.mark.parametrize("unit", ["rad", "m", "m/s^2", "V", "V s", "", "A^2"])
def test_other_quantities_are_not_velocities(unit: str) -> None:
    assert not is_rate(unit)


@pytest.mark.parametrize("unit", ["rad", "m", "deg", "", "A^2", "N/m"])
def test_the_rate_of_a_quantity_is_its_unit_per_second(unit: str) -> None:
    expected = dict(parse_unit(unit))
    expected["s"] = expected.get("s", 0) - 1
    assert parse_unit(per_second(unit)) == expected


@given(st.text(alphabet="aµ1²/()^*·. -%°_", max_size=12))
def test_any_text_is_a_unit_and_equals_itself(text: str) -> None:
    assert same_unit(text, text)
    assert all(parse_unit(text).values())
