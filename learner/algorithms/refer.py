"""ReF-ER: remember and forget experience replay (Novati and Koumoutsakos 2019, §3), for any policy with a density.

Rule 1: an experience is *far* if the importance ratio rho of its action is outside (1/c, c); the gradient of the
algorithm's own loss excludes far experiences.  Rule 2: this gradient is mixed with the gradient of the KL divergence
between the behaviour policy and the current one.  The coefficient beta is adapted to keep the share of far experiences
in the memory at D. c and the step size are annealed.

The ratio is that of the action that the policy sampled, since the shield counts as part of the environment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.notes import Notes
from onrig.learner.refer_settings import ReferSettings
from onrig.learner.tape.array import Array
from onrig.learner.tape.densities import importance_ratio, kl_divergence, log_density
from onrig.learner.tape.elementary import greater

RECLASSIFY_EVERY: Final = 1000
"""Number of updates after which all stored experiences are classified again, because c shrinks."""
_MAX_UNMASKED_RATIO: Final = 1e3
"""Maximum importance ratio if rule 1 does not bound it (§5.3)."""


Index = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Trials and slots of a set of experiences."""


class BehaviourSample(NamedTuple):
    """Behaviour policies and the actions sampled from them: (B, m) each."""

    drawn: Array
    mean: Array
    std: Array


class PolicyDistance(NamedTuple):
    """Distance of the current policy from the behaviour policy, (B, 1) each, with gradients."""

    rho: Array
    """pi(a|s) / mu(a|s)."""
    kl: Array


def policy_distance(settings: ReferSettings, sample: BehaviourSample, mean: Array, std: Array) -> PolicyDistance:
    """Compute the distance of the current policy from the behaviour policies."""
    max_ratio = math.inf if settings.uses_rule_1 else _MAX_UNMASKED_RATIO
    log_densities = log_density(sample.drawn, mean, std), log_density(sample.drawn, sample.mean, sample.std)
    behaviour_policy, current_policy = (sample.mean, sample.std), (mean, std)
    first_policy, second_policy = (
        (behaviour_policy, current_policy) if settings.kl == "mu_pi" else (current_policy, behaviour_policy)
    )
    return PolicyDistance(importance_ratio(*log_densities, max_ratio), kl_divergence(*first_policy, *second_policy))


class Rules(NamedTuple):
    """Parameters of ReF-ER that are constant within an update (``Refer.rules``), (1, 1) each."""

    beta: Array
    min_ratio: Array
    """Lower bound of near ratios; the upper bound, ``max_ratio``, is infinite without rule 1."""
    max_ratio: Array
    annealing: Array
    """Factor applied to the step size."""

    def near_mask(self, rho: Array) -> Array:
        """Return the factor of an algorithm's own loss: 0 where rule 1 excludes an experience, else 1."""
        return greater(rho, self.min_ratio) * greater(self.max_ratio, rho)

    def mix(self, loss: Array, distance: PolicyDistance) -> Array:
        """Mix a loss and the KL divergence, (B, 1) each: eq. 10."""
        return self.beta * self.near_mask(distance.rho) * loss + (1.0 - self.beta) * distance.kl


class Refer:
    """State of both rules for S trials, with the columns ``rho``, ``far`` and ``kl`` per slot."""

    def __init__(self, settings: ReferSettings, batch: int, notes: Notes) -> None:
        self.settings: Final = settings
        self.updates = 0
        self._notes: Final = notes
        self.rho: Final = notes.add_column("rho", 1.0)
        """(S, capacity): importance ratio at the last replay."""
        self.far: Final = notes.add_column("far", False, np.bool_)
        self.kl: Final = notes.add_column("kl", 0.0)
        self._beta_step: Final = 0.1 * batch / notes.capacity
        self.beta: NDArray[np.float64] = np.full(notes.trials, 0.0 if settings.uses_rule_2 else 1.0)
        """(S,)"""

    @property
    def annealing(self) -> float:
        """Factor applied to the step size (eq. 13); 1 if no rule is active."""
        return 1.0 / (1.0 + self.settings.anneal * self.updates) if self.settings.rules != "none" else 1.0

    @property
    def max_near_ratio(self) -> float:
        """c: the maximum ratio of a near experience (eq. 13)."""
        return 1.0 + self.settings.c / (1.0 + self.settings.anneal * self.updates)

    @property
    def rules(self) -> NDArray[np.float64]:
        """Values of ``Rules`` for the next update, (S, 4)."""
        rules = np.empty((len(self.beta), 4))
        rules[:, 0], rules[:, 3] = self.beta, self.annealing
        rules[:, 1:3] = (
            (1.0 / self.max_near_ratio, self.max_near_ratio) if self.settings.uses_rule_1 else (-math.inf, math.inf)
        )
        return rules

    def classify(
        self, slots: NDArray[np.int64], rho: NDArray[np.floating], kl: NDArray[np.floating]
    ) -> NDArray[np.bool_]:
        """Classify replayed experiences (S, B), adapt beta to the share of far experiences before them, and count the
        update.

        Return which experiences are far.
        """
        far_fraction = self.far_fraction if self.settings.uses_rule_2 else 0.0
        far = self.record((np.arange(len(slots))[:, None], slots), rho, kl)
        if self.settings.uses_rule_2:
            self.beta = (1.0 - self._beta_step) * self.beta + np.where(
                far_fraction > self.settings.far_share, 0.0, self._beta_step
            )
        self.count_update()
        return far

    def record(self, index: Index, rho: NDArray[np.floating], kl: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Record the ratios and divergences of replayed experiences, and return which of them are far."""
        far = self._is_far(rho)
        self.rho[index], self.far[index], self.kl[index] = rho, far, kl
        return far

    def count_update(self) -> None:
        """Count an update, and classify all experiences again at intervals, because c shrinks."""
        self.updates += 1
        if self.updates % RECLASSIFY_EVERY == 0:
            self.far[:] = self._is_far(self.rho)

    def _is_far(self, rho: NDArray[np.floating]) -> NDArray[np.bool_]:
        min_ratio, max_ratio = (rho.dtype.type(bound) for bound in (1.0 / self.max_near_ratio, self.max_near_ratio))
        near: NDArray[np.bool_] = (min_ratio < rho) & (rho < max_ratio)
        return ~near

    @property
    def far_fraction(self) -> NDArray[np.float64]:
        """(S,): share of far experiences among those stored."""
        # One count per trial: counting along an axis takes ten times as long.  Empty slots are not far.
        far = np.array([np.count_nonzero(trial_far) for trial_far in self.far])
        return np.asarray(far / np.maximum(self._notes.stored, 1))

    @property
    def mean_kl(self) -> NDArray[np.float64]:
        """(S,): mean over the stored experiences of the KL divergence at their last replay."""
        return np.asarray(self.kl.sum(axis=1, dtype=np.float64) / np.maximum(self._notes.stored, 1))

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return a copy of beta and the update count; the columns are saved with the notes."""
        return {"beta": self.beta.copy(), "judged": np.array(self.updates)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self.beta[:] = state["beta"]
        self.updates = int(state["judged"])
