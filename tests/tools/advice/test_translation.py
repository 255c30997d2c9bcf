"""A run as trials in the world of its plant."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from onrig.learner.settings import learner_settings
from onrig.learner.trials.engine import run_trials, world_trials
from onrig.learner.trials.step_run import StepRun, step_problems
from onrig.tools.advice.plants import draw_plants
from onrig.tools.advice.translation import MAX_EVALUATIONS, Untranslatable, to_trial
from onrig.tools.load import load

SHORT = ["episodes=4", "task.episode_s=0.4", "limits={}"]
CASES: dict[str, list[str]] = {
    "ddpg, as shipped": ["learner.updates_per_episode=3", "exploration.amplitude=[[1, 1.0], [3, 0.2]]"],
    "ddpg, quiet": ["learner.updates_per_episode=3", "exploration.quiet={every: 2}"],
    "td3": ["learner={algorithm: td3, td3: {hidden: [4], batch: 4}, updates_per_episode: 3}"],
    "sac": [
        "learner={algorithm: sac, sac: {hidden: [4], batch: 4}, updates_per_episode: 3}",
        "exploration={process: own}",
    ],
    "vracer, falling": [
        "learner={algorithm: vracer, vracer: {hidden: [4], batch: 4}, refer: {}, updates_per_episode: 3}",
        "exploration={process: own, friction: 0.15, amplitude: [[1, 1.0], [4, 0.1]]}",
    ],
    "dqn": [
        "learner={algorithm: dqn, dqn: {levels: 5, batch: 4}, updates_per_episode: 3}",
        "exploration={process: epsilon_greedy, levels: 5}",
    ],
}


def train_returns(run: StepRun, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Training and evaluation returns (P, S)."""
    trials = world_trials(run, seeds)
    scores = [trials.advance() for _ in range(run.points)]
    trials.close()
    return np.array([s.train for s in scores]), np.array([s.evaluation for s in scores])


@pytest.mark.parametrize("case", CASES)
def test_trials_in_the_world_learn_like_trials_of_the_run(case: str) -> None:
    config = load("pendulum", [*SHORT, *CASES[case]])
    run = to_trial(config, "pendulum", {"set": {"task.episode_s": 0.4, "limits": {}}})
    unshielded = msgspec.structs.replace(run, options={**run.options, "shield": False, "counts": False})
    trials = run_trials(config, learner_settings(config.learner), [3, 7])
    first_returns = [trials.advance().train for _ in range(4)]
    assert train_returns(unshielded, [3, 7])[0] / 20 == pytest.approx(np.array(first_returns), rel=1e-9)


def test_a_trial_has_the_plant_of_its_seed_and_the_same_bits_alone() -> None:
    config = load("pendulum", ["episodes=2", "task.episode_s=0.4", *CASES["vracer, falling"]])
    plants = draw_plants(config, None).values
    run = to_trial(config, "pendulum", {"set": {"task.episode_s": 0.4}, "plants": plants})
    assert run.options["shield"] is True
    joint_returns = train_returns(run, [0, 1, 65])
    for column, seed in enumerate([0, 1, 65]):
        single_returns = train_returns(run, [seed])
        assert [returns[:, 0].tolist() for returns in single_returns] == [
            returns[:, column].tolist() for returns in joint_returns
        ]
    first_plants = {name: values[:1] for name, values in plants.items()}
    other = train_returns(msgspec.structs.replace(run, options={**run.options, "plants": first_plants}), [0, 1])
    assert (other[1][:, 0] == joint_returns[1][:, 0]).all()
    assert (other[1][:, 1] != joint_returns[1][:, 1]).all()


def test_a_long_run_has_no_more_evaluations_than_a_curve_needs() -> None:
    run = to_trial(load("pendulum", ["episodes=507"]), "pendulum", {})
    assert run.evaluation.every == 11 * 200
    assert run.points == 46 <= MAX_EVALUATIONS
    assert not list(step_problems(run))


def test_an_update_ratio_that_does_not_divide_the_steps_is_kept_exactly() -> None:
    config = load("pendulum", ["task.episode_s=0.98", "learner.updates_per_episode=1"])
    run = to_trial(config, "pendulum", {"set": {"task.episode_s": 0.98}})
    assert (run.updates, run.update_every) == (1, 49)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["selection.synthetic={states: 0.1}"], r"does not support this setting: omit it at selection.synthetic"),
        (["exploration={process: parameter}"], r"exploration in trials depends only on the number of the episode"),
        (["exploration.over=steps"], r"exploration in trials depends only on the number of the episode"),
        (
            ["learner={algorithm: ppo, ppo: {steps: 200, batch: 20}}", "exploration={process: own, friction: 0.5}"],
            r"trials of ppo explore with the policy's own noise",
        ),
    ],
)
def test_settings_unsupported_in_trials_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(Untranslatable, match=message):
        to_trial(load("pendulum", settings), "pendulum", {})


def test_gates_and_budgets_are_left_to_the_rig() -> None:
    gate_settings = ["exploration.near_envelope={from: 0.3}", "exploration.budgets={session: {trips: 3}}"]
    assert to_trial(load("pendulum", gate_settings), "pendulum", {}) == to_trial(load("pendulum"), "pendulum", {})
