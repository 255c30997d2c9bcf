from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from onrig.hw.rig import Observation
from onrig.runtime.inputs import InputComposition, PolicyInput, build_composition, input_problems, policy_signals
from tests.runtime.samples import PENDULUM

RIG = PENDULUM.rig
LAST_TWO = tuple(PolicyInput("angle", angle_form, lag) for lag in (0, 1) for angle_form in ("cos", "sin"))


def test_by_default_inputs_are_the_observations_of_the_rig() -> None:
    assert policy_signals(msgspec.UNSET, RIG) == RIG.signals
    assert build_composition(msgspec.UNSET, RIG) is None


def test_signals_are_named_after_their_source_and_age() -> None:
    signals = policy_signals((*LAST_TWO, PolicyInput("velocity", lag=3)), RIG)
    names = ["cos_angle", "sin_angle", "cos_angle-1", "sin_angle-1", "velocity-3"]
    assert [s.name for s in signals] == names
    assert signals[1] == Observation("sin_angle", "1", -1.0, 1.0)
    assert signals[4] == Observation("velocity-3", "rad/s", -30.0, 30.0)


def test_the_first_frame_of_an_episode_is_repeated_for_earlier_ones() -> None:
    compose = InputComposition(
        (PolicyInput("velocity"), PolicyInput("velocity", lag=1), PolicyInput("angle", lag=3)), RIG
    )
    assert compose.history == 3
    frames = [(0.1 * k, float(k)) for k in range(6)]
    history: list[tuple[float, ...]] = []
    composed = []
    for frame in frames:
        history = [frame, *history[: compose.history]]
        composed.append(compose(history))
    angles = [0.0, 0.0, 0.0, 0.0, 0.1, 0.2]
    assert composed == [(float(k), float(max(k - 1, 0)), angles[k]) for k in range(6)]


def test_single_and_batched_inputs_are_composed_alike() -> None:
    compose = InputComposition((*LAST_TWO, PolicyInput("velocity")), RIG)
    frames = np.random.default_rng(0).uniform(-3, 3, (2, 5, 4, 2))
    batched = compose.batch(frames)
    assert batched.shape == (5, 4, 5)
    for index in np.ndindex(5, 4):
        single = compose([tuple(frames[lag][index].tolist()) for lag in (0, 1)])
        np.testing.assert_allclose(batched[index], single, rtol=1e-15)
        assert single[0] == math.cos(frames[0][index][0])


@pytest.mark.parametrize(
    ("inputs", "path", "message"),
    [
        ((), "inputs", "expected 1 to"),
        ((PolicyInput("speed"),), "inputs[0].observation", "no observation 'speed' (it has angle, velocity)"),
        (
            (PolicyInput("angle"), PolicyInput("velocity", "cos")),
            "inputs[1].form",
            "'velocity' is in rad/s, not an angle in rad",
        ),
        ((PolicyInput("angle"), PolicyInput("angle", lag=1), PolicyInput("angle")), "inputs[2]", "is a duplicate"),
    ],
)
def test_invalid_inputs_are_refused_at_their_place(inputs: tuple[PolicyInput, ...], path: str, message: str) -> None:
    [(problem_path, problem)] = input_problems(inputs, RIG)
    assert problem_path == path
    assert message in problem
