from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from onrig.learner.algorithms import algorithm_for
from onrig.learner.settings import LearnerSettings
from onrig.learner.trials.engine import Scores, Trials, run_trials
from onrig.learner.trials.exploration import Explorer
from onrig.learner.trials.exploration_numbers import EpisodeNumbers
from onrig.learner.trials.supported import trials_problems
from onrig.runtime.explore.noise import unit_signal
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.run_config import RunConfig
from onrig.tools.load import load

SHORT = ["task.episode_s=0.5", "learner.updates_per_episode=7", "episodes=12"]
"""Episodes of 25 steps."""
NOISE = ["device.twin.sensor_noise=0.02", "device.twin.actuator_noise=0.05"]
SYNTHETIC = "selection.synthetic={states: 0.2, actions: 0.3, refresh: 0.5}"
SMALL_MEMORY = "selection.capacity=90"
OWN_NOISE = "exploration={process: own}"
CASES = {
    "uniform": ["selection.strategy=FIFO[Uniform]", SMALL_MEMORY],
    "full": ["selection.strategy=FULL[PER+IS]"],
    "ranked": ["selection.strategy=TDE(1.0)[PER]", SMALL_MEMORY],
    "reservoir": ["selection.strategy=Resv[Uniform+FIS]", SMALL_MEMORY],
    "exploration": ["selection.strategy=Expl(1.0)[PER+FIS]", SMALL_MEMORY, *NOISE],
    "synthetic": ["selection.strategy=FIFO[Uniform]", SMALL_MEMORY, SYNTHETIC],
    "thinned": ["selection.strategy=FIFO[Uniform]", SMALL_MEMORY, "selection.write_probability=0.5"],
    "dqn": ["selection.strategy=FIFO[PER]", SMALL_MEMORY, "learner.algorithm=dqn"],
    "td3": [
        "selection.strategy=FIFO[PER]",
        SMALL_MEMORY,
        "learner.algorithm=td3",
        "learner.td3={hidden: [9, 9], batch: 6}",
    ],
    "sac": [
        "selection.strategy=FIFO[Uniform]",
        SMALL_MEMORY,
        "learner.algorithm=sac",
        "learner.sac={hidden: [9, 9], batch: 6}",
        OWN_NOISE,
    ],
    "rainbow": [
        "selection.strategy=FIFO[PropPER]",
        SMALL_MEMORY,
        "learner.algorithm=rainbow",
        "learner.rainbow={hidden: [9, 9], batch: 6, atoms: 7, levels: 3, n_steps: 3}",
        "exploration={process: none}",
    ],
    "ners": [
        "selection.strategy=Resv[NERS]",
        SMALL_MEMORY,
        "learner.ners={hidden: [10, 6], score: [7], lr: 0.01}",
        "learner.algorithm=sac",
        "learner.sac={hidden: [9, 9], batch: 6}",
        OWN_NOISE,
    ],
    "ero": ["selection.strategy=FIFO[ERO]", SMALL_MEMORY, "learner.ero={hidden: [9], lr: 0.01}"],
    "refer": ["selection.strategy=FIFO[Uniform]", SMALL_MEMORY, "learner.refer={}", OWN_NOISE],
    "vracer": [
        "selection.strategy=FarPolFrac[Uniform]",
        SMALL_MEMORY,
        "learner.algorithm=vracer",
        "learner.vracer={hidden: [9], batch: 6}",
        "learner.refer={}",
        "exploration={process: own, amplitude: [[1, 1], [4, 0.5]]}",
    ],
    "acer": [
        "selection.strategy=FIFO[PER]",
        SMALL_MEMORY,
        *NOISE,
        "learner.algorithm=acer",
        "learner.acer={hidden: [9], batch: 3, segment: 11}",
        OWN_NOISE,
    ],
    "targets and drawn starts, noise": [
        *NOISE,
        "task.targets={ref: {kind: steps, low: -3, high: 3, every_s: 0.1}}",
        "task.start={angle: [-1, 1], velocity: 0}",
        "task.reward.terms={near: {kind: distance, observation: angle, weight: 1, target: ref}}",
    ],
    "dqn, synthetic": ["selection.strategy=FIFO[Uniform]", SMALL_MEMORY, "learner.algorithm=dqn", SYNTHETIC],
}


def _settings(config: RunConfig) -> LearnerSettings:
    return msgspec.convert(config.learner, LearnerSettings)


def _run(overrides: Sequence[str], seeds: Sequence[int], name: str = "pendulum", episodes: int = 10) -> list[Scores]:
    config = load(name, [*SHORT, *overrides])
    trials = run_trials(config, _settings(config), seeds)
    return [trials.advance() for _ in range(episodes)]


@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES.keys())
def test_a_trial_is_bit_identical_among_others_and_alone(overrides: list[str]) -> None:
    seeds = [5, 0, 11, 3, 8]
    joint = _run(overrides, seeds, episodes=7)
    for trial in (0, 4):
        for joint_scores, single in zip(joint, _run(overrides, [seeds[trial]], episodes=7), strict=True):
            assert joint_scores.train[trial] == single.train[0]
            assert joint_scores.evaluation[trial] == single.evaluation[0]
            if joint_scores.batch_noise is not None and single.batch_noise is not None:
                assert (joint_scores.batch_noise[trial] == single.batch_noise[0]).all()


def test_a_trial_with_walls_and_several_actions_is_bit_identical_among_others_and_alone() -> None:
    joint = _run(CASES["uniform"], [4, 9, 7], "magman")
    single = _run(CASES["uniform"], [9], "magman")
    assert [s.evaluation[1] for s in joint] == [s.evaluation[0] for s in single]


def test_trials_differ_only_by_their_seeds() -> None:
    final_scores = _run(CASES["uniform"], [6, 6, 7])[-1]
    assert final_scores.evaluation[0] == final_scores.evaluation[1]
    assert final_scores.evaluation[0] != final_scores.evaluation[2]


def test_training_explores_and_evaluation_does_not() -> None:
    quiet = ["exploration={process: none}"]
    scores = _run(quiet, [0, 1])
    assert all((s.train == s.evaluation).all() for s in scores)
    assert any((s.train != s.evaluation).any() for s in _run([], [0, 1]))


def test_trials_learn_to_hold_a_ball() -> None:
    overrides = ["task.episode_s=2", "learner.updates_per_episode=50", "episodes=40"]
    config = load("magman", overrides)
    trials = run_trials(config, _settings(config), range(3))
    mean_scores = [trials.advance().evaluation.mean() for _ in range(36)]
    assert mean_scores[0] < -5.0
    assert np.mean(mean_scores[-5:]) > -3.5


@pytest.mark.parametrize(
    ("name", "lr", "episodes", "options"),
    [pytest.param("td3", 2e-3, 30, {}, marks=pytest.mark.study), ("sac", 3e-3, 20, {"temperature": 0.05})],
)
def test_algorithms_by_autograd_learn_to_hold_a_ball(
    name: str, lr: float, episodes: int, options: dict[str, float]
) -> None:
    algorithm_settings = {
        "hidden": [24, 24],
        "batch": 32,
        "lr": lr,
        "gamma": 0.95,
        "tau": 0.02,
        "reward_scale": 0.1,
        **options,
    }
    amplitude = f"[[1, 1.0], [{episodes}, 0.1]]" if name == "td3" else "[[1, 1.0]]"
    exploration_override = f"exploration={{process: {'ou' if name == 'td3' else 'own'}, amplitude: {amplitude}}}"
    overrides = [
        f"learner.algorithm={name}",
        f"learner.{name}={msgspec.json.encode(algorithm_settings).decode()}",
        exploration_override,
    ]
    sizes = ["task.episode_s=2", "learner.updates_per_episode=40", f"episodes={episodes}"]
    config = load("magman", [*sizes, *overrides])
    trials = run_trials(config, _settings(config), range(3))
    # Without the worst of three: the shorter the training, the more often one still sticks to a magnet.
    mean_scores = [np.sort(trials.advance().evaluation)[1:].mean() for _ in range(episodes)]
    assert mean_scores[0] < -5.0
    assert np.mean(mean_scores[-5:]) > -4.0


def test_a_stochastic_policy_explores_by_itself_and_is_evaluated_at_its_mean() -> None:
    config = load("pendulum", [*SHORT, *CASES["sac"]])
    trials = run_trials(config, _settings(config), [0, 1])
    for _ in range(2):
        scores = trials.advance()
        assert (scores.evaluation != scores.train).all()
    exploration = trials.memories.rows[:, :50, -1]
    distance = exploration[exploration > 0.0]
    assert len(distance) > 90
    assert 0.1 < distance.mean() < 1.5


def test_the_noise_in_minibatches_equals_the_twins() -> None:
    scores = _run([*NOISE, "selection.strategy=FULL[Uniform]"], range(8), episodes=12)
    noise = np.stack([s.batch_noise for s in scores if s.batch_noise is not None])
    half_normal = np.sqrt(2.0 / np.pi)
    expected = half_normal * np.array([0.02, 0.02, 0.05])
    assert noise.mean(axis=(0, 1)) == pytest.approx(expected, rel=0.05)
    assert _run(CASES["uniform"], [0], episodes=3)[-1].batch_noise is None


def test_noise_disturbs_both_plant_and_policy() -> None:
    for setting in NOISE:
        noisy_scores, quiet_scores = (
            _run([*overrides, "exploration={process: none}"], [0], episodes=2)[1] for overrides in ([setting], [])
        )
        assert noisy_scores.evaluation[0] != quiet_scores.evaluation[0]


@pytest.mark.parametrize("case", ["uniform", "full", "ranked", "exploration", "synthetic", "dqn", "td3", "sac", "ero"])
def test_a_diverged_trial_is_recognised_by_its_scores_and_does_not_disturb_the_others(case: str) -> None:
    config = load("pendulum", [*SHORT, *CASES[case]])
    undisturbed_scores = _run(CASES[case], [3, 4, 5])
    trials = run_trials(config, _settings(config), [3, 4, 5])
    for episode, expected in enumerate(undisturbed_scores):
        if episode == 4:
            _make_diverge(trials, 1)
        scores = trials.advance()
        for actual_trial, expected_trial in ((scores.train, expected.train), (scores.evaluation, expected.evaluation)):
            assert (actual_trial[[0, 2]] == expected_trial[[0, 2]]).all()
            assert np.isnan(actual_trial[1]) == (episode >= 4)


def _make_diverge(trials: Trials, trial: int) -> None:
    """Set the networks of one trial to their state after a divergence."""
    state = trials.algorithm.state()
    for name, values in state.items():
        if "/" in name and not name.startswith(("adam/", "target_")):
            values[trial] = np.nan
    trials.algorithm.restore(state)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("pendulum", ["rig.previous_command=true"], "previous_command"),
        ("pendulum", ["task.terminate={velocity: [-20, 20]}"], "but this task ends them early: use a world"),
        ("magman", ["learner.algorithm=dqn"], "dqn"),
        ("pendulum", ["exploration={process: parameter}"], "process"),
        ("pendulum", ["learner.algorithm=sac"], "sac sample their actions: expected 'own', got 'ou'"),
        (
            "pendulum",
            ["learner.algorithm=rainbow", OWN_NOISE],
            "noise in the network weights: expected process 'none', got 'own'",
        ),
        ("pendulum", [OWN_NOISE], "no noise of their own: use process ou or none"),
        ("pendulum", ["device.twin.latency_us=2000"], "latency_us"),
        ("pendulum", ["device.twin.faults={stall: 0.1}"], "faults"),
    ],
)
def test_unsupported_settings_are_reported_before_anything_runs(name: str, overrides: list[str], message: str) -> None:
    config = load(name, overrides)
    problems = trials_problems(config, _settings(config))
    assert len(problems) == 1
    assert message in problems[0]
    with pytest.raises(ValueError, match=message):
        run_trials(config, _settings(config), [0])


def test_gaussian_policies_draw_with_the_same_noise_as_on_a_rig() -> None:
    process = "exploration={process: own, amplitude: [[1, 1], [2, 0.5]], quiet: {every: 3}}"
    config = load("pendulum", [*SHORT, "learner.refer={std: 0.3}", process])
    trials = run_trials(config, _settings(config), [4])
    trials.replay.n_consecutive_updates = 0
    for episode, amplitude in ((1, 1.0), (2, 0.5), (3, 0.0)):
        trials.advance()
        slots = np.arange(25 * (episode - 1), 25 * episode)[None]
        minibatches = trials.memories.gather(slots)
        assert minibatches.behaviour is not None
        signal = np.array(unit_signal(config.exploration, stream(4, Role.EXPLORATION, episode), 25, 1))
        mean, std, drawn_action, is_reduced = (part[0] for part in minibatches.behaviour)
        np.testing.assert_allclose(drawn_action, mean + 0.3 * amplitude * signal, atol=1e-6)
        np.testing.assert_allclose(std, 0.3 * amplitude, rtol=1e-6)
        np.testing.assert_allclose(minibatches.action[0], np.clip(drawn_action, -1.0, 1.0), atol=1e-6)
        assert (is_reduced == (amplitude < 1.0)).all()


def test_a_process_of_random_levels_sets_epsilon_as_on_a_rig() -> None:
    process = "exploration={process: epsilon_greedy, amplitude: [[1, 0.25]], quiet: {every: 2}}"
    config = load("pendulum", ["learner.algorithm=dqn", process])
    settings = msgspec.convert(config.learner, LearnerSettings)
    assert trials_problems(config, settings) == []
    dqn = algorithm_for(settings, 2, 1, [np.random.default_rng(0)])
    numbers = EpisodeNumbers(dqn, config.exploration, [3], 200, ["voltage"])
    explorer = Explorer(dqn, numbers, 1, samples_actions=False)
    signal = np.array(unit_signal(config.exploration, stream(3, Role.EXPLORATION, 1), 200, 1))
    observation = np.zeros((1, 2, 2))
    policy_action = dqn.policy(observation)[0, 0, 0]
    explored_actions = np.array([explorer(observation, np.array([1])).action[0, 0, 0] for _ in range(200)])
    assert (explored_actions == np.where(signal[:, 0] < 0.25, signal[:, 1], policy_action)).all()
    quiet = [explorer(observation, np.array([2])).action[0, 0, 0] for _ in range(200)]
    assert all(action == policy_action for action in quiet), "a quiet episode"
    other = msgspec.convert({"updates_per_episode": 100}, LearnerSettings)
    assert trials_problems(config, other) == [
        "the policies of ddpg have no discrete actions: expected 'ou', 'gaussian', 'parameter' or 'none'"
    ]
