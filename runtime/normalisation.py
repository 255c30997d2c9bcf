"""Normalised units: [low, high] of a signal maps linearly to [-1, 1], not clipped (as in de Bruin et al. 2018)."""

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
        """SI value mapped to -1."""

    @property
    def high(self) -> float:
        """SI value mapped to 1."""


class Normalisation(NamedTuple):
    """Map of k signals between SI and normalised units, in float64."""

    centre: Values
    """(k,) SI value mapped to 0."""
    half_range: Values
    """(k,) SI size of one normalised unit."""

    @classmethod
    def from_signals(cls, signals: Sequence[Ranged]) -> Normalisation:
        """Return the map for these signals, in their order."""
        low, high = (np.array([getattr(s, end) for s in signals], np.float64) for end in ("low", "high"))
        return cls(0.5 * (low + high), 0.5 * (high - low))

    def normalise(self, values: NDArray[np.floating]) -> Values:
        """Normalise SI values (..., k)."""
        return np.asarray((values - self.centre) / self.half_range)

    def to_si(self, normalised: NDArray[np.floating]) -> Values:
        """Convert normalised values (..., k) to SI units."""
        return np.asarray(self.centre + self.half_range * normalised)
