from __future__ import annotations

from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium.envs.registration import register, registry
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.learner.algorithm_config import Image
from onrig.learner.trials.engine import world_trials
from onrig.learner.trials.step_run import StepRun, step_problems
from onrig.learner.trials.supported import memory_problems, space_problems, world_problems
from onrig.learner.trials.worlds import NoSuchTask, Spaces
from onrig.learner.trials.worlds.frames import FrameStack, FrameStore
from onrig.learner.trials.worlds.gym import GymWorld
from onrig.runtime.random_streams import Role

SIDE = 10


class DotEnv(gymnasium.Env[Any, Any]):
    """A bright dot on a line of pixels, moved left or right; rewarded in the middle; over after ``end`` steps."""

    def __init__(
        self,
        episode_steps: int = 6,
        shape: tuple[int, ...] = (SIDE, SIDE),
        dtype: Any = np.uint8,
        continuous: bool = False,
    ) -> None:
        self.observation_space = Box(0, 255, shape, dtype)
        self.action_space = Box(0.0, 1.0, (1,)) if continuous else Discrete(2)
        self._end, self._steps, self._position = episode_steps, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._position = 0, int(self.np_random.integers(SIDE))
        return self._render_frame(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._position = int(np.clip(self._position + 2 * np.round(action).sum() - 1, 0, SIDE - 1))
        return self._render_frame(), float(self._position == SIDE // 2), self._steps == self._end, False, {}

    def _render_frame(self) -> Any:
        image = np.zeros((SIDE, SIDE), np.uint8)
        image[4, self._position], image[0, 0] = 255, self._steps + 1
        return image


TASK = "tests/Dot-v0"
if TASK not in registry:
    register(id=TASK, entry_point=lambda **options: DotEnv(**options), max_episode_steps=8)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), capacity=st.integers(1, 60), stack=st.integers(1, 4), ordered=st.booleans())
def test_a_frame_is_kept_as_long_as_an_experience_or_an_episode_uses_it(
    seed: int, capacity: int, stack: int, ordered: bool
) -> None:
    rng, episodes = np.random.default_rng(seed), 2
    store = FrameStore(8, (capacity + episodes) * (stack + 1), first_sweep_size=5)
    last_frames = FrameStack(store, episodes, stack)
    memory, expected_frames = np.zeros((capacity, stack + 1), np.float32), np.zeros((capacity, stack + 1, 8), np.uint8)
    store.references.append(lambda: memory)
    expected_stack = np.zeros((episodes, stack, 8), np.uint8)
    for step in range(200):
        numbers_before, stack_before = last_frames.numbers.copy(), expected_stack.copy()
        last_frames.make_room()
        for episode in range(episodes):
            is_first = step == 0 or rng.random() < 0.1
            frame = np.frombuffer(np.int64(2 * step + episode + 1).tobytes(), np.uint8)
            last_frames.push(episode, frame.reshape(2, 4), is_first=is_first)
            expected_stack[episode, :-1] = 0 if is_first else expected_stack[episode, 1:]
            expected_stack[episode, -1] = frame
            slot = step % capacity if ordered else rng.integers(capacity)
            memory[slot] = (*numbers_before[episode], last_frames.numbers[episode, -1])
            expected_frames[slot] = np.concatenate((stack_before[episode], frame[None]))
        np.testing.assert_array_equal(store.read(last_frames.numbers), expected_stack)
        np.testing.assert_array_equal(store.read(memory), expected_frames)
    n_used = len(np.unique(np.concatenate((memory.reshape(-1), last_frames.numbers.reshape(-1)))))
    assert store.n_stored <= 1.25 * max(n_used, capacity + stack * episodes + 2) + 8 or not ordered


def test_more_frames_than_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 13421772"):
        FrameStore(4, 20_000_000)


def test_an_observation_consists_of_the_last_frames_and_is_blank_before_the_first() -> None:
    store = FrameStore(SIDE * SIDE, 100)
    world = GymWorld(TASK, [0, 1], [Role.PLANT_TRAIN], image=Image((SIDE, SIDE), 3), store=store)
    everyone = np.ones((2, 1), np.bool_)
    assert world.spaces == Spaces(3, 1, 2, 8, (SIDE, SIDE))

    def steps(numbers: Any) -> list[list[int]]:
        return [[int(image[0]) for image in store.read(numbers[trial, 0])] for trial in range(2)]

    assert steps(world.begin(everyone)) == [[0, 0, 1]] * 2
    assert steps(world.step(np.ones((2, 1, 1)), everyone).observation) == [[0, 1, 2]] * 2
    single_step = world.step(np.ones((2, 1, 1)), np.array([[True], [False]]))
    assert steps(single_step.observation) == [[1, 2, 3], [0, 1, 2]]
    assert steps(world.begin(np.array([[True], [False]]))) == [[0, 0, 1], [0, 1, 2]]


def _run(strategy: str = "FIFO[PropPER+IS]", **changes: Any) -> StepRun:
    images = {"size": [SIDE, SIDE], "frames": 2, "convolutions": [[4, 3, 2], [6, 2, 1]]}
    rainbow: dict[str, Any] = {"images": images, "hidden": [12], "levels": 2}
    rainbow |= {"atoms": 11, "returns": [-2, 5], "n_steps": 3, "batch": 4, "reward_scale": 1.0, "target_every": 20}
    learner = {"algorithm": "rainbow", "rainbow": rainbow | changes.pop("rainbow", {})}
    learner["ners"] = {"hidden": [8, 4], "score": [4], "embedding": [8, 3], "sample": 16}
    data = {"world": f"gym:{TASK}", "steps": 80, "random_steps": 20, "evaluation": {"every": 40, "episodes": 2}}
    data |= {"selection": {"strategy": strategy, "capacity": 30}, "learner": learner}
    return msgspec.convert(data | changes, StepRun)


@pytest.mark.parametrize("strategy", ["FIFO[PropPER+IS]", "Resv[Uniform]", "FIFO[ERO]", "FIFO[NERS]"])
def test_a_trial_with_images_is_the_same_alone_and_among_others(strategy: str) -> None:
    joint, single = world_trials(_run(strategy), [5, 6]), world_trials(_run(strategy), [6])
    for _ in range(2):
        scores = joint.advance(), single.advance()
        assert scores[0].evaluation[1] == scores[1].evaluation[0]
        assert np.isfinite(scores[1].evaluation).all()
    states = joint.algorithm.state(), single.algorithm.state()
    assert (states[0]["network/weight0"][1] == states[1]["network/weight0"][0]).all()
    assert joint.algorithm.updates == 60


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_trials_with_continuous_actions_learn_from_images(name: str) -> None:
    images = {"size": [SIDE, SIDE], "frames": 2, "convolutions": [[4, 3, 2]]}
    learner = {"algorithm": name, name: {"images": images, "hidden": [8], "batch": 4}}
    run = _run("FIFO[Uniform]", learner=learner, options={"continuous": True})
    assert not world_problems(run)
    joint, single = world_trials(run, [5, 6]), world_trials(run, [6])
    for _ in range(2):
        scores = joint.advance(), single.advance()
        assert scores[0].evaluation[1] == scores[1].evaluation[0]
    assert joint.algorithm.updates == 60
    (problem,) = world_problems(_run(learner={"algorithm": "ddpg"}, options={"continuous": True}))
    assert "which ddpg does not expect: use redq, sac, td3 with images.size [10, 10]" in problem[1]


def test_images_and_incompatible_algorithms_are_refused() -> None:
    assert not world_problems(_run())
    (size_problem,) = world_problems(_run(rainbow={"images": {"size": [SIDE, SIDE + 1]}}))
    assert size_problem == (
        "learner.rainbow.images.size",
        f"'{TASK}' has images of 10 by 10, expected images of 10 by 11",
    )
    (missing_problem,) = world_problems(_run(rainbow={"images": None}))
    assert missing_problem[0] == "learner.algorithm"
    assert "use rainbow with images.size [10, 10]" in missing_problem[1]
    (vector,) = world_problems(_run(world="gym:CartPole-v1"))
    assert vector == ("learner.rainbow.images.size", "'CartPole-v1' has no images, expected images of 10 by 10")
    wide_images = {"images": {"size": [SIDE, SIDE], "convolutions": [[4, 3, 2], [6, 5, 1]]}}
    (convolution_problem,) = [p for p in step_problems(_run(rainbow=wide_images)) if "convolutions" in p[0]]
    assert convolution_problem == (
        "learner.rainbow.images.convolutions.1",
        "a filter of 5 pixels exceeds its inputs of 4 by 4",
    )
    with pytest.raises(NoSuchTask, match=r"images of one channel \(uint8\)"):
        GymWorld(TASK, [0], [Role.PLANT_TRAIN], options={"shape": (4, 4, 3)})
    assert list(space_problems(_run(), world_trials(_run(), [0])._world.spaces)) == []


def test_the_bytes_of_frames_count_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onrig.learner.trials.supported.machine_bytes", lambda: 30 * SIDE * SIDE)
    spaces = world_trials(_run(), [0])._world.spaces
    ((path, _),) = memory_problems(_run(), spaces)
    assert path == "selection.capacity"


def test_a_game_continues_after_a_lost_life() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    world = GymWorld("BreakoutNoFrameskip-v4", [0], [Role.PLANT_TRAIN, Role.PLANT_EVAL], image=Image((84, 84), 4))
    all_actors, rng = np.ones((1, 2), np.bool_), np.random.default_rng(0)
    world.begin(all_actors)
    n_over = np.zeros(2, np.int64)
    for _ in range(400):
        result = world.step(np.clip(rng.choice([-1.0, -1 / 3, 1 / 3, 1.0], (1, 2, 1)), -1, 1), all_actors)
        assert (np.abs(result.reward[0, :1]) <= 1.0).all()
        n_over += result.terminated[0]
        if result.terminated.any():
            world.begin(result.terminated)
    assert n_over[0] >= 2 * n_over[1] > 0  # five lives
