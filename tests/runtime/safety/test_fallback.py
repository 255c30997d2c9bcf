from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.config.schema import Damp, SafeOutput
from runtime.safety.fallback import compile_fallback
from tests.runtime.samples import MAGMAN, PENDULUM

DAMP = Damp(actuator="voltage", observation="velocity", full_at=2.0)


@pytest.mark.parametrize(
    ("velocity", "voltage"), [(0.0, 0.0), (1.0, -1.5), (-1.0, 1.5), (2.0, -3.0), (-50.0, 3.0), (math.inf, -3.0)]
)
def test_damping_opposes_the_velocity_and_saturates(velocity: float, voltage: float) -> None:
    assert compile_fallback(DAMP, PENDULUM.rig)((1.0, velocity)) == pytest.approx((voltage,))


def test_damping_by_a_velocity_that_is_no_number_is_the_safe_output() -> None:
    assert compile_fallback(DAMP, PENDULUM.rig)((1.0, math.nan)) == (0.0,)


@given(st.floats(), st.floats())
def test_damping_stays_within_the_actuator_s_range(angle: float, velocity: float) -> None:
    (voltage,) = compile_fallback(DAMP, PENDULUM.rig)((angle, velocity))
    assert -3.0 <= voltage <= 3.0


def test_damping_leaves_the_other_actuators_at_their_safe_values() -> None:
    second = msgspec.structs.replace(MAGMAN.rig.actuators[1], safe=0.2)
    rig = msgspec.structs.replace(MAGMAN.rig, actuators=(MAGMAN.rig.actuators[0], second, MAGMAN.rig.actuators[2]))
    brake = Damp(actuator="current_3", observation="velocity", full_at=0.1)
    assert compile_fallback(brake, rig)((0.0, -0.05)) == pytest.approx((0.0, 0.2, 0.3))


def test_the_safe_output_is_every_actuator_at_its_safe_value() -> None:
    assert compile_fallback(SafeOutput(), MAGMAN.rig)((0.0, 9.9)) == (0.0, 0.0, 0.0, 0.0)


def test_a_name_that_the_rig_does_not_have_is_refused() -> None:
    with pytest.raises(KeyError):
        compile_fallback(msgspec.structs.replace(DAMP, actuator="torque"), PENDULUM.rig)
