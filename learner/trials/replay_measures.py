"""Measures of replay (``step_run.REPLAY_MEASURES``), including KLPER's score with both readings of its sigma (Cicek et
al. 2021, figures 2 and 4).

The score is smallest for actions whose deviation from the current policy has KLPER's variance
(``samplers.klper.kl_scores``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Algorithm, Minibatches, Recurrent, Signals, UsesWholeMemory
from onrig.learner.sampler_settings import KlperSettings
from onrig.learner.samplers.klper import kl_scores
from onrig.learner.trials.memories import Memories
from onrig.learner.trials.step_run import DIVERGENCES, ORIGINS, READINGS, REPLAY_MEASURES, StepRun
from onrig.learner.trials.worlds import Policy
from onrig.runtime.random_streams import Role, stream

BATCHES: Final = 4
"""Number of batches of each origin at an evaluation."""
SCORING_INTERVAL: Final = 8
"""Number of updates between scored minibatches."""

Values = NDArray[np.float64]
Score = Callable[[NDArray[np.floating], NDArray[np.floating], int], Values]
"""Function from observations and actions (S, batches * n, ...) and n to scores (S, batches, ``READINGS``)."""


def make_score(policy: Policy, sigma: float) -> Score:
    """Return the function that scores batches of n experiences by the distance of their actions from the policy's."""
    variances = [KlperSettings(sigma, reading).variance for reading in READINGS]

    def score(observation: NDArray[np.floating], action: NDArray[np.floating], n: int) -> Values:
        difference = policy(observation) - action
        batches = difference.reshape(len(difference), -1, n, difference.shape[-1])
        return np.stack([kl_scores(batches, variance) for variance in variances], axis=-1)

    return score


def scores_by_origin(
    score: Score, memories: Memories, batch: int, seeds: Sequence[int], *, steps: int, random_steps: int
) -> Values:
    """Return the mean scores (S, ``ORIGINS``, ``READINGS``) of batches drawn uniformly from each origin, after
    ``steps`` training steps.

    Scores are NaN for an origin of which less than one batch is stored.  The origin ``present`` is the last
    ``BATCHES`` * ``batch`` experiences.
    """
    learning_steps = steps - random_steps
    spans = (0, random_steps), (random_steps, random_steps + learning_steps // 2), (steps - BATCHES * batch, steps)
    streams = [stream(seed, Role.PROBES, steps) for seed in seeds]
    scores = np.full((len(seeds), len(ORIGINS), len(READINGS)), np.nan)
    for origin, (first, end) in enumerate(spans):
        slots = np.zeros((len(seeds), BATCHES * batch), np.int64)
        batches = np.zeros(len(seeds), np.int64)
        for trial, rng in enumerate(streams):
            stored_slots = memories.slots_of_steps(trial, max(first, 0), end)
            batches[trial] = n_batches = min(BATCHES, len(stored_slots) // batch)
            slots[trial, : n_batches * batch] = (
                rng.choice(stored_slots, n_batches * batch, replace=False) if n_batches else 0
            )
        if batches.any():
            experiences = memories.gather(slots)
            batch_scores = score(experiences.observation, experiences.action, batch)
            for trial in np.flatnonzero(batches).tolist():
                scores[trial, origin] = batch_scores[trial, : batches[trial]].mean(axis=0)
    return scores


class ReplayMeasures:
    """Measures ``REPLAY_MEASURES`` of S trials between evaluations."""

    def __init__(self, run: StepRun, algorithm: Algorithm, memories: Memories, seeds: Sequence[int]) -> None:
        self._run, self._algorithm, self._memories, self._seeds = run, algorithm, memories, seeds
        self._uses_whole_memory = algorithm if isinstance(algorithm, UsesWholeMemory) else None
        scorable = algorithm.discrete is None and not isinstance(algorithm, Recurrent)
        self._scores_actions = scorable and run.learner.batch > 1  # a batch of one has no covariance
        self._score = make_score(algorithm.policy, run.learner.sampler_section(KlperSettings).sigma)
        self._signals, self._scores = _RunningMean(len(seeds), 2), _RunningMean(len(seeds), len(READINGS))
        self._n_unscored = 0

    def score_minibatches(self, minibatches: Minibatches) -> None:
        """Score the first of these minibatches, at intervals and before the updates."""
        self._n_unscored += len(minibatches.reward)
        if self._n_unscored < SCORING_INTERVAL or not self._scores_actions:
            return
        self._n_unscored = 0
        scores = self._score(minibatches.observation[0], minibatches.action[0], self._run.learner.batch)
        self._scores.add(scores[:, 0], 1)

    def add_signals(self, signals: Signals) -> None:
        """Add the mean |TD error| and the mean target of each trial's minibatches."""
        measures = (np.abs(signals.td), np.full_like(signals.td, np.nan) if signals.target is None else signals.target)
        sums = [signal.mean(axis=2, dtype=np.float64).sum(axis=0) for signal in measures]
        self._signals.add(np.stack(sums, axis=1), len(signals.td))

    def pop(self, steps: int) -> Values:
        """Return and reset the measures (S, k) since the last call, after ``steps`` training steps; NaN if missing."""
        measures = np.full((len(self._seeds), len(REPLAY_MEASURES)), np.nan)
        measures[:, :4] = np.concatenate((self._signals.pop(), self._scores.pop()), axis=1)
        if self._scores_actions:
            run = self._run
            origin_scores = scores_by_origin(
                self._score,
                self._memories,
                run.learner.batch,
                self._seeds,
                steps=steps,
                random_steps=run.random_steps,
            )
            measures[:, 4 : -len(DIVERGENCES)] = origin_scores.reshape(len(measures), -1)
        if self._uses_whole_memory is not None:
            measures[:, -len(DIVERGENCES) :] = self._uses_whole_memory.divergence()
        return measures


class _RunningMean:
    """Running means of k numbers for each of S trials."""

    def __init__(self, trials: int, k: int) -> None:
        self._total, self._count = np.zeros((trials, k)), 0

    def add(self, total: Values, count: int) -> None:
        """Add the sum (S, k) of ``count`` numbers."""
        self._total += total
        self._count += count

    def pop(self) -> Values:
        """Return and reset the means (S, k) since the last call; NaN if nothing was added."""
        total, count = self._total.copy(), self._count
        self._total[:], self._count = 0.0, 0
        return total / count if count else np.full_like(total, np.nan)
