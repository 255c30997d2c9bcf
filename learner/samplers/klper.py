"""KLPER (Cicek et al. 2021): of N candidate minibatches, the one nearest to the current policy is replayed.

The differences between the current policy's actions and the stored ones are treated as samples from a Gaussian, whose
KL divergence from N(0, v I) is the score of a batch.  Actions are normalised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.sampler_settings import KlperSettings
from onrig.learner.samplers import Draw, ReplayView, Sampler, SamplerContext, State
from onrig.learner.samplers.uniform import Uniform
from onrig.runtime.memory.keepers.keeper import Signal

RIDGE: Final = 1e-6
"""Value added to the diagonal of the covariance, which would otherwise be singular if all differences were equal."""


def kl_scores(differences: NDArray[np.floating], variance: float) -> NDArray[np.float64]:
    """Return the KL divergence (...) from N(0, variance I) of the Gaussian fitted to each batch of differences
    (..., B, m).

    Eqs. 9-14, with the unbiased covariance (1 / (B - 1)) and ``RIDGE``.  It is smallest if the differences have this
    variance, and without ``RIDGE`` would be infinite if they had none.  If the paper's sigma is read as a covariance,
    actions scattered widely around the current policy's score better than the policy's own (docs/methods.md).
    """
    d = np.asarray(differences, np.float64)
    batch, m = d.shape[-2:]
    mean = d.mean(axis=-2)
    centred_differences = d - mean[..., None, :]
    covariance = np.matmul(centred_differences.swapaxes(-1, -2), centred_differences) / (batch - 1) + RIDGE * np.eye(m)
    trace = np.trace(covariance, axis1=-2, axis2=-1)
    with np.errstate(invalid="ignore"):  # NaN from a diverged trial
        log_volume = np.linalg.slogdet(covariance)[1]
    scores: NDArray[np.float64] = 0.5 * (
        (trace + (mean * mean).sum(axis=-1)) / variance - m + m * np.log(variance) - log_volume
    )
    return scores


def action_differences(view: ReplayView, slots: NDArray[np.int64]) -> NDArray[np.floating]:
    """Return the current policy's actions minus the stored ones, normalised, for slots (S, n): (S, n, m)."""
    experiences = view.gather(slots)
    difference: NDArray[np.floating] = view.policy(experiences.observation) - experiences.action
    return difference


def select_closest(slots: NDArray[np.int64], view: ReplayView, variance: float) -> NDArray[np.int64]:
    """Select each trial's candidate with the smallest score, the first one on a tie: (N, S, B) to (S, B)."""
    n, trials, batch = slots.shape
    trial_candidates: NDArray[np.int64] = np.ascontiguousarray(slots.transpose(1, 0, 2))
    if n == 1:
        return np.array(slots[0])
    difference = action_differences(view, trial_candidates.reshape(trials, n * batch))
    best_index = kl_scores(difference.reshape(trials, n, batch, -1), variance).argmin(axis=1)
    closest_slots: NDArray[np.int64] = trial_candidates[np.arange(trials), best_index]
    return closest_slots


class Klper(Sampler):
    """Sampler that draws N minibatches uniformly and selects the one whose actions are closest to the current
    policy's."""

    required_signals: Final = frozenset({Signal.POLICY})

    def __init__(self, uniform: Uniform, n_candidates: int, view: ReplayView, variance: float) -> None:
        self._uniform: Final = uniform
        self._n_candidates: Final = n_candidates
        self._view: Final = view
        self._variance: Final = variance

    @classmethod
    def build(cls, context: SamplerContext, stream: np.random.Generator, *, weighted: bool) -> Klper:
        """Build the sampler; raise ValueError if ``context`` has no view of the policy or no number of candidates."""
        if context.view is None or context.argument is None:
            raise ValueError("KLPER needs access to a policy, and a number of candidates")
        return cls(
            Uniform(stream),
            int(context.argument),
            context.view,
            context.options.sampler_section(KlperSettings).variance,
        )

    def on_write(self, slots: NDArray[np.int64]) -> None:
        self._uniform.on_write(slots)

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Draw one minibatch, slots (1, batch), without weights.

        Raises ValueError unless ``updates`` is 1, because the policy changes between updates, or if fewer than
        ``batch`` experiences are stored.
        """
        if updates != 1:
            raise ValueError(f"expected 1 minibatch per draw, because each depends on the policy, got {updates}")
        candidates = self._uniform.draw(batch, self._n_candidates).slots
        return Draw(select_closest(candidates[:, None], self._view, self._variance), None)

    def state(self) -> State:
        return self._uniform.state()

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._uniform.restore(state)
