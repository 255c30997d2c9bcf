from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.safety.fallback import Damp, Hold, SafeOutput, compile_fallback
from onrig.sim.plants import Magman
from onrig.sim.plants.integrate import step
from tests.runtime.samples import MAGMAN, PENDULUM

DAMP = Damp(actuator="voltage", observation="velocity", full_at=2.0)


@pytest.mark.parametrize(
    ("velocity", "voltage"), [(0.0, 0.0), (1.0, -1.5), (-1.0, 1.5), (2.0, -3.0), (-50.0, 3.0), (math.inf, -3.0)]
)
def test_damping_opposes_the_velocity_and_saturates(velocity: float, voltage: float) -> None:
    assert compile_fallback(DAMP, PENDULUM.rig)((1.0, velocity)) == pytest.approx((voltage,))


@pytest.mark.parametrize(("velocity", "voltage"), [(0.0, 2.5), (1.0, 1.25), (9.0, 0.0), (-1.0, 3.25), (-9.0, 4.0)])
def test_damping_starts_from_the_safe_output_wherever_that_is(velocity: float, voltage: float) -> None:
    actuator = msgspec.structs.replace(PENDULUM.rig.actuators[0], low=0.0, high=4.0, safe=2.5)
    rig = msgspec.structs.replace(PENDULUM.rig, actuators=(actuator,))
    assert compile_fallback(DAMP, rig)((0.0, velocity)) == pytest.approx((voltage,))


def test_damping_with_a_non_finite_velocity_is_the_safe_output() -> None:
    assert compile_fallback(DAMP, PENDULUM.rig)((1.0, math.nan)) == (0.0,)


@given(st.floats(), st.floats())
def test_damping_stays_within_the_actuators_range(angle: float, velocity: float) -> None:
    (voltage,) = compile_fallback(DAMP, PENDULUM.rig)((angle, velocity))
    assert -3.0 <= voltage <= 3.0


def test_damping_leaves_the_other_actuators_at_their_safe_values() -> None:
    second_actuator = msgspec.structs.replace(MAGMAN.rig.actuators[1], safe=0.2)
    rig = msgspec.structs.replace(
        MAGMAN.rig, actuators=(MAGMAN.rig.actuators[0], second_actuator, MAGMAN.rig.actuators[2])
    )
    fallback = Damp(actuator="current_3", observation="velocity", full_at=0.1)
    assert compile_fallback(fallback, rig)((0.0, -0.05)) == pytest.approx((0.0, 0.2, 0.3))


def test_the_safe_output_is_every_actuator_at_its_safe_value() -> None:
    assert compile_fallback(SafeOutput(), MAGMAN.rig)((0.0, 9.9)) == (0.0, 0.0, 0.0, 0.0)


def test_a_name_that_the_rig_does_not_have_is_refused() -> None:
    with pytest.raises(KeyError):
        compile_fallback(msgspec.structs.replace(DAMP, actuator="torque"), PENDULUM.rig)


HOLD = Hold(
    position="position",
    velocity="velocity",
    magnets={"current_2": 0.05, "current_4": 0.1},
    slow=0.05,
    brake_below=0.2,
)
SECOND_COIL, FOURTH_COIL, ALL_OFF = (0.0, 0.6, 0.0, 0.0), (0.0, 0.0, 0.0, 0.6), (0.0,) * 4


@pytest.mark.parametrize(
    ("position", "velocity", "currents"),
    [
        (0.04, 0.0, SECOND_COIL),
        (0.074, -0.05, SECOND_COIL),
        (0.076, 0.05, FOURTH_COIL),
        (0.06, 0.1, SECOND_COIL),  # moves away: the pull brakes
        (0.06, -0.1, ALL_OFF),  # would be accelerated
        (0.06, 0.21, ALL_OFF),
        (0.0, -0.3, ALL_OFF),
        (0.0, math.nan, ALL_OFF),
        (math.nan, 0.0, ALL_OFF),
        (math.inf, 0.0, ALL_OFF),
    ],
)
def test_holding_turns_the_coils_off_while_fast_and_then_uses_the_nearest_magnet(
    position: float, velocity: float, currents: tuple[float, ...]
) -> None:
    assert compile_fallback(HOLD, MAGMAN.rig)((position, velocity)) == currents


@pytest.mark.parametrize("field", ["position", "velocity"])
def test_holding_by_an_unknown_observation_is_refused(field: str) -> None:
    with pytest.raises(KeyError):
        compile_fallback(msgspec.structs.replace(HOLD, **{field: "height"}), MAGMAN.rig)


def test_holding_brings_a_ball_to_rest_at_a_magnet() -> None:
    controller = compile_fallback(MAGMAN.limits.fallback, MAGMAN.rig)
    plant, max_velocity = Magman(), 0.0
    state: tuple[float, ...] = (0.02, 0.5)
    for _ in range(1500):
        state = step(plant, state, controller(state), 0.02, 16)
        max_velocity = max(max_velocity, abs(state[1]))
    assert max_velocity <= 0.5
    assert min(abs(state[0] - 0.025 * (j + 1)) for j in range(4)) < 0.005
    assert abs(state[1]) < 0.1
