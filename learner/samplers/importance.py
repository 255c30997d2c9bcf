"""Importance-sampling weights, w = (1 / (n P))^beta (de Bruin et al. 2018, eq. 8), and schedules of beta."""

from __future__ import annotations

import enum
from typing import Final

import numpy as np
from numpy.typing import NDArray


class Scale(enum.Enum):
    """Normalisation of the weights."""

    NONE = "none"
    """No normalisation: E_P[w] = 1 at beta = 1, which preserves the learning rate (as in the paper)."""
    BATCH_MAX = "batch_max"
    """Division by the largest weight of the minibatch."""
    GLOBAL_MAX = "global_max"
    """Division by the largest weight in the memory."""


def importance_weights(
    relative_probability: NDArray[np.float64], beta: float | NDArray[np.float64], scale: Scale, min_probability: float
) -> NDArray[np.float32]:
    """Compute weights (updates, batch) of draws from ``relative_probability`` n P, their probability relative to
    uniform draws.

    n is the number of stored experiences; in eq. 8 it is the capacity, even before the memory is full.
    ``min_probability`` is the smallest n P in the memory, for ``GLOBAL_MAX``.
    """
    if scale is Scale.BATCH_MAX:
        relative_probability = relative_probability / relative_probability.min(axis=1, keepdims=True)
    elif scale is Scale.GLOBAL_MAX:
        relative_probability = relative_probability / min_probability
    return np.power(relative_probability, -beta).astype(np.float32)


class LinearSchedule:
    """Linear schedule over episodes: ``first`` in episode 1, ``last`` from episode ``episodes`` on (§3.3.2: 0.5 -> 1).

    It may also run over updates instead of episodes (Oh et al. 2021: footnote 3 states a decrease, the text and the
    table an increase).
    """

    def __init__(self, first: float, last: float, episodes: int) -> None:
        self.first: Final = first
        self.last: Final = last
        self.episodes: Final = episodes

    def value_at(self, episode: int) -> float:
        """Return the value in training episode ``episode`` (1, 2, ...)."""
        if episode >= self.episodes:
            return self.last
        return self.first + (self.last - self.first) * max(episode - 1, 0) / (self.episodes - 1)
