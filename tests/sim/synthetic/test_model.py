from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.hw.rig import Observation
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import batched_reward
from onrig.sim.envs import TwinEnv
from onrig.sim.plants import Magman, Pendulum
from onrig.sim.synthetic.model import Outcome, PlantModel, model_problems
from onrig.sim.twin.main import twin_options
from tests.runtime.samples import MAGMAN, PENDULUM
from tests.sim.synthetic.samples import RUNS, model_of, with_fine_sensors


def normalised(config: RunConfig, **si: float) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    values = [(si[s.name] - 0.5 * (s.low + s.high)) / (0.5 * (s.high - s.low)) for s in config.rig.signals]
    return np.array([values], np.float32)


def recorded(config: RunConfig, steps: int) -> tuple[Outcome, Outcome]:
    """Measurements of the lockstep twin under random actions, and the model's outcome for them."""
    env = TwinEnv(config.rig, config.task, twin_options(config), config.rate_hz)
    rng = np.random.default_rng(3)
    seen, _ = env.reset(seed=0)
    before, actions, after, rewards = [], [], [], []
    for _ in range(steps):
        action = rng.uniform(-1, 1, len(config.rig.actuators)).astype(np.float32)
        following, reward, _, _, info = env.step(action)
        before.append(seen)
        centre = np.array([a.centre for a in config.rig.actuators])
        half = np.array([a.half_range for a in config.rig.actuators])
        actions.append(((info["applied"] - centre) / half).astype(np.float32))
        after.append(following)
        rewards.append(reward)
        seen = following
    measured = Outcome(np.array(after), np.array(rewards, np.float32), np.zeros(steps, bool))
    return measured, model_of(config)(np.array(before), np.array(actions))


@pytest.mark.parametrize("name", RUNS)
def test_the_model_reproduces_the_twins_measurements(name: str) -> None:
    measured, computed = recorded(with_fine_sensors(RUNS[name]), 150)
    apart = np.abs(measured.next_observation - computed.next_observation)
    if name == "pendulum":
        apart[:, 0] = np.minimum(apart[:, 0], 2 - apart[:, 0])  # rounding may move an angle across its wrap
    assert apart.max() < 2e-5
    np.testing.assert_allclose(computed.reward, measured.reward, atol=2e-3)


def test_the_reward_uses_the_next_state_and_the_action() -> None:
    outcome = model_of(PENDULUM)(normalised(PENDULUM, angle=3.0, velocity=0.0), np.array([[0.5]], np.float32))
    angle, velocity = (outcome.next_observation[0] * np.array([math.pi, 30.0])).tolist()
    reward = batched_reward(PENDULUM.task, PENDULUM.rig)(np.array([[angle, velocity]]), np.array([[1.5]]))
    assert outcome.reward[0] == pytest.approx(reward[0], rel=1e-5)
    assert outcome.reward[0] == pytest.approx(-(50 * (math.pi - abs(angle)) + abs(velocity) + 15), rel=1e-5)


def test_a_ball_that_hits_a_wall_is_reflected_and_costs_the_penalty() -> None:
    state = normalised(MAGMAN, position=0.104, velocity=0.4)
    outcome = model_of(MAGMAN)(state, -np.ones((1, 4), np.float32))
    assert outcome.next_observation[0] == pytest.approx([1.0, -0.01 / 0.4])
    assert outcome.reward[0] == pytest.approx(-(100 * 0.07 + 5 * 0.01 + 1), rel=1e-4)


def test_leaving_the_tasks_bounds_terminates() -> None:
    task = msgspec.structs.replace(PENDULUM.task, terminate={"velocity": (-20.0, 20.0)})
    model = model_of(msgspec.structs.replace(PENDULUM, task=task))
    states = np.concatenate([normalised(PENDULUM, angle=0.0, velocity=v) for v in (25.0, 5.0, -25.0)])
    assert model(states, np.zeros((3, 1), np.float32)).terminated.tolist() == [True, False, True]


def test_a_rig_that_shows_the_previous_command_shows_the_action() -> None:
    rig = msgspec.structs.replace(PENDULUM.rig, previous_command=True)
    model = PlantModel(rig, PENDULUM.task, Pendulum(), 0.02)
    state = np.array([[0.1, 0.2, -0.9]], np.float32)
    outcome = model(state, np.array([[0.25]], np.float32))
    plain = model_of(PENDULUM)(state[:, :2], np.array([[0.25]], np.float32))
    assert outcome.next_observation[0].tolist() == [*plain.next_observation[0].tolist(), 0.25]
    assert outcome.reward == plain.reward


@settings(max_examples=30)
@given(st.sampled_from(sorted(RUNS)), st.integers(1, 60), st.lists(st.integers(0, 60), max_size=5))
def test_every_row_is_computed_independently(name: str, n: int, cuts: list[int]) -> None:
    config = RUNS[name]
    rng = np.random.default_rng(n)
    observation = rng.uniform(-1, 1, (n, 2)).astype(np.float32)
    action = rng.uniform(-1, 1, (n, len(config.rig.actuators))).astype(np.float32)
    model = model_of(config)
    whole = model(observation, action)
    edges = [0, *sorted(min(c, n) for c in cuts), n]
    pieces = [model(observation[a:b], action[a:b]) for a, b in itertools.pairwise(edges)]
    for column, parts in zip(whole, zip(*pieces, strict=True), strict=True):
        assert np.concatenate(parts).tobytes() == column.tobytes()


def test_a_diverging_plant_gives_nan_without_a_warning() -> None:
    stiff = PlantModel(PENDULUM.rig, PENDULUM.task, Pendulum(damping=1e300), 0.02)
    outcome = stiff(normalised(PENDULUM, angle=1.0, velocity=2.0), np.zeros((1, 1), np.float32))
    assert not np.isfinite(outcome.reward).any()


def test_rigs_that_observe_the_complete_state_have_no_problem() -> None:
    assert model_problems(PENDULUM.rig, Pendulum()) == []
    assert model_problems(MAGMAN.rig, Magman()) == []
    renamed = msgspec.structs.replace(
        PENDULUM.rig,
        observations=(Observation("theta", "rad", -3, 3, sensor="angle"), Observation("velocity", "rad/s", -30, 30)),
    )
    assert model_problems(renamed, Pendulum()) == []


def test_an_estimated_or_unobserved_state_is_a_problem() -> None:
    angle = PENDULUM.rig.observations[0]
    estimate = Observation("velocity", "rad/s", -30, 30, derivative_of="angle")
    estimated = msgspec.structs.replace(PENDULUM.rig, observations=(angle, estimate))
    first, second = model_problems(estimated, Pendulum())
    assert "'velocity' is an estimate from 'angle'" in first
    assert "no observation measures the plant's state 'velocity'" in second
    blind = msgspec.structs.replace(PENDULUM.rig, observations=(angle,))
    assert ["velocity" in problem for problem in model_problems(blind, Pendulum())] == [True]


def test_a_delayed_plant_has_no_next_state_determined_by_its_state_alone() -> None:
    (problem,) = model_problems(PENDULUM.rig, Pendulum(delay_s=0.01))
    assert "delay_s" in problem
