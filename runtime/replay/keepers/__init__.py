"""Retention strategies: which slot a new experience takes.  ``keeper_for`` builds the one a strategy names."""

from __future__ import annotations

import numpy as np

from runtime.replay.keepers.cyclic import Fifo, Full
from runtime.replay.keepers.keeper import REJECTED, Keeper
from runtime.replay.keepers.ranked import Exploration, TdError
from runtime.replay.keepers.reservoir import Reservoir
from runtime.replay.strategy import Strategy

__all__ = ["REJECTED", "Keeper", "keeper_for"]


def keeper_for(strategy: Strategy, capacity: int, rng: np.random.Generator) -> Keeper:
    """Build the keeper that ``strategy`` names; ``rng`` (PCG64) becomes its own, drawn from by nobody else.

    Raises ValueError for a retention it does not know.
    """
    if strategy.retention == "FIFO":
        return Fifo(capacity)
    if strategy.retention == "FULL":
        return Full(capacity)
    if strategy.retention == "Resv":
        return Reservoir(capacity, rng)
    if strategy.alpha is not None and strategy.retention == "TDE":
        return TdError(capacity, strategy.alpha, rng)
    if strategy.alpha is not None and strategy.retention == "Expl":
        return Exploration(capacity, strategy.alpha, rng)
    raise ValueError(f"unknown retention '{strategy.retention}' (exponent {strategy.alpha})")
