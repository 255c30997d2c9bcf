"""Sum tree: values by slot, their total, and search by cumulative sum; free of drift, any capacity."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

FAN: Final = 32
"""Children per node: wide and flat suits array operations."""
ROOT: Final = 1024
"""Maximum children of the root, whose running sums are recomputed at every change."""


class _Level:
    """The values of one level, and their running sums within each node."""

    def __init__(self, n: int) -> None:
        blocks = -(-n // FAN)
        self.values: Final[NDArray[np.float64]] = np.zeros((blocks, FAN))
        self.running: Final[NDArray[np.float64]] = np.zeros((blocks, FAN))
        self.flat: Final = self.values.reshape(-1)
        self.running_flat: Final = self.running.reshape(-1)


class SumTree:
    """``capacity`` non-negative float64 values, 0 at first; 16.5 bytes each.

    Sums are recomputed from current values, never updated by differences: they do not depend on the history and cannot
    drift.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        levels = [_Level(capacity)]
        while len(levels[-1].values) > ROOT:
            levels.append(_Level(len(levels[-1].values)))
        self._levels: Final = levels
        self._root: Final[NDArray[np.float64]] = np.zeros(len(levels[-1].values))
        self._above: Final = [*(level.flat for level in levels[1:]), self._root]
        self._running_root: NDArray[np.float64] = self._root.cumsum()

    @property
    def values(self) -> NDArray[np.float64]:
        """The values by slot, (capacity,); a view, not to be written to."""
        return self._levels[0].flat[: self.capacity]

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._running_root[-1])

    def put(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Set the values of ``slots``, each below the capacity; of a slot named twice the last one counts."""
        if len(set(slots.tolist())) < len(slots):
            slots, last = np.unique(slots[::-1], return_index=True)
            values = values[::-1][last]
        nodes = slots
        self._levels[0].flat[nodes] = values
        for level, above in zip(self._levels, self._above, strict=True):
            nodes = nodes // FAN
            running = level.values[nodes].cumsum(axis=1)
            level.running[nodes] = running
            above[nodes] = running[:, -1]
        self._running_root = self._root.cumsum()

    def load(self, values: NDArray[np.float64]) -> None:
        """Set all values, (capacity,)."""
        self._levels[0].flat[: self.capacity] = values
        for level, above in zip(self._levels, self._above, strict=True):
            np.cumsum(level.values, axis=1, out=level.running)
            above[: len(level.running)] = level.running[:, -1]
        self._running_root = self._root.cumsum()

    def find(self, targets: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return for each target in [0, total) the slot whose share of the running sum it lies in, (k,).

        A slot of value 0 is never found.  Where rounding puts a target past the end of a node, it belongs to the
        node's last child that is not 0.  Raises ValueError when the total is 0.
        """
        if not self.total > 0.0:
            raise ValueError("nothing to find: all values are 0")
        targets = np.minimum(targets, np.nextafter(self.total, 0.0))
        nodes = self._running_root.searchsorted(targets, "right")
        before = np.concatenate(([0.0], self._running_root))
        targets = targets - before.take(nodes)
        for level in reversed(self._levels):
            first = nodes * FAN
            targets = np.minimum(targets, np.nextafter(level.running_flat.take(first + (FAN - 1)), 0.0))
            # The first child whose running sum is above the target; the last one's is, by the line before.
            nodes = first + (level.running.take(nodes, 0) > targets[:, None]).argmax(1)
            if level is not self._levels[0]:
                targets = targets - np.where(nodes > first, level.running_flat.take(nodes - 1), 0.0)
        return nodes
