"""Trials that learn from batches of their own policies."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import numpy as np
import pytest

from onrig.learner.algorithms.on_policy import PolicyBatch
from onrig.learner.trials.engine import world_trials
from onrig.learner.trials.learning import OnPolicyLearning, Replay
from onrig.learner.trials.step_run import StepRun, step_problems

PPO_SETTINGS: dict[str, Any] = {
    "algorithm": "ppo",
    "ppo": {"hidden": [8, 8], "steps": 32, "batch": 8, "epochs": 2, "depth": 2, "draw": "uniform", "actors": 2},
}
TRPO_SETTINGS: dict[str, Any] = {
    "algorithm": "trpo",
    "trpo": {"hidden": [8], "steps": 32, "batch": 8, "fisher_every": 2},
}


def _run(**changes: Any) -> StepRun:
    values: dict[str, Any] = {
        "world": "gym:Pendulum-v1",
        "steps": 96,
        "horizon": 15,
        "evaluation": {"every": 48, "episodes": 2},
        "learner": PPO_SETTINGS,
    }
    return msgspec.convert(values | changes, StepRun)


@pytest.mark.parametrize("learner", [PPO_SETTINGS, TRPO_SETTINGS], ids=["ppo", "trpo"])
def test_a_trial_is_bit_identical_among_others_and_alone(learner: dict[str, Any]) -> None:
    run = _run(learner=learner)
    joint, single = world_trials(run, [5, 0, 11]), world_trials(run, [11])
    for _ in range(run.points):
        joint_scores, single_scores = joint.advance(), single.advance()
        assert joint_scores.evaluation[2] == single_scores.evaluation[0]
        assert joint_scores.train[2] == single_scores.train[0]
    assert len(set(joint_scores.evaluation.tolist())) == 3


def test_a_batch_comes_from_one_policy_and_its_episodes_continue_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = world_trials(_run(), [3, 4])
    batches_seen: list[tuple[PolicyBatch, float]] = []
    monkeypatch.setattr(
        trials.algorithm,
        "learn",
        lambda batch, left: batches_seen.append((deepcopy(batch), left)),
    )
    trials.train(96)
    assert trials.steps == 96
    assert [left for _, left in batches_seen] == [1.0, pytest.approx(2 / 3), pytest.approx(1 / 3)]
    batches = [batch for batch, _ in batches_seen]
    assert {batch.log_pi for batch in batches} == {None}, "the densities are computed from the current policies"
    fields = zip(*(batch[:-1] for batch in batches), strict=True)
    all_actors = PolicyBatch(*(np.concatenate(field, axis=2) for field in fields))
    assert all_actors.reward.shape == (2, 2, 48)
    assert not all_actors.terminated.any()
    assert (np.flatnonzero(all_actors.truncated[1, 1]) == [14, 29, 44]).all()
    is_continued = (all_actors.observation[:, :, 1:] == all_actors.next_observation[:, :, :-1]).all(axis=3)
    assert (is_continued == ~all_actors.truncated[:, :, :-1]).all()
    assert len(np.unique(all_actors.drawn[:, :, 0, 0])) == 4
    assert np.abs(all_actors.drawn).max() > 1.0  # kept as drawn


def test_actions_changed_by_a_shield_do_not_count_as_the_policys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = world_trials(_run(), [3, 4])
    step = trials._world.step
    is_shielded = np.random.default_rng(0).random((16, 2, 2)) < 0.3
    monkeypatch.setattr(
        trials._world, "step", lambda *args: step(*args)._replace(intervened=is_shielded[trials.steps // 2])
    )
    batches_seen: list[PolicyBatch] = []
    monkeypatch.setattr(trials.algorithm, "learn", lambda batch, left: batches_seen.append(batch))
    trials.train(32)
    assert (batches_seen[0].overridden == np.moveaxis(is_shielded, 0, 2)).all()


def test_the_kind_of_algorithm_decides_how_trials_learn() -> None:
    off_policy_run = _run(learner={"algorithm": "td3", "td3": {"hidden": [8], "batch": 8}}, random_steps=10)
    assert isinstance(world_trials(off_policy_run, [0]).learning, Replay)
    assert isinstance(world_trials(_run(), [0]).learning, OnPolicyLearning)


@pytest.mark.parametrize(
    ("changes", "path_prefix"),
    [
        ({"selection": {"strategy": "FIFO[Uniform]", "capacity": 64}}, "selection"),
        ({"steps": 16, "evaluation": {"every": 8}}, "learner.ppo.steps"),
        ({"steps": 99, "evaluation": {"every": 33}}, "evaluation.every"),
        ({"learner": {"algorithm": "ppo", "ppo": {"steps": 32, "batch": 12}}}, "learner.ppo.batch"),
    ],
)
def test_contradictions_are_found_at_their_place(changes: dict[str, Any], path_prefix: str) -> None:
    assert path_prefix in [path for path, _ in step_problems(_run(**changes))]
    assert not list(step_problems(_run()))
