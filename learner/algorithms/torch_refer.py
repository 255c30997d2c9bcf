"""ReF-ER: remember and forget experience replay (Novati and Koumoutsakos 2019, §3), for any policy with a density.

Rule 1: an experience is *far* where the importance ratio rho of its action is outside of (1/c, c); the gradient of the
algorithm's own loss leaves it out.  Rule 2: that gradient is mixed with the one of the KL divergence between the policy
that acted and the present one, by a coefficient beta that holds the share of far experiences in the memory at D.  c and
the step size are annealed.

What the shield makes of an action belongs to the world: an experience counts by the action that the policy drew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms.densities import importance_ratio, kl_divergence, log_density
from onrig.learner.notes import Notes
from onrig.learner.refer_settings import ReferSettings

RECLASSIFY_EVERY: Final = 1000
"""Updates after which all stored experiences are judged anew, since c shrinks."""
_GREATEST: Final = 1e3
"""Largest ratio where rule 1 does not bound it (§5.3)."""


Index = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Trial and slot of some experiences."""


class Apart(NamedTuple):
    """How far the present policy is from the one that acted, (S, B) each, with gradients."""

    rho: torch.Tensor
    """pi(a|s) / mu(a|s)."""
    kl: torch.Tensor


class Weights(NamedTuple):
    """What ReF-ER makes of the losses of S minibatches."""

    near: torch.Tensor
    """(S, B): factor of the algorithm's own loss, 0 where rule 1 leaves an experience out."""
    beta: torch.Tensor
    """(S, 1): the further factor of the policy's loss; that of the KL divergence is 1 - beta."""

    def mixed(self, loss: torch.Tensor, kl: torch.Tensor) -> torch.Tensor:
        """Mixture of a loss and the KL divergence, (S, B) each: eq. 10."""
        return self.beta * self.near * loss + (1.0 - self.beta) * kl


class Refer:
    """Both rules for S trials; it keeps the columns ``rho``, ``far`` and ``kl`` beside the slots."""

    def __init__(self, settings: ReferSettings, batch: int, notes: Notes) -> None:
        self.settings: Final = settings
        self.updates = 0
        self._notes: Final = notes
        self.rho: Final = notes.column("rho", 1.0)
        """(S, capacity): as of the last replay."""
        self.far: Final = notes.column("far", False, np.bool_)
        self.kl: Final = notes.column("kl", 0.0)
        self._step: Final = 0.1 * batch / notes.capacity
        """Of beta (eq. 12); constant, as in the authors' code."""
        self.beta: NDArray[np.float64] = np.full(notes.trials, 0.0 if settings.mixes else 1.0)
        """(S,)"""

    @property
    def annealing(self) -> float:
        """Factor of the step size (eq. 13); 1 where no rule is in force."""
        return 1.0 / (1.0 + self.settings.anneal * self.updates) if self.settings.rules != "none" else 1.0

    @property
    def cut(self) -> float:
        """c: the largest ratio of a near experience (eq. 13)."""
        return 1.0 + self.settings.c / (1.0 + self.settings.anneal * self.updates)

    def apart(
        self,
        drawn: torch.Tensor,
        acted: tuple[torch.Tensor, torch.Tensor],
        present: tuple[torch.Tensor, torch.Tensor],
    ) -> Apart:
        """Compare the policy that ``acted`` with the ``present`` one, mean and std (S, B, m) each."""
        greatest = math.inf if self.settings.masks else _GREATEST
        rho = importance_ratio(log_density(drawn, *present), log_density(drawn, *acted), greatest)
        first, second = (acted, present) if self.settings.kl == "mu_pi" else (present, acted)
        return Apart(rho, kl_divergence(*first, *second))

    def weigh(self, slots: NDArray[np.int64], apart: Apart) -> Weights:
        """Judge replayed experiences in slots (S, B), and move beta by the far ones stored before."""
        share = self.far_share if self.settings.mixes else 0.0
        at = (np.arange(len(slots))[:, None], slots)
        far = self.note(at, apart.rho.detach().numpy(), apart.kl.detach().numpy())
        near = ~far if self.settings.masks else np.ones_like(far)
        weights = Weights(torch.from_numpy(near).to(apart.kl), torch.from_numpy(self.beta[:, None]).to(apart.kl))
        if self.settings.mixes:
            self.beta = (1.0 - self._step) * self.beta + np.where(share > self.settings.far_share, 0.0, self._step)
        self.count()
        return weights

    def note(self, at: Index, rho: NDArray[np.floating], kl: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Note ratios and divergences of replayed experiences; returns which are far."""
        far = self._is_far(rho)
        self.rho[at], self.far[at], self.kl[at] = rho, far, kl
        return far

    def count(self) -> None:
        """Count an update, after which c may have shrunk."""
        self.updates += 1
        if self.updates % RECLASSIFY_EVERY == 0:
            self.far[:] = self._is_far(self.rho)

    def _is_far(self, rho: NDArray[np.generic]) -> NDArray[np.bool_]:
        ratio = np.asarray(rho, np.float64)
        near: NDArray[np.bool_] = (1.0 / self.cut < ratio) & (ratio < self.cut)
        return ~near

    @property
    def far_share(self) -> NDArray[np.float64]:
        """(S,): share of far experiences among those stored."""
        far = np.count_nonzero(self.far, axis=1)  # a slot that was never written is not far
        return np.asarray(far / np.maximum(self._notes.stored, 1))

    @property
    def mean_kl(self) -> NDArray[np.float64]:
        """(S,): mean KL divergence over what is stored, as of each experience's last replay."""
        return np.asarray(self.kl.sum(axis=1, dtype=np.float64) / np.maximum(self._notes.stored, 1))

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Copy of beta and the count of updates; the columns are saved with the notes."""
        return {"beta": self.beta.copy(), "judged": np.array(self.updates)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``; raises KeyError or ValueError if it does not fit."""
        self.beta[:] = state["beta"]
        self.updates = int(state["judged"])
