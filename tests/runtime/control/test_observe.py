from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.hw.rig import Actuator, Observation, Rig, Sensor
from onrig.runtime.control.observe import Observer, wrap_angle

PERIOD_S = 0.01


def rig(*observations: Observation, resolution: float = 0.001) -> Rig:
    return Rig(
        name="rig",
        sensors=(Sensor("angle", "rad", resolution, wrap=True), Sensor("position", "m", 0.5)),
        actuators=(Actuator("voltage", "V", 1e-4, -3.0, 3.0),),
        observations=observations,
    )


ANGLE = Observation("angle", "rad", -4, 4)
POSITION = Observation("position", "m", -1, 1)
ANGULAR_VELOCITY = Observation("omega", "rad/s", -30, 30, derivative_of="angle")
VELOCITY = Observation("velocity", "m/s", -1, 1, derivative_of="position")


@given(st.floats(-1e6, 1e6))
def test_wrapping_subtracts_complete_turns(angle: float) -> None:
    wrapped = wrap_angle(angle)
    assert -math.pi <= wrapped <= math.pi
    turns = (angle - wrapped) / (2 * math.pi)
    assert turns == pytest.approx(round(turns), abs=1e-6)


def test_half_a_turn_wraps_to_minus_pi() -> None:
    assert wrap_angle(math.pi) == -math.pi
    assert wrap_angle(-math.pi) == -math.pi


def test_counts_are_converted_to_si_units_in_the_order_of_the_observations() -> None:
    renamed = Observation("height", "m", -1, 1, sensor="position")
    observer = Observer(rig(POSITION, ANGLE, renamed), PERIOD_S)
    assert observer.observe((250, -3)) == (-1.5, 0.25, -1.5)


def test_an_angle_is_wrapped_and_a_position_is_not() -> None:
    observer = Observer(rig(ANGLE, POSITION), PERIOD_S)
    angle, position = observer.observe((4000, 4000))
    assert angle == pytest.approx(4.0 - 2 * math.pi)
    assert position == 2000.0


@given(st.lists(st.tuples(st.integers(-2000, 2000), st.integers(1, 4)), min_size=1, max_size=20))
def test_a_velocity_is_the_change_over_the_time_since_the_previous_frame_even_across_the_turn(
    count_changes: list[tuple[int, int]],
) -> None:
    observer = Observer(rig(ANGULAR_VELOCITY), PERIOD_S)
    counts = 3000
    observer.observe((counts, 0))
    for change, periods in count_changes:
        counts += change
        (velocity,) = observer.observe((counts, 0), periods)
        assert velocity == pytest.approx(change * 0.001 / (periods * PERIOD_S), abs=1e-8)


def test_a_velocity_is_zero_at_the_first_frame_and_again_after_a_reset() -> None:
    observer = Observer(rig(VELOCITY), PERIOD_S)
    assert observer.observe((0, 8)) == (0.0,)
    assert observer.observe((0, 10)) == (100.0,)
    observer.reset()
    assert observer.observe((0, 30)) == (0.0,)


def test_the_low_pass_approaches_a_constant_velocity_at_its_cutoff() -> None:
    cutoff_hz = 5.0
    filtered = Observation("v", "m/s", -1, 1, derivative_of="position", cutoff_hz=cutoff_hz)
    observer = Observer(rig(filtered), PERIOD_S)
    for k in range(31):
        (velocity,) = observer.observe((0, 2 * k))
        left = math.exp(-2 * math.pi * cutoff_hz * PERIOD_S * k)
        assert velocity == pytest.approx(100.0 * (1 - left), rel=1e-9, abs=1e-9)


def test_the_low_pass_after_lost_frames_covers_all_their_periods() -> None:
    filtered = Observation("v", "m/s", -1, 1, derivative_of="position", cutoff_hz=5.0)
    lossless, lossy = (Observer(rig(filtered), PERIOD_S) for _ in range(2))
    lossy.observe((0, 0))
    (steady_velocity,) = [lossless.observe((0, 2 * k)) for k in range(6)][-1]
    assert lossy.observe((0, 10), 5) == pytest.approx((steady_velocity,))


def test_one_sensor_may_feed_several_observations_measured_and_derived() -> None:
    observer = Observer(rig(ANGLE, ANGULAR_VELOCITY, POSITION, VELOCITY), PERIOD_S)
    observer.observe((0, 0))
    assert observer.observe((100, 2)) == pytest.approx((0.1, 10.0, 1.0, 100.0))
