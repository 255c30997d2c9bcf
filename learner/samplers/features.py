"""Features of experiences that learned samplers score (Oh et al. 2021, eq. 2 and App. B), of S trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import Look, State

BYTES_PER_SLOT: Final = 12.0
_CHUNK: Final = 64
"""Rows gathered at once; equal sizes, for which the owner of the storage has its buffers."""


class Features:
    """Columns beside the slots: age, and TD error and target of the last update, 1.0 before the first.

    Observations and rewards are standardised by the mean and standard deviation of all experiences written so far,
    which the paper leaves open; TD error and target pass through tanh once; the age is the number of the write, as a
    share of the run's ``steps`` (0, not known: of what has been written so far).
    """

    def __init__(self, look: Look, trials: int, capacity: int, steps: int) -> None:
        self._look: Final = look
        self._steps: Final = steps
        self._trial: Final = np.arange(trials)[:, None]
        shape = (trials, capacity)
        self.number: Final[NDArray[np.uint32]] = np.zeros(shape, np.uint32)
        """(S, capacity): number of the write."""
        self.td: Final[NDArray[np.float32]] = np.ones(shape, np.float32)
        """(S, capacity)"""
        self.target: Final[NDArray[np.float32]] = np.ones(shape, np.float32)
        """(S, capacity)"""
        width = look.observations + 1
        self._count: Final[NDArray[np.float64]] = np.zeros(trials)
        self._mean: Final[NDArray[np.float64]] = np.zeros((trials, width))
        self._squares: Final[NDArray[np.float64]] = np.zeros((trials, width))
        """Sums of squared distances from the mean."""

    @property
    def width(self) -> int:
        """Features of ``of``: 2 n + m + 4."""
        return 2 * self._look.observations + self._look.actions + 4

    def written(self, slots: Sequence[NDArray[np.int64]]) -> None:
        """Note each trial's new experiences, in order."""
        for trial, own in enumerate(slots):
            first = int(self._count[trial]) + 1
            self.number[trial, own] = np.arange(first, first + len(own))
            self.td[trial, own] = self.target[trial, own] = 1.0
        for first in range(0, max(len(own) for own in slots), _CHUNK):
            parts = [own[first : first + _CHUNK] for own in slots]
            rows = np.zeros((len(parts), _CHUNK), np.int64)
            for row, part in zip(rows, parts, strict=True):
                row[: len(part)] = part
            stored = self._look.gather(rows)
            seen = np.concatenate((stored.observation, stored.reward[..., None]), axis=-1, dtype=np.float64)
            for trial, part in enumerate(parts):
                if len(part):
                    self._take(trial, seen[trial, : len(part)])

    def _take(self, trial: int, rows: NDArray[np.float64]) -> None:
        """Take ``rows`` into mean and variance (Chan et al. 1983)."""
        n, k = self._count[trial], len(rows)
        mean = rows.mean(axis=0)
        apart = mean - self._mean[trial]
        self._squares[trial] += np.square(rows - mean).sum(axis=0) + apart**2 * (n * k / (n + k))
        self._mean[trial] += apart * (k / (n + k))
        self._count[trial] += k

    def updated(self, slots: NDArray[np.int64], signals: Signals) -> None:
        """Note TD errors and targets, if told, of slots (S, n), as far as they are finite."""
        at = (self._trial, slots)
        for column, told in ((self.td, signals.td), (self.target, signals.target)):
            if told is not None:
                column[at] = np.where(np.isfinite(told[0]), told[0], column[at])

    def of(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """Observation, action, reward, next observation, age, TD error, target in slots (S, n): (S, n, width)."""
        stored, n = self._look.gather(slots), self._look.observations
        mean, scale = self._moments()
        parts = (
            (stored.observation - mean[..., :n]) / scale[..., :n],
            stored.action,
            ((stored.reward - mean[..., n]) / scale[..., n])[..., None],
            (stored.next_observation - mean[..., :n]) / scale[..., :n],
            self._own(slots),
        )
        return np.concatenate(parts, axis=-1, dtype=np.float32)

    def few(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """Reward, age and TD error in slots (S, n): (S, n, 3)."""
        stored, n = self._look.gather(slots), self._look.observations
        mean, scale = self._moments()
        reward = ((stored.reward - mean[..., n]) / scale[..., n])[..., None]
        return np.concatenate((reward, self._own(slots)[..., :2]), axis=-1, dtype=np.float32)

    def _own(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Age, TD error and target, (S, n, 3)."""
        run = self._steps or np.maximum(self._count, 1.0)[:, None]
        at = (self._trial, slots)
        return np.stack((self.number[at] / run, np.tanh(self.td[at]), np.tanh(self.target[at])), axis=-1)

    def _moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation, (S, 1, n + 1); 1 where nothing varies."""
        std = np.sqrt(self._squares / np.maximum(self._count, 1.0)[:, None])
        scale = np.where(std > 1e-6 * (1.0 + np.abs(self._mean)), std, 1.0)
        return self._mean[:, None], scale[:, None]

    def _columns(self) -> dict[str, NDArray[Any]]:
        columns = {"number": self.number, "td": self.td, "target": self.target}
        return columns | {"count": self._count, "mean": self._mean, "squares": self._squares}

    def state(self) -> State:
        """Copy of all columns and moments."""
        return {name: column.copy() for name, column in self._columns().items()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``; raises KeyError or ValueError if it does not fit."""
        for name, column in self._columns().items():
            if state[name].shape != column.shape:
                raise ValueError(f"{name} of shape {state[name].shape}, expected {column.shape}")
            column[...] = state[name]
