"""KLPER's score as a measure of replay (Cicek et al. 2021, figures 2 and 4), under both readings of its sigma.

It is least for actions that depart from the present policy's with KLPER's variance (``samplers.klper.kl_scores``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.sampler_settings import KlperSettings
from onrig.learner.samplers.klper import kl_scores
from onrig.learner.trials.memories import Memories, Policy
from onrig.learner.trials.step_run import ORIGINS, READINGS
from onrig.runtime.random_streams import Role, stream

BATCHES: Final = 4
"""Of each origin, at an evaluation."""

Values = NDArray[np.float64]
Score = Callable[[NDArray[np.floating], NDArray[np.floating], int], Values]
"""Of observations and actions (S, batches * n, ...) and n: (S, batches, ``READINGS``)."""


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
            stored = memories.made_between(trial, max(first, 0), end)
            batches[trial] = number = min(BATCHES, len(stored) // batch)
            slots[trial, : number * batch] = drawn.choice(stored, number * batch, replace=False) if number else 0
        if batches.any():
            experiences = memories.gather(slots)
            found = score(experiences.observation, experiences.action, batch)
            for trial in np.flatnonzero(batches).tolist():
                scores[trial, origin] = found[trial, : batches[trial]].mean(axis=0)
    return scores
