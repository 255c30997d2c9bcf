"""A task with targets and drawn starts: killed and resumed it ends like the undisturbed run; trials agree."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from onrig.learner.trials.worlds.plants import PlantOptions, PlantWorld
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.log.reading import read_log
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.random_streams import Role, device_seed
from onrig.runtime.record import Flag, Kind
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.episodes import read_rows
from onrig.runtime.starts import draw_start
from onrig.runtime.task import batched_reward
from onrig.runtime.tracking import EpisodeTargets
from onrig.sim.evaluation import evaluate
from onrig.tools import cli
from tests.lab.rig.run import Run
from tests.processes.power_cut import complete_run, last_episode, outcome_of

EPISODES = 6
SETTINGS = (
    "task.targets={angle_ref: {kind: steps, low: -3, high: 3, every_s: 0.2}, wave: {kind: sine, amplitude: 1, "
    "frequency_hz: 1}}",
    "task.start={angle: [-1, 1], velocity: 0}",
    "task.reward={terms: {near: {kind: distance, observation: angle, weight: 1, target: angle_ref}, "
    "with: {kind: expression, value: -abs(velocity - wave) - 0.1 * voltage ** 2}}}",
    "task.normalization=null",
    "task.terminations={far: {kind: expression, value: abs(angle - angle_ref) > 2}}",
    "task.episode_s=0.6",
    "learner.updates_per_episode=5",
    "checkpoint_s=1.2",
    "selection={strategy: 'TDE(1.0)[PER]', capacity: 100}",
    f"episodes={EPISODES}",
)


@pytest.fixture(scope="module")
def undisturbed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the undisturbed run."""
    return complete_run(tmp_path_factory.mktemp("tracking") / "whole", "pendulum", *SETTINGS)


def records_of(folder: Path, config: RunConfig) -> np.ndarray:
    records = np.concatenate([part for part in read_log(folder, config.rig) if isinstance(part, np.ndarray)])
    return np.asarray(records[records["kind"] != Kind.RESET])


def test_a_killed_run_ends_like_the_undisturbed_one(undisturbed_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    with Run(folder, "pendulum", *SETTINGS) as run:
        run.until(lambda: last_episode(folder) >= 3, "the kill")
        run.cut()
    complete_run(folder, "pendulum", resume=True)
    assert outcome_of(folder) == outcome_of(undisturbed_run)


def test_the_run_replays_without_differences(undisturbed_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", str(undisturbed_run)]) == ExitCode.OK
    assert re.search(r"ticks that differ +0\n", capsys.readouterr().out)


def test_each_record_holds_the_targets_of_its_step_and_each_episode_its_start(undisturbed_run: Path) -> None:
    config = load_resolved(undisturbed_run / "config.yaml")
    records, targets = (
        records_of(undisturbed_run, config),
        EpisodeTargets(config.task, config.rig, config.period_us, 30),
    )
    firsts = np.flatnonzero(records["flags"] & Flag.FIRST)
    assert len(firsts) == 2 * EPISODES
    for first, following in zip(firsts, [*firsts[1:], len(records)], strict=True):
        rows = records[first:following]
        kind, episode = Kind(int(rows["kind"][0])), int(rows["episode"][0])
        course = targets.values_for_kind(config.seed, kind, episode)[: len(rows)]
        assert rows["observation"][:, 2:].tolist() == course.astype(np.float32).tolist()
        role = Role.PLANT_TRAIN if kind is Kind.TRAIN else Role.PLANT_EVAL
        start = draw_start(config.task.all_starts, device_seed(config.seed, role, episode))
        assert rows["observation"][0, 0] == pytest.approx(start["angle"], abs=config.rig.sensors[0].resolution)
    ended = [row.steps for row in read_rows(undisturbed_run / "episodes.csv").rows]
    assert len(set(ended)) > 1, "some end by their target"


def test_a_trial_under_the_same_actions_has_the_same_observations_and_rewards(undisturbed_run: Path) -> None:
    config = load_resolved(undisturbed_run / "config.yaml")
    records = records_of(undisturbed_run, config)
    world = PlantWorld(config, [config.seed], [Role.PLANT_TRAIN, Role.PLANT_EVAL], options=PlantOptions(counts=True))
    rewards_of = batched_reward(config.task, config.rig)
    for episode in range(1, EPISODES + 1):
        of_episode = records[records["episode"] == episode]
        of_kind = [of_episode[of_episode["kind"] == kind] for kind in (Kind.TRAIN, Kind.EVAL)]
        world.begin(np.ones((1, 2), np.bool_))
        playing = np.ones((1, 2), np.bool_)
        for k in range(max(map(len, of_kind)) - 1):
            rows = [records[min(k, len(records) - 2)] for records in of_kind]
            actions = np.array([row["applied"] for row in rows], np.float64)[None] / config.rig.actuators[0].half_range
            playing = np.array([[k < len(records) - 1 for records in of_kind]])
            stepped = world.step(actions, playing)
            for e, (row, records_) in enumerate(zip(rows, of_kind, strict=True)):
                if not playing[0, e]:
                    continue
                seen = world._signals(world._state, world._step)[e].astype(np.float32)
                assert seen.tolist() == records_["observation"][k + 1].tolist()
                rewards = rewards_of(seen.astype(np.float64), row["applied"].astype(np.float64))
                assert rewards == row["reward"], "in the record's precision, bit for bit"
                assert stepped.reward[0, e] == pytest.approx(row["reward"], rel=1e-6)
                assert stepped.terminated[0, e] == bool(records_["flags"][k + 1] & Flag.TERMINATED)


def test_an_evaluated_policy_earns_what_it_earned_in_the_run(undisturbed_run: Path) -> None:
    config = load_resolved(undisturbed_run / "config.yaml")
    last = read_rows(undisturbed_run / "episodes.csv").rows[-1]
    assert (last.kind, last.episode) == ("eval", EPISODES)
    policy = PolicySession((undisturbed_run / "policies" / f"{last.policy_id}.onnx").read_bytes())
    rows = [*evaluate(config, policy, last.policy_id, EPISODES, config.seed)]
    assert rows[-1].steps == last.steps
    assert rows[-1].reward_sum == pytest.approx(last.reward_sum, rel=1e-12)
    others = [*evaluate(config, policy, last.policy_id, EPISODES, config.seed + 1)]
    assert others[-1].reward_sum != rows[-1].reward_sum, "another seed, other targets"
