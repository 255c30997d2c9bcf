"""TDE and Expl: experiences are ranked by usefulness, and the least useful one is the most likely to be overwritten.

Source: de Bruin et al. 2018, §7.1.2, eq. 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.keepers.keeper import Arrays, Keeper, Parameter, Signal
from onrig.runtime.memory.layout import Slots
from onrig.runtime.memory.order.compiled import ranked_slots
from onrig.runtime.memory.order.ranked import BYTES_PER_SLOT, INFINITY_BITS
from onrig.runtime.memory.order.uniforms import UNIFORMS_BYTES, Uniforms

MAX_EXPONENT: Final = 100.0
"""Maximum exponent of a rank law; beyond it the second rank is never drawn, and the integral overflows."""
_DIRECTORY_BYTES: Final = 16_384
"""Bytes of an empty ranked order, including those that its leaves need beyond ``BYTES_PER_SLOT``."""
# Below this |1 - alpha|, rounding in the power form of the integral costs more accuracy than replacing it with the
# logarithm, whose error is about |1 - alpha| ln n in a probability.
_LOG_FORM_TOLERANCE: Final = 1e-8


class RankDistribution:
    """Distribution P(j) ~ j^-alpha over the ranks 1 ... n (de Bruin et al. 2018, eq. 7), drawn exactly, without a
    table, and in a few steps.

    The method is rejection-inversion, which takes 1 to 1.2 uniforms per draw: W. Hörmann, G. Derflinger,
    "Rejection-inversion to generate variates from monotone discrete distributions", ACM TOMACS 6(3), 1996.  The code of
    de Bruin et al. draws one of max(3, C/500) bins of equal probability and a uniform rank within it, which only
    approximates the distribution.
    """

    def __init__(self, n: int, alpha: float) -> None:
        """Set up ``n`` >= 1 ranks and a finite exponent ``alpha`` >= 0; raises ValueError for other values."""
        if n < 1 or not (math.isfinite(alpha) and alpha >= 0):
            raise ValueError(f"expected at least one rank and a finite exponent of at least 0, got {n} and {alpha}")
        self.n: Final = n
        self.alpha: Final = alpha
        self._is_logarithmic: Final = abs(1.0 - alpha) < _LOG_FORM_TOLERANCE
        self._power: Final = 1.0 - alpha
        self._low: Final = self._integral(1.5) - 1.0
        self._span: Final = self._low - self._integral(n + 0.5)
        self._high: Final = self._integral(n + 0.5)
        self._accept_distance: Final = 2.0 - self._inverse(self._integral(2.5) - 2.0**-alpha)

    def _integral(self, x: float) -> float:
        return math.log(x) if self._is_logarithmic else x**self._power / self._power

    def _inverse(self, y: float) -> float:
        return math.exp(y) if self._is_logarithmic else (y * self._power) ** (1.0 / self._power)

    def draw(self, uniform: Callable[[], float]) -> int:
        """Return a random rank in 1 ... n, based on numbers from ``uniform`` over [0, 1)."""
        while True:
            y = self._high + uniform() * self._span
            x = math.exp(y) if self._is_logarithmic else (y * self._power) ** (1.0 / self._power)
            k = int(x + 0.5)
            if k < 1:
                k = 1
            elif k > self.n:
                k = self.n
            if k - x <= self._accept_distance or y >= self._integral(k + 0.5) - k**-self.alpha:
                return k


class RankedKeeper(Keeper):
    """Overwrites the experience at a random rank, drawn with P ~ rank^-alpha; rank 1 has the smallest key, and ties are
    in insertion order.

    A new experience is always written.  Ranks follow the exact distribution (:class:`RankDistribution`).
    """

    parameter = Parameter("ALPHA", "exponent", "rank law", MAX_EXPONENT)
    bytes_per_slot = BYTES_PER_SLOT
    fixed_bytes = UNIFORMS_BYTES + _DIRECTORY_BYTES
    checkpoint_bytes_per_slot = 16.0
    holds = "the order of its ranks"

    def __init__(self, capacity: int, rng: np.random.Generator, alpha: float) -> None:
        super().__init__(capacity, rng)
        self._distribution: Final = RankDistribution(capacity, alpha)
        self._uniforms: Final = Uniforms(rng)
        self._uniform: Final = self._uniforms.next
        self._order: Final = ranked_slots(capacity)
        self._n_filled = 0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._order.nbytes

    def place(self) -> int:
        """Return the next free slot; if there is none, remove a victim from the order and return its slot."""
        if self._n_filled < self.capacity:
            self._n_filled += 1
            return self._n_filled - 1
        return self._order.pop(self._distribution.draw(self._uniform) - 1)

    def state(self) -> Arrays:
        """Return the order, its keys by slot, and the position in the random stream."""
        return super().state() | {
            "alpha": np.array(self._distribution.alpha),
            "keys": self._order.keys.copy(),
            "uniforms": self._uniforms.state(),
        }

    def restore(self, state: Arrays) -> None:
        """Restore ``state``."""
        super().restore(state)
        if float(state["alpha"]) != self._distribution.alpha:
            raise ValueError(
                f"state of {self.name}({state['alpha']}), expected {self.name}({self._distribution.alpha})"
            )
        keys = state["keys"].astype(np.uint64)
        n_filled = int(np.count_nonzero(keys))
        if not keys[:n_filled].all():
            raise ValueError("state with a free slot below an occupied one")
        self._order.load(keys)
        self._uniforms.restore(state["uniforms"].astype(np.uint64))
        self._n_filled = n_filled


class TdError(RankedKeeper):
    """TDE(alpha): keeps the experiences with the largest |TD error| at their latest replay (§7.1.1); one that has not
    been replayed yet counts as +inf."""

    name = "TDE"
    required_signals = frozenset({Signal.TD_ERROR})

    def on_write(self, slot: int, exploration: float, episode: int) -> None:
        """Rank a new experience highest until it is replayed."""
        self._order.insert(slot, INFINITY_BITS)

    def on_feedback(self, signal: Signal, slots: Slots, values: NDArray[np.float32]) -> None:
        """Rank by the latest |TD error|."""
        if signal is Signal.TD_ERROR:
            self._order.rank(slots, values)


class Exploration(RankedKeeper):
    """Expl(alpha): keeps the experiences with the largest exploration magnitude when they were collected (§7.1.1)."""

    name = "Expl"
    required_signals = frozenset({Signal.EXPLORATION})

    def __init__(self, capacity: int, rng: np.random.Generator, alpha: float) -> None:
        super().__init__(capacity, rng, alpha)
        value = np.zeros(1, np.float32)
        self._value: Final = value.data.cast("B").cast("f")
        self._bits: Final = value.data.cast("B").cast("I")

    def on_write(self, slot: int, exploration: float, episode: int) -> None:
        """Rank by the exploration magnitude; NaN ranks lowest."""
        self._value[0] = abs(exploration)
        bits = self._bits[0]
        self._order.insert(slot, bits if bits <= INFINITY_BITS else 0)
