"""The environment on the lockstep twin: its episodes, its spaces, its run folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from msgspec.structs import replace

import onrig
from onrig.runtime.config.document import shipped_names
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.log.reading import read_log
from onrig.runtime.record import Flag
from onrig.runtime.run_checks import findings
from onrig.runtime.run_config import Scaled
from onrig.runtime.run_loading import load_resolved, save_resolved
from onrig.runtime.shm.exchange import Sample
from onrig.sim.plants import Pendulum
from onrig.sim.twin.rendering import TwinCameras
from onrig.tools import cli
from onrig.tools.load import load
from onrig.tools.trainers.environment import RigEnv
from onrig.tools.trainers.rig import RigProcess, RunEnded, history_up_to
from tests.lab.rig.processes import PATIENCE_S
from tests.lab.rig.run import Run
from tests.runtime.samples import records
from tests.sim.barrier.beam import with_table

SETTINGS = ("task.episode_s=0.4", "checkpoint_s=3600")
STEPS = 20
COMPARED_COLUMNS = (
    "observation",
    "explored",
    "commanded",
    "command",
    "applied",
    "reward",
    "rule",
    "margin",
    "sensors",
    "frame",
)


@pytest.fixture
def env(tmp_path: Path) -> Iterator[RigEnv]:
    env = onrig.make("pendulum", overrides=SETTINGS, run_dir=tmp_path / "run")
    yield env
    env.close()


def read_steps(folder: Path) -> np.ndarray:
    config = load_resolved(folder / "config.yaml")
    return np.concatenate([part for part in read_log(folder, config.rig) if isinstance(part, np.ndarray)])


def play_episode(env: RigEnv, action: float, seed: int | None = None) -> list[object]:
    """Everything returned by an episode."""
    observation, _ = env.reset(seed=seed)
    episode_values: list[object] = [observation.tolist()]
    is_over = False
    while not is_over:
        observation, reward, terminated, truncated, _ = env.step(np.array([action], np.float32))
        episode_values.append((observation.tolist(), reward))
        is_over = terminated or truncated
    return episode_values


def test_a_complete_episode_and_a_truncated_one_are_in_the_run_folder(env: RigEnv) -> None:
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.step(np.zeros(1, np.float32))
    assert len(play_episode(env, 0.5)) == STEPS + 1
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.step(np.zeros(1, np.float32))
    env.reset()
    _, reward, terminated, truncated, info = env.step(np.ones(1, np.float32))
    assert not terminated
    assert not truncated
    assert (info["proposed"], info["filtered"], info["applied"]) == (3.0, 3.0, 3.0)
    assert (info["rule"], info["held"], info["periods"]) == ("none", False, 1)
    assert info["times"] == {"device_us": 20_000}
    assert reward < 0
    env.reset()
    env.close()
    assert env.run_dir is not None
    steps = read_steps(env.run_dir)
    last_steps = steps[(steps["flags"] & Flag.NO_ACTION) != 0]
    assert last_steps["episode"].tolist() == [1, 2, 3]
    assert (last_steps["flags"] & Flag.TRUNCATED != 0).all()
    assert cli.main(["replay", str(env.run_dir)]) == 0


def test_a_late_step_is_assembled_from_the_ring_and_its_sample() -> None:
    rows = records(12, tick=30)
    for periods in (2, 5):
        history = history_up_to(rows[-4:-2], rows[:-2], periods)
        assert history["tick"].tolist() == list(range(39 - periods, 40))


def test_a_seed_repeats_an_episode_and_those_after_it(env: RigEnv) -> None:
    first_episodes = [play_episode(env, 0.4, seed=7), play_episode(env, 0.4)]
    repeated_episodes = [play_episode(env, 0.4, seed=7), play_episode(env, 0.4)]
    assert first_episodes == repeated_episodes


def test_the_same_actions_give_the_same_bits_as_a_run(tmp_path: Path) -> None:
    settings = (*SETTINGS, "seed=11", "task.start={angle: [-1, 1], velocity: 0}")
    with Run(tmp_path / "run", "pendulum", *settings, "episodes=2", "evaluate_every=0") as run:
        assert run.ended(PATIENCE_S) == 0
    run_steps = read_steps(tmp_path / "run")
    assert len(np.unique(run_steps[run_steps["flags"] & Flag.FIRST != 0]["observation"])) > 1, "starts are drawn"
    env = onrig.make("pendulum", overrides=settings, run_dir=tmp_path / "env", si=True)
    for record in run_steps:
        if record["flags"] & Flag.FIRST:
            observation, _ = env.reset(seed=11 if record["episode"] == 1 else None)
        np.testing.assert_array_equal(observation, record["observation"])
        if not record["flags"] & Flag.NO_ACTION:
            observation, reward, *_ = env.step(record["explored"])
            assert reward == record["reward"]
    env.close()
    env_steps = read_steps(tmp_path / "env")
    for column in COMPARED_COLUMNS:
        np.testing.assert_array_equal(env_steps[column], run_steps[column], err_msg=column)


def test_gymnasium_reports_no_problem_and_recreates_it_from_its_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = onrig.make("pendulum", overrides=SETTINGS)
    assert env.spec is not None
    assert env.config_hash in env.spec.id
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(render|close|unwrapped).*")
        check_env(env, skip_render_check=True)
    env.close()
    remade = gymnasium.make(env.spec)
    assert isinstance(remade.unwrapped, RigEnv)
    assert remade.unwrapped.config_hash == env.config_hash
    remade.close()


def test_gymnasium_reports_no_problem_in_real_time(tmp_path: Path) -> None:
    settings = ("realtime.priority=0", "realtime.lock_memory=false", "rig.lease_periods=255", "limits.predicted=null")
    env = onrig.make("pendulum", pace=0.5, overrides=(*SETTINGS, *settings), run_dir=tmp_path / "run")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(render|close|unwrapped).*")
        check_env(env, skip_render_check=True)
    if find_spec("stable_baselines3") is not None:
        from stable_baselines3.common.env_checker import check_env as check_env_of_sb3

        check_env_of_sb3(env)
    _, info = env.reset()
    _, _, _, _, info = env.step(np.zeros(1, np.float32))
    assert info["times"]["acted_ns"] < info["times"]["received_ns"]
    env.close()


def test_stable_baselines_reports_no_problem(env: RigEnv) -> None:
    env_checker = pytest.importorskip("stable_baselines3.common.env_checker")
    env_checker.check_env(env, warn=True)


def test_renders_of_the_rig(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    env = onrig.make("pendulum", overrides=SETTINGS, run_dir=tmp_path / "run", render_mode="rgb_array")
    env.reset()
    image_before = env.render()
    for _ in range(STEPS - 1):
        env.step(np.ones(1, np.float32))
    image_after = env.render()
    env.close()
    assert image_before.shape == image_after.shape
    assert image_before.dtype == np.uint8
    assert (image_before != image_after).any()


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_run_is_an_environment(name: str) -> None:
    env = onrig.make(name, pace="lockstep")
    assert env.observation_space.shape == ((2, 32, 32) if env.config.cameras else (len(env.config.signals),))
    assert env.config.exploration.budgets == load(name).exploration.budgets


@pytest.mark.parametrize("pace", [4, 4.0, "4"])
def test_a_number_is_a_multiple_of_real_time(pace: str | float) -> None:
    assert onrig.make("pendulum", pace=pace).config.device.pace == Scaled(4.0)


def test_images_are_observations_as_the_twin_renders_them(tmp_path: Path) -> None:
    env = onrig.make("pendulum-camera", overrides=("task.episode_s=0.1",), run_dir=tmp_path / "run")
    first_observation, _ = env.reset(seed=1)
    second_observation, *_ = env.step(np.ones(1, np.float32))
    env.close()
    assert env.observation_space.contains(first_observation)
    assert env.observation_space.contains(second_observation)
    (image,) = TwinCameras(env.config.cameras).render(Pendulum(), (0.0, 0.0))
    assert first_observation[0].tobytes() == first_observation[1].tobytes() == second_observation[1].tobytes() == image
    with pytest.raises(ConfigError, match=r"images of one size, or contain no images, at task\.inputs"):
        onrig.make("pendulum-camera", overrides=("task.inputs=[{observation: front}, {observation: angle}]",))


def test_mistakes_are_found_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.episode_s"):
        onrig.make("pendulum", overrides=("task.episode_s=-1",))
    with pytest.raises(ValueError, match="render_mode"):
        onrig.make("pendulum", render_mode="ascii")
    env_without_device = onrig.make(
        "pendulum", device=str(tmp_path / "none"), pace="realtime", run_dir=tmp_path / "run"
    )
    with pytest.raises(RunEnded, match="none"):
        env_without_device.reset()
    env_without_device.close()


@pytest.mark.parametrize("n_failures", [2, 3])
def test_an_episode_that_ends_at_its_first_sample_is_begun_again(
    env: RigEnv, monkeypatch: pytest.MonkeyPatch, n_failures: int
) -> None:
    seeds, begin = [], RigProcess.begin

    def begin_in_vain(rig: RigProcess, seed: int | None, timeout_s: float) -> Sample:
        seeds.append(seed)
        return begin(rig, seed, timeout_s)._replace(is_over=len(seeds) <= n_failures)

    monkeypatch.setattr(RigProcess, "begin", begin_in_vain)
    if n_failures == 3:
        with pytest.raises(RunEnded, match="3 episodes in a row ended at their first sample: see "):
            env.reset(seed=5)
    else:
        _, info = env.reset(seed=5)
        assert info["step"] == 0
        assert not env.step(np.zeros(1, np.float32))[3]
    assert seeds == [5, 5, 5]


def test_its_folder_holds_what_a_run_starts_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_table(tmp_path)
    env = onrig.make(tmp_path / "beam.yaml", overrides=("local_learner=false",), run_dir=tmp_path / "run")

    def start(*arguments: object) -> None:
        raise RunEnded("not started in this test")

    monkeypatch.setattr("onrig.tools.trainers.environment.RigProcess", start)
    with pytest.raises(RunEnded):
        env.reset()
    assert [path.suffix for path in (tmp_path / "run" / "start").iterdir()] == [".barrier"]


def test_onrig_run_refuses_a_run_in_which_a_program_acts(
    env: RigEnv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_resolved(env.config, tmp_path / "run.yaml")
    assert cli.main(["run", str(tmp_path / "run.yaml"), "--run-dir", str(tmp_path / "other")]) == ExitCode.CONFIGURATION
    assert "onrig.make" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    conflicting_config = replace(env.config, local_learner=True, evaluate_every=1, policy="first.onnx")
    assert [path for path, _ in findings(conflicting_config)] == [("local_learner",), ("evaluate_every",), ("policy",)]
