"""Features of the experiences that learned samplers score (Oh et al. 2021, eq. 2 and App. B), for S trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import ReplayView, State

_MAX_SAMPLED_SLOTS: Final = 1024
"""Number of stored experiences, evenly spaced over the slots, whose mean and standard deviation estimate the memory's.
"""


class Features:
    """TD error and target of each slot at its last update, 1.0 before the first, and the features derived from them.

    Observations and rewards are standardised by the memory's mean and standard deviation at the end of the last
    training episode (the paper leaves this open); TD error and target pass through tanh once.  Images are not features,
    because networks read them directly.  It does not matter how write notifications are grouped, since a rig's learner
    receives them at varying times.
    """

    def __init__(self, view: ReplayView, trials: int, capacity: int) -> None:
        self._view: Final = view
        self._n: Final = view.observations if view.read_frames is None else 0
        """Number of features of a state."""
        self._trial: Final = np.arange(trials)[:, None]
        self.td: Final[NDArray[np.float32]] = np.ones((trials, capacity), np.float32)
        """(S, capacity)"""
        self.target: Final[NDArray[np.float32]] = np.ones((trials, capacity), np.float32)
        """(S, capacity)"""
        self.n_stored: Final[NDArray[np.int64]] = np.zeros(trials, np.int64)
        """(S,): number of experiences in the memory."""
        width = self._n + 1
        self._has_moments: Final[NDArray[np.bool_]] = np.zeros(trials, np.bool_)
        """(S,): whether mean and standard deviation are known."""
        self._mean: Final[NDArray[np.float64]] = np.zeros((trials, width))
        self._std: Final[NDArray[np.float64]] = np.ones((trials, width))
        """1 for values that do not vary."""

    @property
    def width(self) -> int:
        """Number of features in ``all_features``: 2 n + m + 4."""
        return 2 * self._n + self._view.actions + 4

    def on_write(self, slots: Sequence[NDArray[np.int64]]) -> None:
        for trial, trial_slots in enumerate(slots):
            self.td[trial, trial_slots] = self.target[trial, trial_slots] = 1.0
            self.n_stored[trial] = max(self.n_stored[trial], int(trial_slots.max(initial=-1)) + 1)

    def standardise(self, trial_mask: NDArray[np.bool_]) -> None:
        """Set the mean and standard deviation to those of the memories, for the trials in ``trial_mask`` (S,)."""
        trial_mask = trial_mask & (self.n_stored > 0)
        last_slots = np.maximum(self.n_stored - 1, 0)[:, None]
        experiences = self._view.gather((np.linspace(0.0, 1.0, _MAX_SAMPLED_SLOTS) * last_slots).astype(np.int64))
        samples = np.concatenate(
            (experiences.observation[..., : self._n], experiences.reward[..., None]), axis=-1, dtype=np.float64
        )
        for trial in np.flatnonzero(trial_mask).tolist():
            mean, std = samples[trial].mean(axis=0), samples[trial].std(axis=0)
            self._mean[trial] = mean
            self._std[trial] = np.where(std > 1e-6 * (1.0 + np.abs(mean)), std, 1.0)
        self._has_moments[trial_mask] = True

    def on_update(self, slots: NDArray[np.int64], signals: Signals) -> None:
        """Store the finite TD errors and, if provided, targets of slots (S, n)."""
        index = (self._trial, slots)
        for column, values in ((self.td, signals.td), (self.target, signals.target)):
            if values is not None:
                column[index] = np.where(np.isfinite(values[0]), values[0], column[index])

    def all_features(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return s, a, reward, s', age, TD error, target in slots (S, n): (S, n, width)."""
        mean, std = self._moments()
        experiences, n = self._view.gather(slots), self._n
        columns = (
            (experiences.observation[..., :n] - mean[..., :n]) / std[..., :n],
            experiences.action,
            ((experiences.reward - mean[..., n]) / std[..., n])[..., None],
            (experiences.next_observation[..., :n] - mean[..., :n]) / std[..., :n],
            self._note_features(slots),
        )
        return np.concatenate(columns, axis=-1, dtype=np.float32)

    def score_features(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return reward, age and TD error in slots (S, n): (S, n, 3)."""
        mean, std = self._moments()
        experiences, n = self._view.gather(slots), self._n
        reward = ((experiences.reward - mean[..., n]) / std[..., n])[..., None]
        return np.concatenate((reward, self._note_features(slots)[..., :2]), axis=-1, dtype=np.float32)

    def _note_features(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return age, TD error and target, (S, n, 3)."""
        index = (self._trial, slots)
        return np.stack((self._view.age(slots), np.tanh(self.td[index]), np.tanh(self.target[index])), axis=-1)

    def _moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation, (S, 1, n + 1)."""
        if not self._has_moments.all():
            self.standardise(~self._has_moments)
        return self._mean[:, None], self._std[:, None]

    def _columns(self) -> dict[str, NDArray[Any]]:
        columns: dict[str, NDArray[Any]] = {"td": self.td, "target": self.target, "stored": self.n_stored}
        return columns | {"known": self._has_moments, "mean": self._mean, "std": self._std}

    def state(self) -> State:
        return {name: column.copy() for name, column in self._columns().items()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        for name, column in self._columns().items():
            if state[name].shape != column.shape:
                raise ValueError(f"{name} of shape {state[name].shape}, expected {column.shape}")
            column[...] = state[name]
