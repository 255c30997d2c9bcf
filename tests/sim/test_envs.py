from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from onrig.runtime.scoring import normalized
from onrig.runtime.targets import Sine, Steps
from onrig.sim.envs import TwinEnv, register_envs
from onrig.tools.load import load

IDS = ["onrig/PendulumTwin-v0", "onrig/MagmanTwin-v0"]
PENDULUM = {"plant": {"kind": "pendulum"}}


def make(id_: str, **kwargs: Any) -> TwinEnv:
    env = gymnasium.make(id_, **kwargs).unwrapped
    assert isinstance(env, TwinEnv)
    return env


@pytest.mark.parametrize("id_", IDS)
def test_gymnasium_reports_no_problems(id_: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(id_))


@pytest.mark.parametrize("id_", IDS)
def test_a_noisy_environment_is_also_reproducible(id_: str) -> None:
    kind = "pendulum" if "Pendulum" in id_ else "magman"
    check_env(make(id_, twin={"plant": {"kind": kind}, "sensor_noise": 0.02, "actuator_noise": 0.02}))


def test_the_module_prefix_registers_the_environments() -> None:
    program = "import gymnasium; print(gymnasium.make('onrig.sim.envs:onrig/PendulumTwin-v0').spec.id)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "onrig/PendulumTwin-v0"


def test_registering_twice_is_silent() -> None:
    register_envs()


@pytest.mark.parametrize(("rate_hz", "steps"), [(50.0, 200), (100.0, 400)])
def test_an_episode_is_truncated_after_exactly_its_steps_and_never_terminated(rate_hz: float, steps: int) -> None:
    env = make(IDS[0], rate_hz=rate_hz)
    env.reset(seed=0)
    ends = [env.step(np.zeros(1, np.float32))[2:4] for _ in range(steps)]
    assert ends == [(False, False)] * (steps - 1) + [(False, True)]


def test_observations_and_actions_are_normalised_by_the_rig() -> None:
    env = make(IDS[0])
    observation, _ = env.reset(seed=0)
    assert observation.dtype == np.float32
    assert observation.tolist() == [0.0, 0.0]
    observation, _, _, _, info = env.step(np.array([0.5], np.float32))
    assert info["applied"] == pytest.approx([1.5])
    assert observation == pytest.approx(info["observation"] / [np.pi, 30.0], rel=1e-6)


def test_squared_currents_span_their_range() -> None:
    env = make(IDS[1])
    env.reset(seed=0)
    info = env.step(np.array([-1.0, 0.0, 1.0, 5.0], np.float32))[4]
    assert info["applied"] == pytest.approx([0.0, 0.3, 0.6, 0.6])


def test_doing_nothing_earns_the_raw_reward_of_hanging_down() -> None:
    env = make(IDS[0])
    env.reset(seed=0)
    reward = env.step(np.zeros(1, np.float32))[1]
    assert reward == pytest.approx(-50 * np.pi)
    assert normalized(env.task, reward, 1) == pytest.approx(0.0533, abs=1e-3)


def test_the_terms_of_a_task_are_part_of_its_reward() -> None:
    run = load("pendulum", ("task.reward={terms: {far: {kind: expression, value: -abs(angle) - voltage}}}",))
    env = TwinEnv(run.rig, run.task, PENDULUM, reward_scale=0.5)
    env.reset(seed=0)
    _, reward, _, _, info = env.step(np.ones(1, np.float32))
    assert reward == pytest.approx(-0.5 * (abs(info["observation"][0]) + 3.0))


def test_a_task_with_bounds_terminates() -> None:
    env = make(IDS[0])
    task = env.task
    bounded = type(task)(
        name="gentle",
        episode_s=task.episode_s,
        start=task.start,
        reward=task.reward,
        normalization=task.normalization,
        terminate={"velocity": (-1.0, 1.0)},
    )
    env = make(IDS[0], task=bounded)
    env.reset(seed=0)
    ends = [env.step(np.ones(1, np.float32))[2:4] for _ in range(20)]
    assert (True, False) in ends
    assert ends[0] == (False, False)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_action_that_is_not_finite_is_refused(bad: float) -> None:
    env = make(IDS[0])
    env.reset(seed=0)
    with pytest.raises(ValueError, match="non-finite"):
        env.step(np.array([bad], np.float32))


def test_a_diverging_plant_raises_an_error_instead_of_returning_zeros() -> None:
    env = make(IDS[0], twin={"plant": {"kind": "pendulum", "resistance": 1e-4}})
    env.reset(seed=0)

    def until_it_does() -> None:
        for _ in range(200):
            env.step(np.ones(1, np.float32))

    for _ in range(2):
        with pytest.raises(RuntimeError, match="diverged"):
            until_it_does()
        observation, _ = env.reset(seed=1)
        assert np.isfinite(observation).all()


def test_stepping_before_the_first_reset_is_refused() -> None:
    with pytest.raises(RuntimeError, match="reset"):
        TwinEnv("pendulum", "swingup", PENDULUM).step(np.zeros(1, np.float32))


def test_a_task_of_another_rig_is_refused() -> None:
    with pytest.raises(ValueError, match=r"start\.position"):
        TwinEnv("pendulum", "positioning", PENDULUM)


@pytest.mark.parametrize("rate_hz", [0.0, -50.0, 1e9, float("nan")])
def test_an_impossible_rate_is_refused(rate_hz: float) -> None:
    with pytest.raises(ValueError, match=r"rate|CONFIGURE"):
        TwinEnv("pendulum", "swingup", PENDULUM, rate_hz=rate_hz)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(FileNotFoundError, match="magman, pendulum"):
        TwinEnv("pendulm", "swingup", PENDULUM)


def test_rig_and_task_may_be_files(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "configs"
    rig = tmp_path / "bench.yaml"
    text = (folder / "rigs" / "pendulum.yaml").read_text()
    rig.write_text(text.replace("name: pendulum\n", "name: bench\nprevious_command: true\n"))
    env = TwinEnv(rig, folder / "tasks" / "swingup.yaml", PENDULUM)
    assert env.rig.name == "bench"
    env.reset(seed=0)
    observation = env.step(np.array([0.5], np.float32))[0]
    assert observation[2] == pytest.approx(0.5)
    assert env.observation_space.contains(observation)


def test_an_environment_shows_the_inputs_of_the_tasks_policies() -> None:
    env = TwinEnv("pendulum", "swingup-hidden", PENDULUM)
    assert env.observation_space.shape == (4,)
    first, info = env.reset(seed=0)
    assert first.tolist() == [1.0, 0.0, 1.0, 0.0]
    before = first
    for _ in range(3):
        seen, _, _, _, info = env.step(np.ones(1, np.float32))
        angle = info["observation"][0]
        np.testing.assert_allclose(seen, [np.cos(angle), np.sin(angle), *before[:2]], atol=1e-7)
        before = seen


def test_a_seed_determines_the_start_and_the_targets_of_an_episode() -> None:
    task = msgspec.structs.replace(
        make(IDS[0]).task,
        start={"angle": (-0.5, 0.5), "velocity": 0.0},
        targets={"ref": Steps(low=-1.0, high=1.0, every_s=0.1), "wave": Sine(amplitude=2.0, frequency_hz=1.0)},
    )
    env = make(IDS[0], task=task)
    assert env.observation_space.shape == (4,)

    def episode(seed: int) -> list[list[float]]:
        seen = [env.reset(seed=seed)[1]["observation"]]
        seen += [env.step(np.zeros(1, np.float32))[4]["observation"] for _ in range(env.episode_steps)]
        rows: list[list[float]] = np.array(seen)[:, [0, 2, 3]].tolist()
        return rows

    first, second, again = episode(1), episode(2), episode(1)
    assert first == again
    assert all(a != b for a, b in zip(first[0], second[0], strict=True))
    assert len({row[1] for row in first}) == 41, "a level for every tenth of four seconds, and the one after them"
