"""Normalised units: a signal's [low, high] maps linearly to [-1, 1], without clipping (as in de Bruin et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


class Ranged(Protocol):
    """An observation, an actuator, or a signal of a policy's contract."""

    @property
    def low(self) -> float:
        """SI value that maps to -1."""

    @property
    def high(self) -> float:
        """SI value that maps to 1."""


class Normalisation(NamedTuple):
    """Linear map of k signals between SI and normalised units, in float64."""

    centre: Values
    """SI value that maps to 0, shape (k,)."""
    half_range: Values
    """SI size of one normalised unit, shape (k,)."""

    @classmethod
    def from_signals(cls, signals: Sequence[Ranged]) -> Normalisation:
        """Return the map for these signals, in the given order."""
        low, high = (np.array([getattr(s, end) for s in signals], np.float64) for end in ("low", "high"))
        return cls(0.5 * (low + high), 0.5 * (high - low))

    def normalise(self, values: NDArray[np.floating]) -> Values:
        """Normalise SI values (..., k)."""
        return np.asarray((values - self.centre) / self.half_range)

    def to_si(self, normalised: NDArray[np.floating]) -> Values:
        """Convert normalised values (..., k) to SI units."""
        return np.asarray(self.centre + self.half_range * normalised)
