"""Vectorised twins: identical to single ones, in every autoreset mode, with plants that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import onrig
from onrig.learner.trials.worlds import NoSuchTask
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.log.reading import Part, StoredLoopState, read_log
from onrig.runtime.run_loading import load_resolved
from onrig.sim.identification.result import result_of, write_result
from onrig.sim.plants import Pendulum
from onrig.tools import cli
from onrig.tools.replaying.verification import Verification
from tests.sim.identification.test_result import identified
from tests.sim.twin.bench import RIG

N, STEPS = 5, 10
SETTINGS = ("task.episode_s=0.2", "task.start={angle: [-1, 1], velocity: 0}")
TRACKING_SETTINGS = (
    "task.targets={wanted: {kind: steps, low: -3, high: 3, every_s: 0.1}}",
    "task.reward={terms: {near: {kind: distance, observation: angle, weight: 1, target: wanted}}}",
    "task.normalization=null",
)
MODES = [*AutoresetMode]


def test_a_single_environment_of_the_vector_equals_the_lockstep_twin(tmp_path: Path) -> None:
    """Starts, targets and noise follow the seed, even one given in the middle of a run, and so does a replay."""
    settings = (*SETTINGS, *TRACKING_SETTINGS)
    vector_env = onrig.make_vec("pendulum", 3, overrides=settings)
    single_env = onrig.make("pendulum", overrides=(*settings, "checkpoint_s=3600"), run_dir=tmp_path / "run")
    rng = np.random.default_rng(2)
    expected = []
    for seed in (6, 70, 6):
        observations, _ = vector_env.reset(seed=seed - 1)
        observation, _ = single_env.reset(seed=seed)
        for _ in range(STEPS):
            np.testing.assert_allclose(observations[1], observation, atol=1e-6)
            expected.append(observation[-1])
            actions = rng.uniform(-1, 1, (3, 1)).astype(np.float32)
            observations, rewards, _, truncated, _ = vector_env.step(actions)
            observation, reward, _, is_truncated, _ = single_env.step(actions[1])
            assert rewards[1] == pytest.approx(reward, rel=1e-6)
            assert truncated[1] == is_truncated
    single_env.close()
    assert expected[:STEPS] == expected[2 * STEPS :] != expected[STEPS : 2 * STEPS]
    assert cli.main(["replay", str(tmp_path / "run")]) == ExitCode.OK
    assert first_replay_difference(tmp_path / "run") is None


def first_replay_difference(folder: Path) -> object:
    """Replay a log that was written so late that it holds only the position after each episode."""
    config = load_resolved(folder / "config.yaml")
    log_parts = list(read_log(folder, config.rig, inputs=config.input_names))
    parts: list[Part] = []
    numbered_from: object = None
    for part, next_part in zip(log_parts, [*log_parts[1:], None], strict=True):
        previous_number, numbered_from = (
            numbered_from,
            part.fields["numbered_from"] if isinstance(part, StoredLoopState) else numbered_from,
        )
        if previous_number in (None, numbered_from) or not isinstance(
            next_part, StoredLoopState
        ):  # the only one of its episode
            parts.append(part)
    verification = Verification(config, folder)
    verification.run(parts)
    return verification.comparison.first


@pytest.mark.parametrize("mode", MODES)
def test_a_finished_episode_restarts_according_to_the_autoreset_mode(mode: AutoresetMode) -> None:
    env = onrig.make_vec("pendulum", N, overrides=SETTINGS, autoreset_mode=mode)
    assert env.metadata["autoreset_mode"] is mode
    first_observation, _ = env.reset(seed=1)
    assert first_observation in env.observation_space
    unit_actions = np.ones((N, 1), np.float32)
    for k in range(STEPS):
        last_observation, rewards, terminated, truncated, info_by_env = env.step(unit_actions)
        assert (truncated == (k == STEPS - 1)).all()
        assert not terminated.any()
        assert (rewards < 0).all()
    if mode is AutoresetMode.SAME_STEP:
        assert info_by_env["_final_obs"].all()
        assert (info_by_env["final_obs"] != last_observation).any()
        last_before_reset = last_observation
    elif mode is AutoresetMode.NEXT_STEP:
        last_before_reset, rewards, _, truncated, _ = env.step(unit_actions)
        assert (rewards == 0).all()
        assert not truncated.any()
    else:
        with pytest.raises(RuntimeError, match="reset_mask"):
            env.step(unit_actions)
        mask = np.arange(N) > 0
        last_before_reset, _ = env.reset(options={"reset_mask": mask})
        np.testing.assert_array_equal(last_before_reset[0], last_observation[0])
        last_before_reset, _ = env.reset(options={"reset_mask": ~mask})
    assert not np.array_equal(last_before_reset, first_observation), "another draw of the start"
    reset_observation, _ = env.reset(seed=1)
    np.testing.assert_array_equal(reset_observation, first_observation)


def test_plants_differ_and_limits_apply_if_requested() -> None:
    lengths = np.linspace(0.02, 0.06, N)
    env = onrig.make_vec("pendulum", N, overrides=SETTINGS[:1], parameters={"length": lengths})
    env.reset()
    observations = [env.step(np.ones((N, 1), np.float32))[0] for _ in range(STEPS - 1)][-1]
    assert len(np.unique(observations[:, 0])) == N
    start = "task.start={angle: 1.0, velocity: 8.0}"
    shielded_env = onrig.make_vec("pendulum", 2, overrides=("task.episode_s=1", start), shield=True)
    shielded_env.reset()
    interventions = [shielded_env.step(np.ones((2, 1), np.float32))[4]["intervened"] for _ in range(50)]
    assert np.any(interventions)


def test_plants_are_drawn_from_the_identification(tmp_path: Path) -> None:
    result = result_of(identified(), Pendulum(), RIG, None, "a test")
    write_result(result, tmp_path / "identified.yaml")
    env = onrig.make_vec("pendulum", N, overrides=SETTINGS[:1], posterior=tmp_path / "identified.yaml")
    assert any(np.shape(getattr(env.plant, name)) == (N,) for name in env.plant.__struct_fields__)
    env.reset()
    observations = [env.step(np.ones((N, 1), np.float32))[0] for _ in range(STEPS - 1)][-1]
    assert len(np.unique(observations[:, 1])) > 1


def test_mistakes() -> None:
    env = onrig.make_vec("pendulum", 2)
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.step(np.zeros((2, 1)))
    with pytest.raises(ValueError, match="expected 2 numbers, got 3"):
        env.reset(seed=[1, 2, 3])
    env.reset()
    with pytest.raises(ValueError, match="non-finite"):
        env.step(np.full((2, 1), np.nan))
    with pytest.raises(ValueError, match="length"):
        onrig.make_vec("pendulum", 2, parameters={"length": -1.0})
    with pytest.raises(NoSuchTask, match="worlds have no cameras"):
        onrig.make_vec("pendulum-camera", 2)
    with pytest.raises(NoSuchTask, match="no twin"):
        onrig.make_vec("pendulum", 2, overrides=("device={port: {path: /dev/none}}",))


@pytest.mark.parametrize("resolution", [0.002, 2 * np.pi / 16384])
def test_the_space_covers_an_angle_that_is_rounded_beyond_half_a_turn(resolution: float) -> None:
    env: Any = onrig.make_vec("pendulum", 1, overrides=(f"rig.sensors[0].resolution={resolution}",))
    for angle in (-np.pi, np.pi):
        rounded_observation = np.array([round(angle / resolution) * resolution / np.pi, 0.0], np.float32)
        assert env.single_observation_space.contains(rounded_observation)
    assert isinstance(env.single_observation_space, gymnasium.spaces.Box)
    assert env.single_observation_space.high[0] < 1.0002
