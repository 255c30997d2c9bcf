"""S trials of one configuration that advance together, each bit-identical to the same trial run alone.

Bit-identity holds on one kind of machine, with one torch thread.  ``Trials`` owns the loop: act, step, gather, learn,
and evaluate at intervals.  Experiments differ in the parts of the loop: the world, the random numbers for exploration
(``exploration_numbers``), the source of the experiences (``learning``), and when evaluations take place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from onrig.learner.algorithm_config import Image
from onrig.learner.algorithms import Algorithm, Gaussian, ReadsFrames, Stochastic, algorithm_for
from onrig.learner.algorithms.on_policy import on_policy_for
from onrig.learner.samplers import SamplerContext
from onrig.learner.settings import LearnerSettings
from onrig.learner.trials.exploration import ExplorationPolicy, Explorer, OnPolicyExplorer
from onrig.learner.trials.exploration_numbers import (
    CorrelatedNoise,
    EpisodeNumbers,
    NumberSource,
    PerTrialNumbers,
    StepNumbers,
)
from onrig.learner.trials.learning import Learning, OnPolicyLearning, Replay, Updates
from onrig.learner.trials.memories import Memories
from onrig.learner.trials.replay_measures import ReplayMeasures
from onrig.learner.trials.rows import MemoryContents, contents_for
from onrig.learner.trials.step_run import SHIELD_COUNTS, StepRun, step_problems, takes_noise
from onrig.learner.trials.supported import space_problems, trials_problems
from onrig.learner.trials.synthetic import SyntheticExperiences
from onrig.learner.trials.worlds import Bools, World, episode_returns
from onrig.learner.trials.worlds.factory import make_world, run_of_world
from onrig.learner.trials.worlds.frames import FrameStore
from onrig.learner.trials.worlds.plants import PlantWorld
from onrig.runtime.explore.settings import OwnNoise
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.memory.transitions import Transitions
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.run_config import RunConfig
from onrig.sim.plants import Plant

WorldFactory = Callable[[Sequence[Role]], World]
"""Function that creates a world with an actor for each role in each trial."""


class Scores(NamedTuple):
    """Scores of S trials for the time since the previous scores."""

    train: NDArray[np.float64]
    """(S,): mean raw reward per step of the training episode; for trials that advance step by step, the mean return of
    the training episodes that ended, NaN if none did."""
    evaluation: NDArray[np.float64]
    """(S,): scores of noise-free episodes, either one in parallel with the training episode and with the same policy,
    or several after it."""
    batch_noise: NDArray[np.float64] | None
    """(S, n + m): mean |noise| per state-action dimension in the minibatches replayed afterwards, in normalised units
    (de Bruin et al. 2018, Table 6); None if the twin has no noise or nothing has been replayed."""
    replay_measures: NDArray[np.float64] | None = None
    """(S, k): the ``REPLAY_MEASURES`` (``step_run``), NaN if missing; None for trials of complete episodes."""
    shield_counts: NDArray[np.float64] | None = None
    """(S, 2): the ``onrig.learner.trials.step_run.SHIELD_COUNTS``; None for trials of complete episodes, which have no
    shield."""


class Trials:
    """S trials with a batch of training actors.

    All actors take one environment step at a time; each actor's episodes end independently.  A trial whose networks
    diverge does not affect the others: it continues with zero actions and with NaN scores, which distinguish it from a
    trial with a bad policy.
    """

    def __init__(
        self,
        algorithm: Any,
        world: World,
        explore: ExplorationPolicy,
        learning: Learning,
        actors: tuple[int, int],
        *,
        steps_per_score: int,
        random_steps: int = 0,
        evaluation: tuple[World, int] | None = None,
    ) -> None:
        """Prepare trials with (S, K) training ``actors``, scored every ``steps_per_score`` environment steps.

        ``evaluation``: a world for noise-free episodes, and the number of episodes.  Without it, each trial has one
        more actor in ``world``, which is evaluated while the others train, and all episodes have ``steps_per_score``
        steps.
        """
        self.algorithm: Final = algorithm
        """Learning algorithm: an ``Algorithm`` or an ``OnPolicy``."""
        self.learning: Final = learning
        self._world, self._explore, self._evaluation = world, explore, evaluation
        self._actors, self._steps_per_score, self._random_steps = actors, steps_per_score, random_steps
        self.steps = 0
        """Number of environment steps of each trial, over all its training actors."""
        S, K = actors
        self.episodes: NDArray[np.int64] = np.ones(S, np.int64)
        """(S,): number of the current episode of each trial's first actor."""
        self._all_actors: Bools = np.ones((S, K if evaluation else K + 1), np.bool_)
        self._observation = world.begin(self._all_actors)
        self._return = np.zeros(self._all_actors.shape)
        self._rewards: list[NDArray[np.float64]] = []
        """Rewards (S, E) of each step of the current episode, if the evaluation runs in parallel."""
        self._episode_scores = np.zeros((2, S))
        """(2, S): mean rewards in the last training and evaluation episodes."""
        self._return_totals = np.zeros((2, S))
        """(2, S): sum and number of the returns of training episodes since the last scores."""
        self._has_diverged = np.zeros(S, np.bool_)
        self._shield_counts = np.zeros((S, len(SHIELD_COUNTS)))

    @property
    def memories(self) -> Memories:
        """Memories of trials with replay."""
        return self.replay.memories

    @property
    def replay(self) -> Replay:
        """Replay of trials with a memory."""
        assert isinstance(self.learning, Replay)
        return self.learning

    def advance(self) -> Scores:
        """Train until the next scores."""
        train = self.train(self._steps_per_score)
        if self._evaluation is None:
            train, evaluation = self._episode_scores
        else:
            evaluation = self.evaluate()
        train, evaluation = (np.where(self._has_diverged, np.nan, score) for score in (train, evaluation))
        shield_counts = None if self._evaluation is None else self._shield_counts.copy()
        return Scores(
            train, evaluation, self.learning.batch_noise(), self.learning.replay_measures(self.steps), shield_counts
        )

    def train(self, steps: int) -> NDArray[np.float64]:
        """Train for ``steps`` environment steps, and return the mean return (S,) of the training episodes that ended in
        them."""
        self._return_totals[:], self._shield_counts[:] = 0.0, 0
        for _ in range(0, steps, self._actors[1]):
            self._step()
        total, n_returns = self._return_totals
        return np.where(n_returns > 0, total / np.maximum(n_returns, 1), np.nan)

    def evaluate(self) -> NDArray[np.float64]:
        """Return the mean return (S,) of noise-free episodes, which run in parallel."""
        assert self._evaluation is not None
        world, episodes = self._evaluation
        actors = (len(self._all_actors), episodes)
        policy = self._explore.policy(actors)
        returns = episode_returns(world, actors, lambda observation: self._replace_diverged(policy(observation)))
        return np.asarray(returns.mean(axis=1))

    def policy(self, actors: tuple[int, int]) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
        """Return the noise-free policy of ``actors`` (S, E), from observations (S, E, n) to actions (S, E, m)."""
        return self._explore.policy(actors)

    def close(self) -> None:
        self._world.close()
        if self._evaluation is not None:
            self._evaluation[0].close()

    def _step(self) -> None:
        observation, is_random_phase = self._observation, self.steps < self._random_steps
        actions = self._explore(observation, self.episodes, is_random_phase=is_random_phase)
        action = self._replace_diverged(actions.action)
        if action is not actions.action:
            actions = actions._replace(action=action)
        result = self._world.step(action, self._all_actors)
        self.learning.add_step(observation, actions, result)
        self.steps += self._actors[1]
        self._observation = result.observation
        if self._evaluation is None:
            self._rewards.append(result.reward)
            has_ended = result.truncated
        else:
            self._return += result.reward
            if result.intervened.any():
                self._shield_counts += np.stack((result.intervened.sum(axis=1), result.tripped.sum(axis=1)), axis=1)
            has_ended = result.terminated | result.truncated
        if has_ended.any():
            self._end_episodes(has_ended)
        self.learning.learn_if_due(self.steps)

    def _end_episodes(self, is_end: Bools) -> None:
        is_training_end = is_end[:, : self._actors[1]]
        returns = self._return[:, : self._actors[1]]
        if self._evaluation is None:  # numpy's pairwise sum of a row rounds differently than a running sum
            rewards = np.concatenate(self._rewards).reshape(-1, *is_end.shape)
            self._episode_scores = np.ascontiguousarray(rewards.transpose(2, 1, 0)).mean(axis=2)
            self._rewards.clear()
            returns = self._episode_scores[0, :, None] * self._steps_per_score
        self.learning.end_episodes(returns, is_training_end)
        self._explore.begin(is_training_end)
        self._return_totals += np.where(is_training_end, (returns, np.ones(is_training_end.shape)), 0.0).sum(axis=2)
        self.episodes += is_training_end[:, 0]
        self._return[is_end] = 0.0
        self._observation = self._world.begin(is_end)

    def _replace_diverged(self, action: NDArray[np.floating]) -> NDArray[np.floating]:
        """Mark diverged trials, and replace their actions in (S, E, m) with zeros."""
        if math.isfinite(action.sum()):
            return action
        is_finite = np.isfinite(action).all(axis=(1, 2))
        self._has_diverged |= ~is_finite
        return np.where(is_finite[:, None, None], action, 0.0)


def run_trials(
    config: RunConfig,
    settings: LearnerSettings,
    seeds: Sequence[int],
    plant: Plant | None = None,
    prior: Transitions | None = None,
) -> Trials:
    """Set up trials of a run, one per seed (``config.seed`` is ignored); raise ValueError if trials cannot run
    ``config``.

    Trials train on complete episodes of the run's twin, each followed by its updates, as on the rig.  ``plant``
    replaces the twin's plant; its parameters may be arrays (2 S,), with one value for the training and one for the
    evaluation episodes of each trial. ``prior``: initial experiences of every memory.  No shield acts, since no
    hardware is at risk.
    """
    problems = trials_problems(config, settings)
    if problems:
        raise ValueError("; ".join(problems))
    world = PlantWorld(config, seeds, (Role.PLANT_TRAIN, Role.PLANT_EVAL), plant=plant, fixed_length=True)
    (n, m, _, T, _), process = world.spaces, config.exploration
    algorithm = algorithm_for(settings, n, m, [stream(seed, Role.NETWORKS) for seed in seeds])
    samples_actions = isinstance(algorithm, Gaussian) and isinstance(process, OwnNoise)
    number_source = EpisodeNumbers(algorithm, process, seeds, T, [a.name for a in config.rig.actuators])
    explorer = Explorer(algorithm, number_source, len(seeds), samples_actions=samples_actions)
    contents = contents_for(config, settings, is_noisy=world.is_noisy, records_behaviour=samples_actions)._replace(
        prior=prior
    )
    alter_episode = None
    if config.selection.synthetic is not None:
        levels = None if isinstance(algorithm, Stochastic) else algorithm.discrete
        alter_episode = SyntheticExperiences(config, config.selection.synthetic, seeds, explorer, number_source, levels)
    memories = Memories(contents, seeds, policy=algorithm.policy)
    updates = Updates(settings.updates_per_episode or 0, T, progress_steps=T)
    replay = Replay(algorithm, memories, updates, batch_steps=T, alter_episode=alter_episode)
    return Trials(algorithm, world, explorer, replay, (len(seeds), 1), steps_per_score=T)


def world_trials(
    run: StepRun, seeds: Sequence[int], world_factory: WorldFactory | None = None, prior: Transitions | None = None
) -> Trials:
    """Set up trials in a world, one per seed.

    Trials learn step by step, or from batches of their own policies.  ``world_factory`` replaces the function that
    creates the run's world; ``prior``: initial experiences of every memory.  Raises ValueError if ``run`` does not fit
    its world, and NoSuchTask if the world cannot be created.
    """
    image = run.learner.algorithm_config.image
    frame_store = None if image is None else _frame_store(run, image, len(seeds))
    world_factory = world_factory or (lambda roles: make_world(run, seeds, roles, image, frame_store))
    problems = [message for _, message in step_problems(run)]
    if problems:
        raise ValueError("; ".join(problems))
    K, algorithm_config, episodes = (
        run.learner.algorithm_config.parallel,
        run.learner.algorithm_config,
        run.evaluation.episodes,
    )
    world = world_factory([Role.PLANT_TRAIN] * K)
    n, m, _, _, _ = world.spaces
    problems = [message for _, message in space_problems(run, world.spaces)]
    if problems:
        raise ValueError("; ".join(problems))
    streams = [stream(seed, Role.NETWORKS) for seed in seeds]
    learner: Any
    explore: ExplorationPolicy
    learning: Learning
    if algorithm_config.batch_steps:
        learner = on_policy = on_policy_for(run.learner, n, m, streams)
        shape = (len(seeds), K, algorithm_config.batch_steps // K)
        explore = OnPolicyExplorer(on_policy, seeds, m, K)
        learning = OnPolicyLearning(
            on_policy, shape, n, m, batch_steps=algorithm_config.batch_steps, run_steps=run.steps
        )
    else:
        learner = algorithm = algorithm_for(run.learner, n, m, streams)
        explore = Explorer(algorithm, _number_source(run, algorithm, seeds, world), len(seeds), samples_actions=True)
        learning = _replay(run, algorithm, seeds, (n, m), prior, frame_store)
        if frame_store is not None and isinstance(algorithm, ReadsFrames):
            algorithm.bind_frames(frame_store.read)
            frame_store.references.append(learning.memories.observations)
    evaluation = world_factory([Role.PLANT_EVAL] * episodes), episodes
    steps_per_score, random_steps = run.evaluation.every, run.random_steps
    return Trials(
        learner,
        world,
        explore,
        learning,
        (len(seeds), K),
        steps_per_score=steps_per_score,
        random_steps=random_steps,
        evaluation=evaluation,
    )


def _frame_store(run: StepRun, image: Image, trials: int) -> FrameStore:
    # In the worst case, no two stored experiences share a frame.
    frames_per_trial = (run.capacity(image.frames, 1) + run.evaluation.episodes + 1) * (image.frames + 1)
    return FrameStore(math.prod(image.size), trials * frames_per_trial)


def _number_source(run: StepRun, algorithm: Algorithm, seeds: Sequence[int], world: World) -> NumberSource:
    _, m, _, horizon, _ = world.spaces
    if run.exploration is UNSET:
        correlated_noise = CorrelatedNoise(
            run.exploration_friction, len(seeds), has_unit_variance=not takes_noise(run.learner)
        )
        return StepNumbers(algorithm, correlated_noise, seeds, m, std=run.exploration_std)
    config = run_of_world(run)
    assert config is not None
    actuator_names, process = [a.name for a in config.rig.actuators], run.exploration
    return PerTrialNumbers([EpisodeNumbers(algorithm, process, [seed], horizon, actuator_names) for seed in seeds])


def _replay(
    run: StepRun,
    algorithm: Algorithm,
    seeds: Sequence[int],
    sizes: tuple[int, int],
    prior: Transitions | None,
    frame_store: FrameStore | None,
) -> Replay:
    n, m = sizes
    strategy, write_probability = parse_strategy(run.selection.strategy), run.selection.write_probability
    learning_steps, updates = run.steps - run.random_steps, run.updates_until(run.steps)
    context = SamplerContext(
        run.capacity(n, m),
        run.learner.batch,
        learning_steps,
        updates,
        run.steps,
        run.learner,
        write_probability=write_probability,
    )
    records_behaviour = isinstance(algorithm, Gaussian)
    contents = MemoryContents(
        n,
        m,
        strategy,
        context,
        write_probability,
        terminates=True,
        records_behaviour=records_behaviour,
        read_frames=None if frame_store is None else frame_store.read,
        prior=prior,
    )
    memories = Memories(contents, seeds, policy=algorithm.policy)
    measures = ReplayMeasures(run, algorithm, memories, seeds)
    return Replay(algorithm, memories, Updates(run.updates, run.update_every, run.random_steps), measures=measures)
