"""How many experiences fit into so many bytes, everything counted that the memory holds beside them."""

from __future__ import annotations

from typing import Final

from onrig.runtime.replay.keepers import overhead_bytes
from onrig.runtime.replay.layout import Layout
from onrig.runtime.replay.order.uniforms import BLOCK
from onrig.runtime.replay.storage import RECENT_WRITES, capacity_in
from onrig.runtime.replay.strategy import PLAIN_RETENTIONS, RANKED_RETENTIONS, Strategy

_BLOCK_BYTES: Final = 32 * BLOCK
"""A block of random numbers: as many Python floats, and the list of them."""
_DIRECTORY_BYTES: Final = 16_384
"""What a ranked order needs before its first slot, and its leaves beyond what ``overhead_bytes`` counts."""


def checkpoint_bytes(strategy: Strategy) -> float:
    """Return the bytes per slot that checkpoints of an order need in memory: its copy, and the one that replaces it."""
    return 16.0 if strategy.retention in RANKED_RETENTIONS else 0.0


def fixed_bytes(strategy: Strategy, *, thinned: bool = False) -> int:
    """Return the most that a memory under ``strategy`` holds whatever its capacity; ``thinned``: some is dropped."""
    fixed = _BLOCK_BYTES if thinned else 0
    if strategy.retention in ("FIFO", "FULL"):
        return fixed
    ranked = 0 if strategy.retention in PLAIN_RETENTIONS else _DIRECTORY_BYTES
    return fixed + 8 * RECENT_WRITES + _BLOCK_BYTES + ranked


def bytes_of(strategy: Strategy, capacity: int, n_obs: int, n_act: int, *, thinned: bool = False) -> float:
    """Return the most that storage, keeper and checkpoints of ``capacity`` experiences hold."""
    each = Layout(n_obs, n_act).row_bytes + overhead_bytes(strategy) + checkpoint_bytes(strategy)
    return fixed_bytes(strategy, thinned=thinned) + capacity * each


def capacity_within(strategy: Strategy, budget_bytes: int, n_obs: int, n_act: int, *, thinned: bool = False) -> int:
    """Return the largest capacity whose storage, keeper and checkpoints never hold more than ``budget_bytes``.

    Raises ValueError when not even one experience fits.
    """
    fixed = fixed_bytes(strategy, thinned=thinned)
    if fixed >= budget_bytes:
        raise ValueError(f"{budget_bytes} bytes are too few: {strategy} needs {fixed} before its first experience")
    return capacity_in(budget_bytes - fixed, n_obs, n_act, overhead_bytes(strategy) + checkpoint_bytes(strategy))
