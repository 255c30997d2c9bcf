"""Retention strategies: which slot a new experience takes.  ``keeper_for`` builds the one a strategy names."""

from __future__ import annotations

from typing import Final

import numpy as np

from onrig.runtime.replay.keepers.cyclic import Fifo, Full
from onrig.runtime.replay.keepers.keeper import REJECTED, Keeper
from onrig.runtime.replay.keepers.ranked import Exploration, TdError
from onrig.runtime.replay.keepers.reservoir import Reservoir
from onrig.runtime.replay.keepers.thinned import Thinned
from onrig.runtime.replay.order.ranked import BYTES_PER_SLOT
from onrig.runtime.replay.strategy import Strategy

__all__ = ["REJECTED", "Keeper", "keeper_for", "overhead_bytes"]

_NUMBER_BYTES: Final = 8
"""What storage that is not cyclic holds beside each row: the number of its last write."""


def keeper_for(
    strategy: Strategy, capacity: int, rng: np.random.Generator, *, write_probability: float = 1.0
) -> Keeper:
    """Build the keeper that ``strategy`` names; ``rng`` (PCG64) becomes its own, drawn from by nobody else.

    With a ``write_probability`` below 1 experiences are dropped at random before they are offered (000 §6.4, [DE]).
    Raises ValueError for a retention it does not know, and for a probability outside (0, 1].
    """
    keeper = _keeper(strategy, capacity, rng)
    if write_probability == 1.0:
        return keeper
    return Thinned(keeper, write_probability, rng.spawn(1)[0])


def overhead_bytes(strategy: Strategy) -> float:
    """Return the most that ``strategy`` needs per slot beside ``Layout.row_bytes``."""
    if strategy.retention in ("FIFO", "FULL"):
        return 0.0
    return _NUMBER_BYTES + (BYTES_PER_SLOT if strategy.retention in ("TDE", "Expl") else 0.0)


def _keeper(strategy: Strategy, capacity: int, rng: np.random.Generator) -> Keeper:
    match strategy.retention, strategy.alpha:
        case "FIFO", None:
            return Fifo(capacity)
        case "FULL", None:
            return Full(capacity)
        case "Resv", None:
            return Reservoir(capacity, rng)
        case "TDE", float(alpha):
            return TdError(capacity, alpha, rng)
        case "Expl", float(alpha):
            return Exploration(capacity, alpha, rng)
    raise ValueError(f"unknown retention '{strategy.retention}' with exponent {strategy.alpha}")
