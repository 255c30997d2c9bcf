"""Trials that advance step by step in an environment."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from onrig.learner.algorithms import Recurrent
from onrig.learner.trials.engine import Scores, world_trials
from onrig.learner.trials.exploration_numbers import CorrelatedNoise
from onrig.learner.trials.step_run import DIVERGENCES, REPLAY_MEASURES, StepRun, step_problems
from onrig.learner.trials.supported import space_problems
from onrig.learner.trials.worlds import Spaces

SMALL_SETTINGS: dict[str, Any] = {"hidden": [8, 8], "batch": 8, "reward_scale": 1.0}
CASES: dict[str, dict[str, Any]] = {
    "td3": {"learner": {"algorithm": "td3", "td3": SMALL_SETTINGS}},
    "sac, prioritised": {
        "learner": {"algorithm": "sac", "sac": SMALL_SETTINGS},
        "selection": {"strategy": "TDE(1.0)[PER+IS]", "capacity": 60},
        "updates_per_step": 2,
    },
    "ddpg under refer": {
        "learner": {"algorithm": "ddpg", "ddpg": {"batch": 8}, "refer": {}},
        "selection": {"strategy": "FIFO[PER]", "capacity": 40},
    },
    "ddpg, correlated": {
        "learner": {"algorithm": "ddpg", "ddpg": {"batch": 8}, "refer": {"rules": "none"}},
        "exploration_friction": 0.15,
    },
    "naf under refer": {"learner": {"algorithm": "naf", "naf": SMALL_SETTINGS, "refer": {"rules": 1}}},
    "vracer": {
        "learner": {"algorithm": "vracer", "vracer": SMALL_SETTINGS, "refer": {}},
        "selection": {"strategy": "Resv[Uniform]", "capacity": 30, "write_probability": 0.9},
        "random_steps": 8,
    },
    "vracer, recurrent": {
        "learner": {
            "algorithm": "vracer",
            "vracer": {"batch": 8, "recurrent": {"units": [8, 4], "window": 4}},
            "refer": {},
        },
        "selection": {"strategy": "FIFO[PER]", "capacity": 30},
    },
    "acer": {
        "learner": {
            "algorithm": "acer",
            "acer": SMALL_SETTINGS | {"batch": 3, "segment": 20},
            "refer": {"rules": "none"},
        },
        "selection": {"strategy": "Resv[Uniform]", "capacity": 30},
        "random_steps": 40,
    },
    "klper": {
        "learner": {"algorithm": "td3", "td3": SMALL_SETTINGS},
        "selection": {"strategy": "Resv[KLPER(3)]", "capacity": 50},
    },
    "ners": {
        "world": "gym:CartPole-v1",
        "steps": 120,
        "learner": {
            "algorithm": "dqn",
            "dqn": {"levels": 2, "reward_scale": 0.1},
            "ners": {"hidden": [9, 6], "score": [7], "lr": 0.1},
        },
        "selection": {"strategy": "Resv[NERS]", "capacity": 60},
    },
    "dqn": {
        "world": "gym:CartPole-v1",
        "learner": {"algorithm": "dqn", "dqn": {"levels": 2, "reward_scale": 0.1}},
        "selection": {"strategy": "Expl(1.0)[Uniform+FIS]", "capacity": 60},
    },
}


def _run(**changes: Any) -> StepRun:
    values: dict[str, Any] = {
        "world": "gym:Pendulum-v1",
        "steps": 80,
        "horizon": 30,
        "evaluation": {"every": 40, "episodes": 2},
        "random_steps": 20,
        **CASES["td3"],
    }
    return msgspec.convert(values | changes, StepRun)


def _scores(run: StepRun, seeds: list[int]) -> list[Scores]:
    trials = world_trials(run, seeds)
    return [trials.advance() for _ in range(run.points)]


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_a_trial_is_bit_identical_among_others_and_alone(changes: dict[str, Any]) -> None:
    seeds = [5, 0, 11]
    run = _run(**changes)
    joint, single = _scores(run, seeds), _scores(run, [11])
    for joint_scores, single_scores in zip(joint, single, strict=True):
        assert joint_scores.evaluation[2] == single_scores.evaluation[0]
        assert joint_scores.train[2] == single_scores.train[0]
        assert joint_scores.replay_measures is not None
        assert single_scores.replay_measures is not None
        assert joint_scores.replay_measures[2].tobytes() == single_scores.replay_measures[0].tobytes()
    assert len(set(joint[-1].train.tolist())) == 3


def test_episodes_end_independently_in_each_trial_and_only_terminal_states_are_marked() -> None:
    trials = world_trials(_run(**CASES["dqn"] | {"horizon": 15, "selection": {"strategy": "FULL[Uniform]"}}), [0, 1, 2])
    trials.advance()
    n, m = 4, 1
    rows = trials.memories.rows[:, :40]
    terminated = rows[:, :, 2 * n + m + 2] == 1.0
    angle = rows[:, :, n + m + 2]  # of the next observation
    assert (terminated == (np.abs(angle) > 12 * 2 * np.pi / 360)).all()
    assert len({tuple(row) for row in terminated.tolist()}) == 3
    # A row begins where the previous one ended, except for the first of an episode.
    is_continued = (rows[:, 1:, :n] == rows[:, :-1, n + m : 2 * n + m]).all(axis=2)
    assert (is_continued | terminated[:, :-1]).mean() > 0.9
    assert not (is_continued & terminated[:, :-1]).any()
    for starts in np.flatnonzero(~is_continued[0]) + 1:
        assert (np.abs(rows[0, starts, :n]) <= 0.05).all()


def test_correlated_noise_starts_over_in_each_episode_of_a_trial() -> None:
    noise, ones = CorrelatedNoise(0.2, 2, has_unit_variance=False), np.ones((2, 1, 3))
    samples = [noise(ones, np.array(episodes))[:, 0, 0].tolist() for episodes in ([1, 1], [1, 1], [1, 2], [2, 2])]
    np.testing.assert_allclose(samples, [[1.0, 1.0], [1.8, 1.8], [2.44, 1.0], [1.0, 1.8]])


def test_correlated_noise_of_a_density_has_its_variance_in_every_step() -> None:
    noise, normal, trials = CorrelatedNoise(0.2, 4000, has_unit_variance=True), np.random.default_rng(3), 4000
    u = [noise(normal.standard_normal((trials, 1, 1)), np.ones(trials, np.int64)).ravel() for _ in range(5)]
    np.testing.assert_allclose([step.var() for step in u], 1.0, atol=0.08)
    assert np.corrcoef(u[3], u[4])[0, 1] == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(
    ("learner", "is_accepted"),
    [
        ({"algorithm": "td3"}, True),
        ({"algorithm": "ddpg", "refer": {"rules": "none"}}, True),
        ({"algorithm": "ddpg", "refer": {}}, True),
        ({"algorithm": "naf", "refer": {"rules": "none"}}, True),
        ({"algorithm": "acer"}, True),
        ({"algorithm": "sac"}, False),
        ({"algorithm": "dqn"}, False),
    ],
)
def test_correlated_noise_requires_a_gaussian_policy(learner: dict[str, Any], is_accepted: bool) -> None:
    problems = step_problems(_run(learner=learner, exploration_friction=0.15, steps=4000))
    assert ("exploration_friction" in dict(problems)) is not is_accepted


def test_the_first_steps_are_random_and_the_noise_is_as_configured() -> None:
    frozen_learner = {"algorithm": "td3", "td3": {**SMALL_SETTINGS, "lr": 1e-9}}
    run = _run(exploration_std=0.05, learner=frozen_learner, steps=400, random_steps=200)
    trials = world_trials(run, [1])
    for _ in range(run.points):
        trials.advance()
    action, exploration = trials.memories.rows[0, :, 3], trials.memories.rows[0, :, 8]
    assert np.abs(action[:200]).max() > 0.97
    assert abs(float(np.square(exploration[200:]).mean()) ** 0.5 - 0.05) < 0.01


def test_a_gaussian_explores_by_itself_from_the_start_and_rows_record_it() -> None:
    wide_policy = {"algorithm": "ddpg", "ddpg": {"batch": 8}, "refer": {"std": 0.8}}
    trials = world_trials(_run(learner=wide_policy, selection={"strategy": "FULL[Uniform]"}), [1, 2])
    trials.train(20)
    rows, n = trials.memories.rows[:, :20], 3
    mean, std, drawn_action, is_deviating = np.moveaxis(rows[..., 2 * n + 4 : 2 * n + 8], -1, 0)
    assert (std == np.float32(0.8)).all()
    assert np.abs(drawn_action).max() > 1.0  # the recorded action is the one drawn before clipping
    assert 0.5 < float(((drawn_action - mean) / std).std()) < 1.5
    assert np.array_equal(rows[..., n], np.clip(drawn_action, -1.0, 1.0))
    assert not is_deviating.any()
    for observation, mean_action in zip(
        rows[0, :, :n], mean[0], strict=True
    ):  # nothing is learned before the 20th step
        repeated = np.stack([observation, observation])[:, None]
        assert trials.algorithm.policy(repeated)[0, 0, 0] == mean_action


def test_a_recurrent_policy_uses_its_episode_from_the_start() -> None:
    run = _run(**CASES["vracer, recurrent"] | {"selection": {"strategy": "FULL[Uniform]"}}, horizon=7)
    trials = world_trials(run, [1, 2])
    trials.train(20)  # nothing is learned before
    rows, n, algorithm = trials.memories.rows[:, :20], 3, trials.algorithm
    assert isinstance(algorithm, Recurrent)
    hidden = np.zeros((2, 1, algorithm.hidden_width), np.float32)
    for t in range(20):
        if t % 7 == 0:
            hidden[:] = 0.0
        mean, _, hidden = algorithm.recurrent_distribution(rows[:, [t], :n], hidden)
        assert np.array_equal(rows[:, t, 2 * n + 4], mean[:, 0, 0])
    measures = trials.advance().replay_measures
    assert measures is not None
    scores = [
        REPLAY_MEASURES.index(name) for name in REPLAY_MEASURES if name.startswith("kl ") and name not in DIVERGENCES
    ]
    assert np.isnan(measures[:, scores]).all(), "batches of single observations have no score"


def test_updates_are_made_after_the_configured_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = world_trials(_run(updates_per_step=0.5, update_every=10), [0])
    updates_done = []
    epsilons: list[int] = []
    monkeypatch.setattr(trials.memories, "begin_episode", epsilons.append)
    for _ in range(40):
        trials.train(1)
        updates_done.append(trials.algorithm.updates)
    # 20 random steps.
    assert updates_done == [0] * 29 + [5] * 10 + [10]
    assert epsilons == [1, 11], "schedules begin with the first update"


def test_the_distance_from_the_behaviour_policies_is_measured_over_the_memory() -> None:
    measure_indices = [REPLAY_MEASURES.index(name) for name in DIVERGENCES]
    run = _run(**CASES["ddpg under refer"], evaluation={"every": 80, "episodes": 1})
    trials = world_trials(run, [1, 2])
    measures = trials.advance().replay_measures
    assert measures is not None
    kl, is_far = (np.stack([trials.memories.notes.stored_column(s, name) for s in (0, 1)]) for name in ("kl", "far"))
    assert kl.shape == (2, 40)
    np.testing.assert_allclose(
        measures[:, measure_indices], np.stack((kl.mean(axis=1), is_far.mean(axis=1)), axis=1), rtol=1e-6
    )
    assert (measures[:, measure_indices[0]] > 0.0).all()
    other = world_trials(_run(), [1]).advance().replay_measures
    assert other is not None
    assert np.isnan(other[:, measure_indices]).all()


def test_returns_are_means_over_complete_episodes() -> None:
    run = _run(world="gym:CartPole-v1", learner=CASES["dqn"]["learner"], horizon=None)
    scores = world_trials(run, [4, 5]).advance()
    # CartPole pays 1 a step: a return is a length, and those of the closed episodes fit into the steps.
    assert (scores.train >= 8.0).all()
    assert (scores.train <= 40.0).all()
    assert (scores.evaluation * 2 % 1.0 == 0.0).all()


def test_without_a_closed_episode_there_is_no_training_return() -> None:
    assert np.isnan(world_trials(_run(horizon=41), [0]).advance().train).all()


def test_a_diverged_trial_scores_nan_and_does_not_disturb_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run()
    undisturbed = _scores(run, [7])
    trials = world_trials(run, [3, 7])
    policy = trials.algorithm.policy

    def fail(observation: Any) -> Any:
        actions = policy(observation)
        actions[0] = np.nan
        return actions

    monkeypatch.setattr(trials.algorithm, "policy", fail)
    for expected in undisturbed:
        scores = trials.advance()
        assert np.isnan(scores.evaluation[0])
        assert scores.evaluation[1] == expected.evaluation[0]


@pytest.mark.parametrize(
    ("changes", "path_prefix"),
    [
        ({"world": "Pendulum-v1"}, "world"),
        ({"steps": 81}, "evaluation.every"),
        ({"updates_per_step": 0.5, "update_every": 5}, "updates_per_step"),
        ({"random_steps": 75}, "random_steps"),
        ({"learner": {"updates_per_episode": 100}}, "learner"),
        ({"selection": {"strategy": "FIFO[Nothing]"}}, "selection.strategy"),
        ({"selection": {"capacity": 5}}, "selection.capacity"),
        ({"selection": {"intervened": "drop"}}, "selection.intervened"),
        (
            {"selection": {"strategy": "FIFO[KLPER(2)]"}, "learner": {"algorithm": "ddpg", "ddpg": {"batch": 1}}},
            "learner.ddpg.batch",
        ),
        ({"learner": {"algorithm": "sac", "sac": {"log_std": [2, 1]}}}, "learner.sac.log_std"),
        ({"selection": {"strategy": "FULL[Uniform]", "capacity": 40}}, "selection.capacity"),
    ],
)
def test_contradictions_are_found_at_their_place(changes: dict[str, Any], path_prefix: str) -> None:
    assert path_prefix in [path for path, _ in step_problems(_run(**changes))]
    assert not list(step_problems(_run()))


def test_algorithm_and_actions_must_match() -> None:
    dqn = _run(**CASES["dqn"])
    assert not list(space_problems(dqn, Spaces(4, 1, 2, 100)))
    assert [path_prefix for path_prefix, _ in space_problems(dqn, Spaces(4, 1, 4, 100))] == ["learner.dqn.levels"]
    assert [path_prefix for path_prefix, _ in space_problems(dqn, Spaces(4, 2, None, 100))] == ["learner.algorithm"]
    assert [path_prefix for path_prefix, _ in space_problems(_run(), Spaces(4, 1, 2, 100))] == ["learner.algorithm"]
    with pytest.raises(ValueError, match="discrete actions"):
        world_trials(_run(world="gym:CartPole-v1"), [0])


@pytest.mark.parametrize(
    ("world", "settings", "path", "message"),
    [
        ("gym:Pendulum-v1", {}, "exploration", "only a plant's world uses a run's exploration process"),
        (
            "plant:pendulum",
            {"learner": {"algorithm": "sac", "sac": SMALL_SETTINGS}},
            "exploration.process",
            "expected 'own'",
        ),
        ("plant:pendulum", {"exploration": {"process": "ou", "over": "steps"}}, "exploration", "number of the episode"),
        ("plant:pendulum", {"learner": {"algorithm": "trpo"}}, "exploration", "trpo explores by itself"),
    ],
)
def test_the_exploration_of_a_run_must_match_its_plant_and_algorithm(
    world: str, settings: dict[str, Any], path: str, message: str
) -> None:
    fields = {"world": world, "steps": 3000, "random_steps": 0, "exploration": {"process": "ou"}, **settings}
    problems = dict(step_problems(msgspec.convert(fields, StepRun)))
    assert message in problems[path]
