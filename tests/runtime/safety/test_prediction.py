from __future__ import annotations

import math
from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.run_loading import load_run
from onrig.runtime.safety.fallback import Hold
from onrig.runtime.safety.limits import compile_prediction
from onrig.runtime.safety.magman import MagmanBox, hold_problem
from onrig.runtime.safety.pendulum import PendulumBox
from onrig.runtime.safety.plant_box import Prediction
from onrig.sim.plants import Magman, Pendulum
from tests.runtime.samples import MAGMAN, PENDULUM

ODD_FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300, 0.0])
RUNS = ("pendulum", "pendulum-hardware", "magman")


@cache
def prediction(run: str, dead_band: float = 0.0, c2_spread: float = 0.0) -> Prediction:
    settings = {"dead_band": dead_band, "c2_spread": c2_spread}
    config = load_run(run, [f"limits.predicted.{name}={value}" for name, value in settings.items() if value])
    compiled = compile_prediction(config.limits, config.rig, config.period_us * 1e-6)
    assert compiled is not None
    return compiled


# -- the shipped numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["pendulum", "pendulum-hardware"])
def test_a_shipped_pendulum_is_limited_for_the_plant_of_its_twin(run: str) -> None:
    config = load_run(run)
    plants, section = config.limits.predicted, config.device.twin
    assert isinstance(plants, PendulumBox)
    assert section is not None
    p = msgspec.convert(section["plant"], Pendulum)
    inertia = p.inertia_kg_m2
    assert plants.gravity_per_s2 == pytest.approx(p.mass * p.gravity * p.length / inertia, rel=1e-12)
    assert plants.damping_per_s == pytest.approx((p.damping + p.torque_constant**2 / p.resistance) / inertia, rel=1e-12)
    assert plants.gain_per_v_s2 == pytest.approx(p.torque_constant / (p.resistance * inertia), rel=1e-12)


def test_the_shipped_magman_is_limited_for_the_plant_of_its_twin() -> None:
    plants, p = MAGMAN.limits.predicted, Magman()
    assert isinstance(plants, MagmanBox)
    assert plants.pull_m6_per_a2_s2 == pytest.approx(p.c1 / p.mass, rel=1e-12)
    assert plants.friction_per_s == pytest.approx(p.friction / p.mass, rel=1e-12)
    assert plants.c2_m2 == p.c2
    assert list(plants.magnets.values()) == pytest.approx([p.first_magnet + j * p.magnet_spacing for j in range(4)])


def test_the_shipped_fallback_keeps_what_it_holds() -> None:
    hold, plants = MAGMAN.limits.fallback, MAGMAN.limits.predicted
    assert isinstance(hold, Hold)
    assert isinstance(plants, MagmanBox)
    context = MAGMAN.limits.context(MAGMAN.rig, MAGMAN.period_us * 1e-6)
    assert hold_problem(hold, plants, context) is None
    braking_below = msgspec.structs.replace(hold, brake_below=0.5)
    message = hold_problem(braking_below, plants, context) or ""
    assert "0.5 m/s may accelerate the body to" in message
    remedy = float(message.rsplit("lower brake_below to ", 1)[1].split(" ")[0])
    for brake_below, is_valid in ((remedy, True), (remedy + 0.002, False)):
        followed = msgspec.structs.replace(hold, brake_below=brake_below)
        assert (hold_problem(followed, plants, context) is None) is is_valid
    strong = msgspec.structs.replace(plants, pull_m6_per_a2_s2=4.0 * plants.pull_m6_per_a2_s2)
    assert "widen the envelope" in (hold_problem(hold, strong, context) or "")


# -- judging -----------------------------------------------------------------------------------------------------------


@given(st.sampled_from(RUNS), ODD_FLOATS | st.floats(), ODD_FLOATS | st.floats())
def test_any_state_gets_a_judgement(run: str, position: float, velocity: float) -> None:
    m = 4 if run == "magman" else 1
    excess, margin = prediction(run).evaluate((position, velocity), (0.5,) * m)
    assert excess >= 0
    assert 0 <= margin <= 1
    assert not (excess and margin)
    if not (abs(position) < 1e6 and abs(velocity) < 1e6):
        assert excess == math.inf


@pytest.mark.parametrize(("run", "max_velocity"), [("pendulum", 9.8), ("pendulum-hardware", 21.8)])
def test_a_swing_up_is_accepted_where_it_is_fastest(run: str, max_velocity: float) -> None:
    """A fast plant with a coasting motor may still rise, and may no longer be driven at the bottom."""
    for velocity in (-max_velocity, max_velocity):
        for voltage in (-3.0, 0.0, 3.0):
            passes = prediction(run).evaluate((0.0, velocity), (voltage,))[0] == 0.0
            assert passes or (run == "pendulum-hardware" and voltage * velocity > 0)


@settings(max_examples=60)
@given(st.floats(-math.pi, 3.14), st.floats(-16, 16), st.floats(-3, 3))
def test_both_directions_of_rotation_are_judged_alike(angle: float, velocity: float, voltage: float) -> None:
    verdict = prediction("pendulum").evaluate((angle, velocity), (voltage,))
    other = prediction("pendulum").evaluate((-angle, -velocity), (-voltage,))
    assert verdict == pytest.approx(other, abs=0.02)


def test_less_than_the_envelope_is_refused_where_gravity_exceeds_the_motor() -> None:
    excess, _ = prediction("pendulum").evaluate((-2.0, 12.0), (-3.0,))
    assert excess > 0
    assert prediction("pendulum").evaluate((0.2, 12.0), (-3.0,))[0] == 0.0


def test_the_margin_falls_towards_the_edge_and_is_0_there() -> None:
    speeds = np.linspace(0, 15, 300)
    margins = [prediction("pendulum").evaluate((0.3, v), (3.0,))[1] for v in speeds.tolist()]
    assert margins == sorted(margins, reverse=True)
    assert margins[0] == 1.0
    assert margins[-1] == 0.0


# -- magman ------------------------------------------------------------------------------------------------------------

U = st.floats(0.0, 0.6)


@settings(max_examples=60)
@given(
    st.floats(-0.035, 0.1049),
    st.floats(-0.6, 0.6),
    st.tuples(U | st.sampled_from([0.0, 0.6]), U, U, U | st.sampled_from([0.0, 0.6])),
    st.floats(0.7, 1.3),
    st.floats(0.7, 1.3),
    st.sampled_from([(0.0, 0.0), (0.03, 0.0), (0.03, 0.01), (0.03, 0.03)]),
    st.sampled_from([(0.0, 1.0), (0.1, 0.9), (0.1, 1.0), (0.1, 1.1)]),
)
def test_an_accepted_command_may_be_held_forever(
    x: float,
    v: float,
    u: tuple[float, float, float, float],
    pull: float,
    friction: float,
    dead_bands: tuple[float, float],
    widths: tuple[float, float],
) -> None:
    (covered_dead_band, dead_band), (c2_spread, c2) = dead_bands, widths
    if prediction("magman", covered_dead_band, c2_spread).evaluate((x, v), u)[0]:
        return
    plant = Magman(c1=5.52e-10 * pull, friction=1.613e-2 * friction, c2=1.75e-4 * c2)
    h = 5e-4

    def f(x: float, v: float) -> float:
        force = -plant.friction * v
        for j, squared in enumerate(u):
            d = x - 0.025 * (j + 1)
            force -= plant.c1 * d / (d * d + plant.c2) ** 3 * max(squared - dead_band, 0.0)
        return force / plant.mass

    for _ in range(400):
        k1v, k1 = v, f(x, v)
        k2v, k2 = v + h / 2 * k1, f(x + h / 2 * k1v, v + h / 2 * k1)
        k3v, k3 = v + h / 2 * k2, f(x + h / 2 * k2v, v + h / 2 * k2)
        k4v, k4 = v + h * k3, f(x + h * k3v, v + h * k3)
        x, v = x + h / 6 * (k1v + 2 * (k2v + k3v) + k4v), v + h / 6 * (k1 + 2 * (k2 + k3) + k4)
        assert abs(v) <= 0.6


@pytest.mark.parametrize(("command", "rounded_command"), [(3.0, 2.5), (-3.0, -2.5)])
def test_a_command_between_the_last_count_and_the_range_is_judged_as_that_count(
    command: float, rounded_command: float
) -> None:
    actuators = (msgspec.structs.replace(PENDULUM.rig.actuators[0], resolution=2.5),)
    rig = msgspec.structs.replace(PENDULUM.rig, actuators=actuators)
    limits = msgspec.structs.replace(
        PENDULUM.limits,
        envelope={"velocity": msgspec.structs.replace(PENDULUM.limits.envelope["velocity"], high=40.0, low=-40.0)},
    )
    compiled = compile_prediction(limits, rig, PENDULUM.period_us * 1e-6)
    assert compiled is not None
    for state in ((0.3, 5.0), (-2.0, 9.0), (1.0, -30.0)):
        assert compiled.evaluate(state, (command,)) == compiled.evaluate(state, (rounded_command,))


def test_a_coil_current_is_judged_with_the_half_count_that_rounding_may_add() -> None:
    coarse_actuators = tuple(msgspec.structs.replace(a, resolution=0.05) for a in MAGMAN.rig.actuators)
    rig = msgspec.structs.replace(MAGMAN.rig, actuators=coarse_actuators)
    compiled = compile_prediction(MAGMAN.limits, rig, MAGMAN.period_us * 1e-6)
    assert compiled is not None
    reference = prediction("magman")
    coil_ahead = (0.0, 0.3, 0.0, 0.0)
    assert compiled.evaluate((0.0, 0.1), coil_ahead)[1] < reference.evaluate((0.0, 0.1), (0.0, 0.32, 0.0, 0.0))[1]
    assert compiled.evaluate((0.0, 0.1), (0.0,) * 4)[1] == reference.evaluate((0.0, 0.1), (0.0,) * 4)[1]


def test_coils_of_uncertain_width_are_trusted_less() -> None:
    coil_ahead, predictions = (0.0, 0.6, 0.0, 0.0), [prediction("magman", c2_spread=s) for s in (0.0, 0.05, 0.1)]
    margins = [predicted.evaluate((0.0, 0.2), coil_ahead)[1] for predicted in predictions]
    assert margins == sorted(margins, reverse=True)
    assert len(set(margins)) == 3


def test_with_the_coils_off_speeds_up_to_the_envelope_are_accepted_and_with_a_coil_ahead_much_less() -> None:
    all_off, coil_ahead = (0.0,) * 4, (0.0, 0.6, 0.0, 0.0)
    assert prediction("magman").evaluate((0.0, 0.58), all_off)[0] == 0.0
    assert prediction("magman").evaluate((0.0, 0.605), all_off)[0] > 0
    assert prediction("magman").evaluate((0.0, 0.45), coil_ahead)[0] > 0
    assert prediction("magman").evaluate((0.0, 0.3), coil_ahead)[0] == 0.0


def test_without_plants_nothing_is_predicted() -> None:
    limits = msgspec.structs.replace(PENDULUM.limits, predicted=None)
    assert compile_prediction(limits, PENDULUM.rig, 0.02) is None
