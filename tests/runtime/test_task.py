from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig import configs
from onrig.hw.rig import Observation, Rig, rig_problems
from onrig.runtime.config.conversion import convert
from onrig.runtime.config.document import load_document
from onrig.runtime.task import (
    Normalization,
    Task,
    batched_reward,
    batched_termination,
    compile_base_reward,
    compile_reward,
    compile_termination,
    episode_steps,
)
from onrig.runtime.task_checks import task_problems

FOLDER = Path(configs.__file__).parent
PAIRS = [("pendulum", "swingup"), ("pendulum-hardware", "swingup-hardware"), ("magman", "positioning")]


def load_shipped(rig: str, task: str) -> tuple[Rig, Task]:
    return (
        convert(load_document(FOLDER / "rigs" / f"{rig}.yaml"), (), Rig),
        convert(load_document(FOLDER / "tasks" / f"{task}.yaml"), (), Task),
    )


PENDULUM, SWINGUP = load_shipped(*PAIRS[0])
MAGMAN, POSITIONING = load_shipped(*PAIRS[2])


@pytest.mark.parametrize(("rig_name", "task_name"), PAIRS)
def test_shipped_rigs_and_tasks_have_no_problems(rig_name: str, task_name: str) -> None:
    rig, task = load_shipped(rig_name, task_name)
    assert rig_problems(rig) == []
    assert task_problems(task, rig) == []


def test_pendulum_reward_is_equation_9_of_de_bruin_et_al() -> None:
    reward = compile_reward(SWINGUP, PENDULUM)
    assert reward((math.pi, 0.0), (0.0,)) == 0.0
    assert reward((-math.pi, 0.0), (0.0,)) == 0.0
    assert reward((0.0, 0.0), (0.0,)) == pytest.approx(-50 * math.pi)
    assert reward((-3.0, -2.0), (-1.5,)) == pytest.approx(-(50 * (math.pi - 3) + 2 + 15))


def test_velocity_beyond_its_range_is_not_clipped() -> None:
    reward = compile_reward(SWINGUP, PENDULUM)
    assert reward((math.pi, 57.0), (0.0,)) == pytest.approx(-57.0)


def test_the_magman_reward_ignores_the_currents_and_charges_a_wall_once() -> None:
    reward = compile_reward(POSITIONING, MAGMAN)
    assert reward((0.035, 0.0), (0.6, 0.6, 0.6, 0.6)) == 0.0
    assert reward((0.045, -0.1), (0.0,) * 4) == pytest.approx(-1.5)
    assert reward((0.105, -0.01), (0.0,) * 4) == pytest.approx(-7.0 - 0.05 - 1.0)
    assert reward((-35000 * 1e-6, 0.01), (0.0,) * 4) == pytest.approx(-7.0 - 0.05 - 1.0)
    assert reward((0.104999, 0.0), (0.0,) * 4) == pytest.approx(-6.9999)


@pytest.mark.parametrize(("rig", "task"), [(PENDULUM, SWINGUP), (MAGMAN, POSITIONING)], ids=["pendulum", "magman"])
@settings(max_examples=50)
@given(data=st.data())
def test_the_batched_reward_equals_the_scalar_one_bit_for_bit(data: st.DataObject, rig: Rig, task: Task) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=2, max_side=3))
    values = st.floats(-100.0, 100.0) | st.sampled_from([-0.035, 0.105, math.pi, -math.pi, 0.0])
    x = data.draw(hnp.arrays(np.float64, (*shape, len(rig.observations)), elements=values))
    a = data.draw(hnp.arrays(np.float64, (*shape, len(rig.actuators)), elements=values))
    scalar, batched = compile_reward(task, rig), batched_reward(task, rig)(x, a)
    assert batched.shape == shape
    for index in np.ndindex(*shape):
        assert batched[index] == scalar(x[index].tolist(), a[index].tolist())


def test_a_previous_command_in_the_observation_costs_nothing() -> None:
    rig = msgspec.structs.replace(PENDULUM, previous_command=True)
    assert compile_reward(SWINGUP, rig)((math.pi, 0.0, 3.0), (0.0,)) == 0.0
    assert batched_reward(SWINGUP, rig)(np.array([[math.pi, 0.0, 3.0]]), np.zeros((1, 1))) == 0.0


def test_without_bounds_nothing_terminates() -> None:
    assert not compile_termination(SWINGUP, PENDULUM)((math.nan, 1e9))


@pytest.mark.parametrize(
    ("velocity", "expected"), [(0.0, False), (15.0, False), (15.01, True), (-15.01, True), (math.nan, True)]
)
def test_leaving_the_bounds_terminates(velocity: float, expected: bool) -> None:
    task = msgspec.structs.replace(SWINGUP, terminate={"velocity": (-15.0, 15.0)})
    assert compile_termination(task, PENDULUM)((0.0, velocity)) is expected


TERMINATING = msgspec.structs.replace(
    SWINGUP,
    terminate={"velocity": (-15.0, 15.0)},
    reward=msgspec.structs.replace(SWINGUP.reward, alive=200.0, terminal=-5000.0),
)


def test_being_alive_is_rewarded_in_every_step_and_an_end_once() -> None:
    base_reward, terminating_reward = compile_reward(SWINGUP, PENDULUM), compile_reward(TERMINATING, PENDULUM)
    inside_state, outside_state, action = (3.0, -14.9), (3.0, -15.1), (1.5,)
    assert terminating_reward(inside_state, action) == base_reward(inside_state, action) + 200.0
    assert terminating_reward(outside_state, action) == base_reward(outside_state, action) + 200.0 - 5000.0
    batch = batched_reward(TERMINATING, PENDULUM)(np.array([inside_state, outside_state]), np.array([action, action]))
    assert batch.tolist() == [terminating_reward(inside_state, action), terminating_reward(outside_state, action)]


def test_without_terms_the_reward_in_the_tick_is_the_same_function() -> None:
    assert compile_base_reward(SWINGUP, PENDULUM).__name__ == "distance"
    assert compile_base_reward(TERMINATING, PENDULUM).__name__ == "reward"


def test_a_task_needs_no_references() -> None:
    assert task_problems(msgspec.structs.replace(SWINGUP, normalization=None), PENDULUM) == []


@pytest.mark.parametrize("rate_hz", [50.0, 60.0, 100.0, 200.0, 333.0, 500.0, 1000.0])
def test_an_episode_has_exactly_duration_times_rate_steps(rate_hz: float) -> None:
    assert episode_steps(SWINGUP, rate_hz) == 4 * rate_hz


def changed_task(**changes: Any) -> Task:
    return msgspec.structs.replace(SWINGUP, **changes)


def task_with_reward(**changes: Any) -> Task:
    return changed_task(reward=msgspec.structs.replace(SWINGUP.reward, **changes))


REWARD_WALL = POSITIONING.reward.wall
assert REWARD_WALL is not None

INVALID_TASKS = {
    "empty name": (changed_task(name=""), "name"),
    "endless episode": (changed_task(episode_s=math.inf), "episode_s"),
    "unknown start": (changed_task(start={"angel": 0.0}), "start.angel"),
    "start not finite": (changed_task(start={"angle": math.nan}), "start.angle"),
    "unknown target": (task_with_reward(target={**SWINGUP.reward.target, "x": 1.0}), "reward.target.x"),
    "target not finite": (task_with_reward(target={"angle": math.inf, "velocity": 0.0}), "reward.target.angle"),
    "unknown weight": (
        task_with_reward(weights={"x": 1.0}, target={"x": 1.0}, folded=()),
        "reward.weights.x",
    ),
    "weight without target": (task_with_reward(target={"angle": 1.0}), "reward.weights.velocity"),
    "folded without weight": (task_with_reward(folded=("torque",)), "reward.folded[0]"),
    "unknown actuator": (task_with_reward(action_weights={"torque": 1.0}), "reward.action_weights.torque"),
    "wall of nothing": (task_with_reward(wall=REWARD_WALL), "reward.wall.observation"),
    "walls crossed": (
        task_with_reward(wall=msgspec.structs.replace(REWARD_WALL, observation="angle", low=1.0, high=0.0)),
        "reward.wall",
    ),
    "margins overlap": (
        task_with_reward(wall=msgspec.structs.replace(REWARD_WALL, observation="angle", margin=1.0)),
        "reward.wall.margin",
    ),
    "unknown bound": (changed_task(terminate={"x": (0.0, 1.0)}), "terminate.x"),
    "bounds crossed": (changed_task(terminate={"velocity": (1.0, -1.0)}), "terminate.velocity"),
    "bound is nan": (changed_task(terminate={"velocity": (math.nan, 1.0)}), "terminate.velocity"),
    "starts outside": (changed_task(terminate={"angle": (1.0, 2.0)}), "terminate.angle"),
    "never ends": (task_with_reward(terminal=-1.0), "reward.terminal"),
    "alive is nan": (task_with_reward(alive=math.nan), "reward.alive"),
    "yardsticks reversed": (
        changed_task(normalization=Normalization(random_reward=0.0, reference_reward=-43.1)),
        "normalization",
    ),
}


@pytest.mark.parametrize("case", INVALID_TASKS)
def test_each_semantic_error_is_named_at_its_path(case: str) -> None:
    task, path = INVALID_TASKS[case]
    assert path in [p for p, _ in task_problems(task, PENDULUM)]


def test_all_problems_are_listed_at_once() -> None:
    task = changed_task(name="", start={"x": 0.0}, terminate={"y": (0.0, 1.0)}, reset=None)
    assert len(task_problems(task, PENDULUM)) == 3


@pytest.mark.parametrize(
    "invalid_fields", [{"episode_s": 0.0}, {"colour": "red"}, {"reward": {"target": {}, "weights": {"angle": -1.0}}}]
)
def test_structural_errors_are_refused_on_conversion(invalid_fields: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**msgspec.to_builtins(SWINGUP), **invalid_fields}, Task)


@given(st.lists(st.tuples(*[st.floats(-50, 50) | st.just(math.nan)] * 2), min_size=1, max_size=9))
def test_the_batched_termination_equals_that_of_the_tick(observations: list[tuple[float, float]]) -> None:
    for task in (SWINGUP, changed_task(terminate={"velocity": (-20.0, 20.0), "angle": (-1.0, 9.0)})):
        is_terminal, are_terminal = compile_termination(task, PENDULUM), batched_termination(task, PENDULUM)
        assert are_terminal(np.array(observations)).tolist() == [is_terminal(o) for o in observations]


def test_folding_follows_the_rigs_order_of_observations() -> None:
    reordered = msgspec.structs.replace(PENDULUM, observations=PENDULUM.observations[::-1])
    assert isinstance(reordered.observations[0], Observation)
    assert compile_reward(SWINGUP, reordered)((-2.0, -math.pi), (0.0,)) == pytest.approx(-2.0)
