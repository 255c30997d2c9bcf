"""Measures of replay (``step_run.REPLAYED``), among them KLPER's score under both readings of its sigma (Cicek et al.
2021, figures 2 and 4).

It is least for actions that depart from the present policy's with KLPER's variance (``samplers.klper.kl_scores``).
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
from onrig.learner.trials.step_run import DEPARTURE, ORIGINS, READINGS, REPLAYED, StepRun
from onrig.learner.trials.worlds import Policy
from onrig.runtime.random_streams import Role, stream

BATCHES: Final = 4
"""Batches of each origin, at an evaluation."""
SCORED_EVERY: Final = 8
"""Updates of which one minibatch is given KLPER's score."""

Values = NDArray[np.float64]
Score = Callable[[NDArray[np.floating], NDArray[np.floating], int], Values]
"""Function of observations and actions (S, batches * n, ...) and n: (S, batches, ``READINGS``)."""


def scores_for(policy: Policy, sigma: float) -> Score:
    """KLPER's score of batches of n experiences each, by how far their actions are from the policy's."""
    variances = [KlperSettings(sigma, reading).variance for reading in READINGS]

    def score(observation: NDArray[np.floating], action: NDArray[np.floating], n: int) -> Values:
        apart = policy(observation) - action
        by_batch = apart.reshape(len(apart), -1, n, apart.shape[-1])
        return np.stack([kl_scores(by_batch, variance) for variance in variances], axis=-1)

    return score


def scores_by_origin(
    score: Score, memories: Memories, batch: int, seeds: Sequence[int], *, steps: int, random_steps: int
) -> Values:
    """Mean scores (S, ``ORIGINS``, ``READINGS``) of uniform batches of each origin, after that many training steps.

    NaN where no batch of that origin is stored.  Present are the experiences of the last ``BATCHES`` batches.
    """
    learning = steps - random_steps
    spans = (0, random_steps), (random_steps, random_steps + learning // 2), (steps - BATCHES * batch, steps)
    streams = [stream(seed, Role.PROBES, steps) for seed in seeds]
    scores = np.full((len(seeds), len(ORIGINS), len(READINGS)), np.nan)
    for origin, (first, end) in enumerate(spans):
        slots = np.zeros((len(seeds), BATCHES * batch), np.int64)
        batches = np.zeros(len(seeds), np.int64)
        for trial, drawn in enumerate(streams):
            stored = memories.slots_of_steps(trial, max(first, 0), end)
            batches[trial] = number = min(BATCHES, len(stored) // batch)
            slots[trial, : number * batch] = drawn.choice(stored, number * batch, replace=False) if number else 0
        if batches.any():
            experiences = memories.gather(slots)
            found = score(experiences.observation, experiences.action, batch)
            for trial in np.flatnonzero(batches).tolist():
                scores[trial, origin] = found[trial, : batches[trial]].mean(axis=0)
    return scores


class Measures:
    """Measures of ``REPLAYED``, of S trials between evaluations."""

    def __init__(self, run: StepRun, algorithm: Algorithm, memories: Memories, seeds: Sequence[int]) -> None:
        self._run, self._algorithm, self._memories, self._seeds = run, algorithm, memories, seeds
        self._whole_memory = algorithm if isinstance(algorithm, UsesWholeMemory) else None
        scorable = algorithm.discrete is None and not isinstance(algorithm, Recurrent)
        self._scores_actions = scorable and run.learner.batch > 1  # a batch of one has no covariance
        self._score = scores_for(algorithm.policy, run.learner.of_sampler(KlperSettings).sigma)
        self._signals, self._scores = _Mean(len(seeds), 2), _Mean(len(seeds), len(READINGS))
        self._unscored = 0

    def before(self, minibatches: Minibatches) -> None:
        """Score the first of these minibatches, now and then, before they are learned from."""
        self._unscored += len(minibatches.reward)
        if self._unscored < SCORED_EVERY or not self._scores_actions:
            return
        self._unscored = 0
        scores = self._score(minibatches.observation[0], minibatches.action[0], self._run.learner.batch)
        self._scores.add(scores[:, 0], 1)

    def after(self, signals: Signals) -> None:
        """Sum mean |TD error| and mean target of each trial's minibatches."""
        measures = (np.abs(signals.td), np.full_like(signals.td, np.nan) if signals.target is None else signals.target)
        sums = [signal.mean(axis=2, dtype=np.float64).sum(axis=0) for signal in measures]
        self._signals.add(np.stack(sums, axis=1), len(signals.td))

    def taken(self, steps: int) -> Values:
        """Take the measures (S, k) since the last time, after ``steps`` training steps; NaN without any."""
        replayed = np.full((len(self._seeds), len(REPLAYED)), np.nan)
        replayed[:, :4] = np.concatenate((self._signals.taken(), self._scores.taken()), axis=1)
        if self._scores_actions:
            run = self._run
            of_origins = scores_by_origin(
                self._score,
                self._memories,
                run.learner.batch,
                self._seeds,
                steps=steps,
                random_steps=run.random_steps,
            )
            replayed[:, 4 : -len(DEPARTURE)] = of_origins.reshape(len(replayed), -1)
        if self._whole_memory is not None:
            replayed[:, -len(DEPARTURE) :] = self._whole_memory.departure()
        return replayed


class _Mean:
    """Running mean for S trials, k numbers each."""

    def __init__(self, trials: int, k: int) -> None:
        self._total, self._count = np.zeros((trials, k)), 0

    def add(self, total: Values, count: int) -> None:
        """Add the sum (S, k) of ``count`` numbers."""
        self._total += total
        self._count += count

    def taken(self) -> Values:
        """Mean (S, k) since the last time, NaN without any."""
        total, count = self._total.copy(), self._count
        self._total[:], self._count = 0.0, 0
        return total / count if count else np.full_like(total, np.nan)
