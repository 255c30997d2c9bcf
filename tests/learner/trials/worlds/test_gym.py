from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import register, registry
from gymnasium.spaces import Box, Discrete

from onrig.learner.trials.worlds import NoSuchTask, Spaces, episode_returns
from onrig.learner.trials.worlds.gym import GymWorld
from onrig.runtime.random_streams import Role


class CountingEnv(gymnasium.Env[Any, Any]):
    """Observes its number of steps and a number from its seed; rewards the native action; over at ``end`` steps."""

    def __init__(self, end: int = 4, low: float = -3.0, high: float = 1.0) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = Box(np.float32(low), np.float32(high), (1,), np.float32)
        self._end, self._steps, self._seed_number = end, 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._seed_number = 0, float(self.np_random.random())
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.shape == (1,)
        self._steps += 1
        return self._observe(), float(action[0]), self._steps == self._end, False, {}

    def _observe(self) -> Any:
        return np.array([self._steps, self._seed_number])


TASK = "tests/Counting-v0"
if TASK not in registry:
    register(id=TASK, entry_point=lambda **options: CountingEnv(**options), max_episode_steps=6)


def _world(seeds: list[int], actors: int = 1, **options: object) -> GymWorld:
    horizon = options.pop("horizon", None)
    assert horizon is None or isinstance(horizon, int)
    return GymWorld(TASK, seeds, [Role.PLANT_TRAIN] * actors, horizon=horizon, options=options)


def test_actions_are_mapped_from_plus_minus_one_onto_the_box() -> None:
    world, everyone = _world([0, 1, 2, 3]), np.ones((4, 1), np.bool_)
    world.begin(everyone)
    result = world.step(np.array([-1.0, 0.0, 1.0, 7.0]).reshape(4, 1, 1), everyone)
    assert result.reward[:, 0].tolist() == [-3.0, -1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="non-finite"):
        world.step(np.full((4, 1, 1), np.nan), everyone)


def test_discrete_actions_may_start_at_any_number() -> None:
    world = GymWorld("tests/Odd-v0", [0, 0], [Role.PLANT_TRAIN], options={"action": Discrete(3, start=-1)})
    assert world._to_task_actions(np.array([[-1.0], [0.0], [1.0]])) == [-1, 0, 1]


def test_discrete_actions_are_levels() -> None:
    world = GymWorld("CartPole-v1", [0, 0], [Role.PLANT_TRAIN])
    assert world.spaces == Spaces(n=4, m=1, levels=2, horizon=500)
    everyone = np.ones((2, 1), np.bool_)
    world.begin(everyone)
    left_observation, right_observation = world.step(np.array([-1.0, 1.0]).reshape(2, 1, 1), everyone).observation[
        :, 0, 1
    ]
    assert left_observation < 0.0 < right_observation  # velocities


@pytest.mark.parametrize(
    ("horizon", "end", "ending"), [(None, 4, "terminated"), (None, 9, "truncated"), (4, 4, "both")]
)
def test_a_terminal_state_is_not_a_time_limit(horizon: int | None, end: int, ending: str) -> None:
    world, everyone = _world([5], horizon=horizon, end=end), np.ones((1, 1), np.bool_)
    world.begin(everyone)
    last_step = {"terminated": 4, "truncated": 6, "both": 4}[ending]
    for k in range(1, last_step + 1):
        result = world.step(np.zeros((1, 1, 1)), everyone)
        assert result.observation[0, 0, 0] == k  # including the last one: the state in which the episode ended
        assert result.terminated.any() == (k == last_step and ending != "truncated")
        assert result.truncated.any() == (k == last_step and ending == "truncated")
    assert world.begin(everyone)[0, 0, 0] == 0.0


def test_an_actors_environment_does_not_depend_on_the_others() -> None:
    joint, single = _world([3, 8], actors=2), _world([8], actors=2)
    everyone = joint.begin(np.ones((2, 2), np.bool_))
    # The other trial begins several episodes in between.
    for _ in range(3):
        joint.begin(np.array([[True, True], [False, False]]))
    single_observation = single.begin(np.ones((1, 2), np.bool_))
    assert (everyone[1] == single_observation[0]).all()
    assert single_observation[0, 0, 1] != single_observation[0, 1, 1]
    second_actor = np.array([[False, False], [False, True]])
    assert (joint.begin(second_actor)[1] == single.begin(second_actor[1:])[0]).all()
    assert len({float(v) for v in (single_observation[0, 1, 1], joint.begin(second_actor)[1, 1, 1])}) == 2


def test_actors_that_do_not_step_do_not_move() -> None:
    world = _world([0, 1])
    world.begin(np.ones((2, 1), np.bool_))
    result = world.step(np.ones((2, 1, 1)), np.array([[False], [True]]))
    assert result.observation[:, 0, 0].tolist() == [0.0, 1.0]
    assert result.reward[:, 0].tolist() == [0.0, 1.0]


def test_a_return_covers_one_episode_of_each_actor() -> None:
    world = _world([0, 1], actors=3)
    returns = episode_returns(world, (2, 3), lambda observation: np.ones((2, 3, 1)))
    assert (returns == 4.0).all()


class _UnsupportedEnv(gymnasium.Env[Any, Any]):
    def __init__(self, observation: Any = None, action: Any = None) -> None:
        self.observation_space = observation or Box(-1.0, 1.0, (2,))
        self.action_space = action or Box(-1.0, 1.0, (1,))


if "tests/Odd-v0" not in registry:
    register(id="tests/Odd-v0", entry_point=lambda **options: _UnsupportedEnv(**options), max_episode_steps=6)


def _spaces(task: str, horizon: int | None, options: dict[str, object]) -> Spaces:
    world = GymWorld(task, [0], [Role.PLANT_TRAIN], horizon=horizon, options=options)
    world.close()
    return world.spaces


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("Penduluum-v1", {}, "no task 'Penduluum-v1'.*Pendulum"),
        ("Pendulum-v7", {}, "no task 'Pendulum-v7'"),
        ("Pendulum-v1", {"nonsense": 1}, "cannot create 'Pendulum-v1': TypeError"),
        ("tests/Odd-v0", {"observation": Discrete(3)}, "expected a one-dimensional box"),
        ("tests/Odd-v0", {"action": Box(-np.inf, np.inf, (1,))}, "expected a bounded one-dimensional box"),
        ("tests/Odd-v0", {"action": Box(0, 3, (1,), np.int32)}, "expected a bounded one-dimensional box of floats"),
        ("tests/Odd-v0", {"action": Box(-1.0, 1.0, (0,))}, "2 observations and 0 actions"),
        ("tests/Odd-v0", {"observation": Box(-1.0, 1.0, (0,))}, "0 observations and 1 actions"),
    ],
)
def test_an_invalid_world_is_refused(task: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(NoSuchTask, match=message):
        _spaces(task, None, options)


def test_a_missing_task_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*_: object, **__: object) -> None:
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed")

    monkeypatch.setattr(gymnasium, "make", make)
    with pytest.raises(NoSuchTask, match=r"MuJoCo is not installed.*pip install 'onrig\[envs\]'"):
        _spaces("Hopper-v4", None, {})


def test_twins_can_be_used_as_tasks() -> None:
    assert _spaces("onrig/PendulumTwin-v0", None, {}) == Spaces(n=2, m=1, levels=None, horizon=200)


@pytest.mark.parametrize(
    ("task", "n", "m", "horizon"),
    [("InvertedDoublePendulum-v4", 11, 1, 200), ("LunarLanderContinuous-v3", 8, 2, 1000)],
)
def test_the_tasks_of_the_extra_are_available(task: str, n: int, m: int, horizon: int) -> None:
    for library in ("mujoco", "imageio") if task.startswith("Inverted") else ("Box2D",):
        pytest.importorskip(library)
    assert _spaces(task, horizon, {}) == Spaces(n, m, None, horizon)
