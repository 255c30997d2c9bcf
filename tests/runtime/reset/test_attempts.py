from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.hw.rig import Rig
from onrig.runtime.reset.attempts import EpisodeReset, Progress
from onrig.runtime.reset.schema import Draw, Reset, Settle, reset_problems
from onrig.runtime.starts import middle_start
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import step
from onrig.sim.plants.magman import Magman
from onrig.sim.plants.pendulum import Pendulum
from tests.runtime.samples import MAGMAN, PENDULUM
from tests.runtime.third_party import DefectiveReset

PERIOD_S = 0.02
PENDULUM_START, MAGMAN_START = (middle_start(config.task.start) for config in (PENDULUM, MAGMAN))


def require_reset(config_reset: Reset | None) -> Reset:
    assert config_reset is not None
    return config_reset


SETTLE_RESET = require_reset(PENDULUM.task.reset)
DRAW_RESET = require_reset(MAGMAN.task.reset)


class StuckPlant:
    """A plant that never moves."""

    def __init__(self, *state: float) -> None:
        self.state = state


def drive(
    reset: Reset, start: dict[str, float], rig: Rig, plant: Plant | StuckPlant, state: tuple[float, ...]
) -> tuple[Progress, float, EpisodeReset, list[tuple[float, ...]]]:
    """Let a reset act on a plant until it is over; returns its outcome, its duration, and all its actions."""
    episode_reset = EpisodeReset(reset, start, rig)
    actions: list[tuple[float, ...]] = []
    elapsed_since_decision_s = 0.0
    while True:
        observation = tuple(round(x / s.resolution) * s.resolution for x, s in zip(state, rig.sensors, strict=True))
        decision = episode_reset.decide(observation, elapsed_since_decision_s)
        actions.append(decision.action)
        if decision.progress is not Progress.DRIVING:
            return decision.progress, (len(actions) - 1) * PERIOD_S, episode_reset, actions
        assert len(actions) * PERIOD_S <= reset.attempts * (reset.timeout_s + reset.rest_s + 1.0), "without end"
        if not isinstance(plant, StuckPlant):
            clipped = tuple(
                min(max(a, actuator.low), actuator.high)
                for a, actuator in zip(decision.action, rig.actuators, strict=True)
            )
            state = step(plant, state, clipped, PERIOD_S, 4)
        elapsed_since_decision_s = PERIOD_S


@given(
    st.floats(-3.1, 3.1),
    st.floats(-15, 15),
    st.sampled_from(["paper", "hardware"]),
)
@settings(max_examples=25)
def test_a_pendulum_is_brought_to_rest_hanging_from_anywhere(angle: float, velocity: float, inertia: str) -> None:
    plant = msgspec.convert({"kind": "pendulum", "inertia": inertia}, Pendulum)
    progress, duration_s, _, actions = drive(SETTLE_RESET, PENDULUM_START, PENDULUM.rig, plant, (angle, velocity))
    assert progress is Progress.REACHED
    assert duration_s <= SETTLE_RESET.timeout_s
    assert actions[-1] == (0.0,)


@given(st.floats(-0.035, 0.105), st.floats(-0.3, 0.3), *[st.floats(0.7, 1.3)] * 3)
@settings(max_examples=25)
def test_a_ball_is_drawn_to_its_start_from_anywhere_even_if_the_coils_are_off_by_a_third(
    position: float, velocity: float, mass: float, friction: float, strength: float
) -> None:
    plant = Magman(mass=3.2e-2 * mass, friction=1.613e-2 * friction, c1=5.52e-10 * strength)
    progress, _, _, actions = drive(DRAW_RESET, MAGMAN_START, MAGMAN.rig, plant, (position, velocity))
    assert progress is Progress.REACHED
    assert actions[-1] == (0.0,) * 4


def test_an_upright_pendulum_is_pushed_over_at_the_second_attempt() -> None:
    reset = msgspec.structs.replace(SETTLE_RESET, timeout_s=4.0, rest_s=0.1)
    upright = -3.141592653589793
    progress, _, episode_reset, _ = drive(reset, PENDULUM_START, PENDULUM.rig, Pendulum(), (upright, 0.0))
    assert progress is Progress.REACHED
    assert episode_reset.attempt <= 2


@pytest.mark.parametrize("attempts", [1, 3])
def test_after_its_attempts_it_gives_up_with_the_safe_output_and_reports_how_far_it_got(attempts: int) -> None:
    reset = msgspec.structs.replace(SETTLE_RESET, attempts=attempts, timeout_s=2.0, rest_s=0.5)
    progress, duration_s, episode_reset, actions = drive(reset, PENDULUM_START, PENDULUM.rig, StuckPlant(), (1.0, 0.0))
    assert progress is Progress.GAVE_UP
    assert duration_s == pytest.approx(attempts * 2.0 + (attempts - 1) * 0.5, abs=attempts * 2 * PERIOD_S)
    assert actions[-1] == (0.0,)
    assert episode_reset.detail.startswith(f"{attempts} attempts of 2 s; at the end angle was 1.0")


def test_between_attempts_the_output_is_safe_and_each_later_attempt_begins_with_a_push_to_the_other_side() -> None:
    reset = msgspec.structs.replace(SETTLE_RESET, attempts=3, timeout_s=1.0, rest_s=0.5, effort=0.5)
    assert isinstance(reset, Settle)
    _, _, _, actions = drive(reset, PENDULUM_START, PENDULUM.rig, StuckPlant(), (1.0, 0.0))
    values = [a for (a,) in actions]
    assert set(values) == {0.0, 1.5, -1.5}, "half the range, as `effort` says"
    assert values.index(1.5) < values.index(-1.5)
    push_counts = (values.count(1.5), values.count(-1.5))
    assert push_counts == pytest.approx((reset.push_s / PERIOD_S,) * 2, abs=1)


def test_beyond_its_own_limits_it_ends_at_once() -> None:
    reset = msgspec.structs.replace(SETTLE_RESET, limits={"velocity": (-10.0, 10.0)})
    progress, duration_s, episode_reset, actions = drive(reset, PENDULUM_START, PENDULUM.rig, Pendulum(), (0.0, 12.0))
    assert (progress, duration_s, actions) == (Progress.OUT_OF_LIMITS, 0.0, [(0.0,)])
    assert episode_reset.detail == "velocity at 12, outside [-10, 10]"


def test_the_start_must_hold_for_a_while() -> None:
    reset = msgspec.structs.replace(SETTLE_RESET, hold_s=0.5)
    progress, duration_s, _, _ = drive(reset, PENDULUM_START, PENDULUM.rig, StuckPlant(), (0.0, 0.0))
    assert progress is Progress.REACHED
    assert duration_s == pytest.approx(0.5)


def test_a_non_finite_reading_is_never_the_start() -> None:
    episode_reset = EpisodeReset(SETTLE_RESET, PENDULUM_START, PENDULUM.rig)
    for _ in range(40):
        decision = episode_reset.decide((float("nan"), float("nan")), PERIOD_S)
        assert decision == ((0.0,), Progress.DRIVING)


def test_an_angle_is_compared_around_the_turn() -> None:
    start = {"angle": 3.14, "velocity": 0.0}
    progress, _, _, _ = drive(SETTLE_RESET, start, PENDULUM.rig, StuckPlant(), (-3.13, 0.0))
    assert progress is Progress.REACHED


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"within": {}}, "within"),
        ({"within": {"speed": 1.0}}, "within.speed"),
        ({"limits": {"velocity": (1.0, 2.0)}}, "limits.velocity"),
        ({"limits": {"velocity": (2.0, 1.0)}}, "limits.velocity"),
        ({"timeout_s": 1e9}, "timeout_s"),
        ({"hold_s": 10.0}, "hold_s"),
        ({"actuator": "torque"}, "actuator"),
        ({"velocity": "speed"}, "velocity"),
        ({"push_s": 20.0}, "push_s"),
    ],
)
def test_a_mismatched_reset_is_named(changes: dict[str, object], path: str) -> None:
    reset = msgspec.structs.replace(SETTLE_RESET, **changes)
    assert path in [problem_path for problem_path, _ in reset_problems(reset, PENDULUM_START, PENDULUM.rig)]
    assert not reset_problems(SETTLE_RESET, PENDULUM_START, PENDULUM.rig)


def test_missing_coils_are_named() -> None:
    assert isinstance(DRAW_RESET, Draw)
    reset = msgspec.structs.replace(DRAW_RESET, coils={"current_9": 0.1}, position="x")
    assert {problem_path for problem_path, _ in reset_problems(reset, MAGMAN_START, MAGMAN.rig)} == {
        "coils.current_9",
        "position",
    }


@pytest.mark.parametrize(
    ("defect", "message"), [("infinite", "invalid action (inf,)"), ("whole", "invalid action (0.0, 0.0)")]
)
def test_a_failing_third_party_driver_ends_the_reset(defect: str, message: str) -> None:
    reset = EpisodeReset(DefectiveReset(within={"angle": 0.1}, defect=defect), PENDULUM_START, PENDULUM.rig)
    assert reset.action((1.0, 0.0), 20_000) == (0.0,)
    assert reset.progress is Progress.FAILED
    assert message in reset.detail
