from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.run_loading import load_run
from onrig.runtime.safety import phase_plane
from onrig.runtime.safety.pendulum import PendulumBox, side_cases
from onrig.runtime.safety.phase_plane import (
    N_LEVELS,
    N_NODES,
    Case,
    NoSafeSet,
    Span,
    UpperSide,
    check_feasible,
    mirror_case,
    upper_side,
)

H = 2 * math.pi / N_NODES
RUNS = ("pendulum", "pendulum-hardware")
OUTPUTS = ("driven", "released")


@cache
def case(run: str, dead_band: float = 0.0, output: str = "") -> Case:
    overrides = {"limits.predicted.dead_band": dead_band, "rig.safe_output": output}
    config = load_run(run, [f"{name}={value}" for name, value in overrides.items() if value])
    assert isinstance(config.limits.predicted, PendulumBox)
    return side_cases(config.limits.predicted, config.limits.context(config.rig, config.period_us * 1e-6))[0]


def cell(curve: phase_plane.Curve, angle: float) -> float:
    """Velocity promised by a curve between two nodes."""
    i = int((angle + math.pi) / H) % N_NODES
    return float(min(curve[i], curve[(i + 1) % N_NODES]))


def vertex(c: Case, bits: int) -> tuple[float, float, float]:
    return tuple(span[bits >> i & 1] for i, span in enumerate(c.box[:3]))  # type: ignore[return-value]


def simulate(
    plant: tuple[float, float, float], state: tuple[float, float], command: float, duration_s: float
) -> tuple[tuple[float, float], float]:
    """State after a held command, and the highest velocity on the way."""
    a, d, g = plant
    steps = max(1, round(duration_s / 5e-4))
    h = duration_s / steps
    angle, velocity = state
    peak = velocity

    def f(x: float, v: float) -> float:
        return -a * math.sin(x) - d * v + g * command

    for _ in range(steps):
        k1v, k1 = velocity, f(angle, velocity)
        k2v, k2 = velocity + h / 2 * k1, f(angle + h / 2 * k1v, velocity + h / 2 * k1)
        k3v, k3 = velocity + h / 2 * k2, f(angle + h / 2 * k2v, velocity + h / 2 * k2)
        k4v, k4 = velocity + h * k3, f(angle + h * k3v, velocity + h * k3)
        angle += h / 6 * (k1v + 2 * (k2v + k3v) + k4v)
        velocity += h / 6 * (k1 + 2 * (k2 + k3) + k4)
        peak = max(peak, velocity)
    return ((angle + math.pi) % (2 * math.pi) - math.pi, velocity), peak


def effective_command(command: float, dead_band: float) -> float:
    """Remainder of a command after a dead band."""
    return math.copysign(max(abs(command) - dead_band, 0.0), command)


CASE, DEAD_BAND_FRACTIONS, ANGLE, FRACTIONS, VERTEX = (
    st.tuples(st.sampled_from(RUNS), st.sampled_from([0.0, 0.6])),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.floats(-math.pi, math.pi - 1e-9),
    st.floats(0.9, 1.0),
    st.integers(0, 7),
)


@settings(max_examples=40)
@given(CASE, DEAD_BAND_FRACTIONS, ANGLE, FRACTIONS, VERTEX, st.floats(0, 1), st.floats(-1, 1))
def test_from_the_safe_set_the_late_fallback_keeps_the_limit_for_any_plant(
    run: tuple[str, float],
    dead_band_fraction: float,
    angle: float,
    fraction: float,
    bits: int,
    delay: float,
    held_fraction: float,
) -> None:
    c = case(*run)
    dead_band = dead_band_fraction * c.box.dead_band
    plant = vertex(c, bits)
    state = (angle, fraction * cell(upper_side(c).safe, angle))
    state, peak = simulate(
        plant, state, effective_command(c.command.high * held_fraction, dead_band), delay * c.delay_s
    )
    assert peak <= c.limit
    for _ in range(40):  # the fallback, sampled, with each command a tick late
        command = -c.command.high * min(max(state[1] / c.full_at, -1.0), 1.0)
        state, peak = simulate(plant, state, effective_command(command, dead_band), 2 * c.period_s)
        assert peak <= c.limit


@settings(max_examples=60)
@given(CASE, DEAD_BAND_FRACTIONS, ANGLE, FRACTIONS, VERTEX, st.integers(0, N_LEVELS - 1))
def test_an_accepted_command_leads_into_the_safe_set_at_every_moment_of_its_period(
    run: tuple[str, float], dead_band_fraction: float, angle: float, fraction: float, bits: int, level: int
) -> None:
    c = case(*run)
    sides, plant = upper_side(c), vertex(c, bits)
    state = (angle, fraction * cell(sides.passing[level], angle))
    command = c.command.low + (c.command.high - c.command.low) * level / (N_LEVELS - 1)
    for _ in range(8):
        state, _ = simulate(
            plant, state, effective_command(command, dead_band_fraction * c.box.dead_band), c.period_s / 8
        )
        assert state[1] <= np.interp(
            state[0], np.linspace(-math.pi, math.pi, N_NODES + 1), [*sides.safe, sides.safe[0]]
        )


@pytest.mark.parametrize("run", RUNS)
def test_a_dead_band_reduces_the_authority_of_the_brake_and_hence_the_safe_set(run: str) -> None:
    without_dead_band, with_dead_band = upper_side(case(run)), upper_side(case(run, 2.0))
    assert np.all(with_dead_band.fallback <= without_dead_band.fallback)
    assert np.all(with_dead_band.safe <= without_dead_band.safe + 0.005 * case(run).limit), (
        "but for what is taken off for the grid"
    )
    assert with_dead_band.safe.mean() < without_dead_band.safe.mean()


@pytest.mark.parametrize("run", RUNS)
def test_a_braked_plant_with_a_dead_band_outruns_the_safe_output_from_the_curve_drawn_without_one(run: str) -> None:
    """Gravity at its maximum on the way down and its minimum on the way up, as the box allows while the host lives."""
    bare_case, dead_band_case = case(run), case(run, 2.0)
    coasting = [*upper_side(bare_case).coasting, upper_side(bare_case).coasting[0]]

    def excess(c: Case) -> float:
        angle, h = np.linspace(-math.pi, math.pi, N_NODES, endpoint=False), 5e-4
        velocity, max_excess = upper_side(c).fallback.copy(), -math.inf
        for _ in range(round(0.6 / h)):
            acceleration = phase_plane.acceleration(dead_band_case.box, np.sin(angle), velocity, c.command.low)
            velocity = np.maximum(velocity + h * acceleration, 0.0)
            angle = angle + h * velocity
            allowed_velocity = np.interp(
                (angle + math.pi) % (2 * math.pi), np.linspace(0, 2 * math.pi, N_NODES + 1), coasting
            )
            max_excess = max(max_excess, float(np.max(velocity - allowed_velocity)))
        return max_excess

    assert excess(bare_case) > 0.01
    assert excess(dead_band_case) < 0.01


@pytest.mark.parametrize("run", RUNS)
def test_no_dead_band_and_a_dead_band_of_0_give_the_same_curves_bit_for_bit(run: str) -> None:
    c = case(run)
    command = np.linspace(c.command.low, c.command.high, N_LEVELS)
    assert np.array_equal(phase_plane.largest_effect(command, 0.0), command)
    zero = load_run(run, ["limits.predicted.dead_band=0"])
    assert isinstance(zero.limits.predicted, PendulumBox)
    assert side_cases(zero.limits.predicted, zero.limits.context(zero.rig, zero.period_us * 1e-6))[0] == c


@pytest.mark.parametrize("run", RUNS)
def test_a_stronger_command_is_accepted_in_fewer_states(run: str) -> None:
    c = case(run)
    assert np.all(np.diff(upper_side(c).passing, axis=0) <= 0.01 * c.limit), "but for what is taken off for the grid"


@pytest.mark.parametrize("run", RUNS)
def test_curves_lie_within_one_another(run: str) -> None:
    sides, c = upper_side(case(run)), case(run)
    assert sides.coasting.max() <= c.limit
    assert np.all(sides.fallback <= sides.coasting)
    assert np.all(sides.safe < sides.fallback)
    assert np.all(sides.passing <= sides.safe)
    assert np.all(sides.cells < sides.passing)
    assert sides.safe.min() > c.full_at + c.velocity_error


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_finer_grid_gives_no_smaller_promise(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deduction for the grid covers its error: four times as many nodes and steps only widen the set."""
    c = case("pendulum-hardware", output=output)
    coarse_curve = upper_side(c).safe
    monkeypatch.setattr(phase_plane, "N_NODES", 4 * N_NODES)
    monkeypatch.setattr(phase_plane, "_STEP_S", phase_plane._STEP_S / 4)
    fine_curve = phase_plane._curves.__wrapped__(c)[2][::4]
    assert np.all(fine_curve >= coarse_curve)
    assert np.max(fine_curve - coarse_curve) < 0.02 * c.limit


def safe_fraction(sides: UpperSide, limit: float) -> float:
    return float(sides.safe.min()) / limit


def test_a_longer_delay_a_wider_box_and_a_larger_error_shrink_the_accepted_set() -> None:
    c = case("pendulum")
    wider_box = c._replace(box=c.box._replace(gravity=Span(0.6 * c.box.gravity.low, 1.1 * c.box.gravity.high)))
    for worse_case in (c._replace(delay_s=1.3 * c.delay_s), wider_box, c._replace(velocity_error=0.5)):
        assert np.all(upper_side(worse_case).cells <= upper_side(c).cells + 1e-9)
    assert safe_fraction(upper_side(c._replace(delay_s=1.3 * c.delay_s)), c.limit) < safe_fraction(
        upper_side(c), c.limit
    )


def test_equal_limits_on_both_sides_are_one_case() -> None:
    assert mirror_case(case("pendulum"), -15.0) == case("pendulum")


@pytest.mark.parametrize(
    ("c", "message"),
    [
        (case("pendulum")._replace(delay_s=0.4), "too late to stay within 15 rad/s"),
        (case("pendulum")._replace(limit=10.8), "too late to stay within 10.8 rad/s"),
        (case("pendulum")._replace(limit=10.0), "falling from the upright under 0 V exceeds 10 rad/s"),
        (case("pendulum")._replace(safe_output=3.0), "falling from the upright under 3 V exceeds 15 rad/s"),
        (case("pendulum", output="released")._replace(limit=11.0), "with the motor released exceeds 11 rad/s"),
        (case("pendulum")._replace(full_at=8.0), "too late to stay within 15"),
    ],
)
def test_limits_that_the_fallback_cannot_keep_are_refused(c: Case, message: str) -> None:
    with pytest.raises(NoSafeSet, match=message):
        check_feasible(c)
    with pytest.raises(NoSafeSet, match=message):
        upper_side(c)


@pytest.mark.parametrize("shape", [(N_NODES,), (3, N_NODES)])
def test_curves_are_resampled_bit_for_bit_as_numpy_interpolates_periodic_ones(shape: tuple[int, ...]) -> None:
    rng, nodes = np.random.default_rng(4), np.linspace(-math.pi, math.pi, N_NODES, endpoint=False)
    angle = nodes + 0.9 * H * rng.uniform(size=shape) + rng.uniform(-9.0, 9.0, (*shape[:-1], 1))
    velocity = rng.normal(size=shape)
    resampled = phase_plane._resample(nodes, angle, velocity).reshape(-1, N_NODES)
    rows = zip(angle.reshape(-1, N_NODES), velocity.reshape(-1, N_NODES), strict=True)
    for curve, (a, v) in zip(resampled, rows, strict=True):
        assert np.array_equal(curve, np.interp(nodes, a, v, period=2 * math.pi))


# -- a host that dies --------------------------------------------------------------------------------------------------


def max_speed_after_host_dies(c: Case, held_command: float, held_s: float, motor_damps: bool) -> float:
    """Highest speed (rad/s) of the box's constant plants from the edge of S: a command held, then the safe output."""
    box, h = c.box, 5e-4
    corners = np.array(np.meshgrid(box.gravity, box.damping, box.gain)).reshape(3, -1, 1)
    gravity, damping, gain = corners
    angle = np.tile(np.arange(N_NODES) * H - math.pi, (corners.shape[1], 1))
    velocity = np.tile(upper_side(c).safe, (corners.shape[1], 1))
    peak = float(velocity.max())
    for k in range(round(2.0 / h)):
        alive = k * h < held_s
        push = gain * (held_command if alive else c.safe_output or 0.0)
        friction = damping if alive or motor_damps else 0.0
        velocity = velocity + h * (push - gravity * np.sin(angle) - friction * velocity)
        angle = angle + h * velocity
        peak = max(peak, float(np.abs(velocity).max()))
    return peak


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("run", RUNS)
def test_from_the_safe_set_a_host_may_die_after_any_command(run: str, output: str) -> None:
    c = case(run, output=output)
    for held_command in (c.command.high, 0.0, c.command.low):
        for fraction in (1.0, 0.5):
            max_speed = max_speed_after_host_dies(c, held_command, fraction * c.delay_s, motor_damps=output == "driven")
            assert max_speed <= 1.001 * c.limit, "the integration is of first order"


@pytest.mark.parametrize("run", RUNS)
def test_a_safe_set_that_relies_on_a_continuing_fallback_does_not_survive_its_host(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = case(run)
    monkeypatch.setattr(phase_plane, "_coasting_curve", lambda case: np.full(N_NODES, case.limit))
    safe_curve = phase_plane._curves.__wrapped__(c)[2]
    monkeypatch.setattr("tests.runtime.safety.test_phase_plane.upper_side", lambda _: UpperSide(*[safe_curve] * 5))
    assert max_speed_after_host_dies(c, c.command.high, c.delay_s, motor_damps=True) > 1.01 * c.limit


@settings(max_examples=40)
@given(
    CASE,
    st.sampled_from(OUTPUTS),
    DEAD_BAND_FRACTIONS,
    ANGLE,
    FRACTIONS,
    VERTEX,
    st.floats(0, 1),
    st.floats(-1, 1),
    st.integers(0, 20),
)
def test_the_host_may_die_while_the_fallback_acts(
    run: tuple[str, float], output: str, dead_band_fraction: float, angle: float, fraction: float, bits: int,
    delay: float, held_fraction: float, ticks: int,
) -> None:  # fmt: skip
    c = case(*run, output)
    dead_band, plant = dead_band_fraction * c.box.dead_band, vertex(c, bits)
    state = (angle, fraction * cell(upper_side(c).safe, angle))
    state, _ = simulate(plant, state, effective_command(c.command.high * held_fraction, dead_band), delay * c.delay_s)
    command = held_fraction * c.command.high
    for _ in range(ticks):  # with each command a tick late
        command = -c.command.high * min(max(state[1] / c.full_at, -1.0), 1.0)
        state, peak = simulate(plant, state, effective_command(command, dead_band), 2 * c.period_s)
        assert peak <= c.limit
    left = c.delay_s if ticks else (1.0 - delay) * c.delay_s
    state, peak = simulate(plant, state, effective_command(command, dead_band), left)
    undriven_plant = (plant[0], 0.0, plant[2]) if output == "released" else plant
    for velocity_peak in (
        peak,
        simulate(undriven_plant, state, 0.0, 2.0)[1],
        simulate(undriven_plant, mirror(state), 0.0, 2.0)[1],
    ):
        assert velocity_peak <= c.limit


def mirror(state: tuple[float, float]) -> tuple[float, float]:
    return -state[0], -state[1]
