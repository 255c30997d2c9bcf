"""Leaves of a two-level B-tree and their directory: splitting, merging, counting (``order.ranked`` is the tree)."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_LEAF_ENTRIES: Final = 640
MIN_LEAF_ENTRIES: Final = 288
MAX_MERGED_ENTRIES: Final = 592
"""Maximum total of entries for which two neighbours are merged; if they have more, they are balanced."""
LEAVES_PER_BLOCK: Final = 64
"""Leaves per partial sum of counts, so that two short scans find a rank."""
LEAF_BYTES: Final = 12 * MAX_LEAF_ENTRIES * 17 // 16 + 180
"""Upper bound on a leaf's memory: arrays over-allocate by a sixteenth and never shrink."""


class Leaves:
    """Leaves of up to ``MAX_LEAF_ENTRIES`` keys and slots, in ascending order.  If there are several, each holds at
    least ``MIN_LEAF_ENTRIES``.

    The directory holds each leaf's lower bound and count, in memory fixed for ``capacity`` entries; it shifts only when
    a leaf is split or merged.
    """

    def __init__(self, capacity: int) -> None:
        n_leaves = capacity // MIN_LEAF_ENTRIES + 2
        self._keys: Final[list[array[float]]] = []
        self._slots: Final[list[array[int]]] = []
        self._block_count: Final[list[int]] = []
        self._bound_np: Final[NDArray[np.float64]] = np.zeros(n_leaves, np.float64)
        self._count_np: Final[NDArray[np.int64]] = np.zeros(n_leaves, np.int64)
        # memoryviews, because array items take twice as long to read and write.
        self._bound: Final = self._bound_np.data.cast("B").cast("d")
        self._count: Final = self._count_np.data
        self._clear()

    def _clear(self) -> None:
        self._keys.clear()
        self._slots.clear()
        self._insert_leaf(0, 0.0, array("d"), array("I"))
        self._sum_blocks()

    def _fill(self, keys: NDArray[np.float64], slots: NDArray[np.uint32]) -> None:
        """Replace all entries with ``keys``, in ascending order, and their ``slots``."""
        self._clear()
        n_entries = (MIN_LEAF_ENTRIES + MAX_LEAF_ENTRIES) // 2
        for p, first in enumerate(range(0, len(slots), n_entries)):
            leaf_keys = array("d", keys[first : first + n_entries].tobytes())
            leaf_slots = array("I", slots[first : first + n_entries].tobytes())
            if p:
                self._insert_leaf(p, leaf_keys[0], leaf_keys, leaf_slots)
            else:
                self._keys[0], self._slots[0] = leaf_keys, leaf_slots
                self._count[0] = len(leaf_keys)
        if self._count[len(self._keys) - 1] < MIN_LEAF_ENTRIES:
            self._merge_or_balance(len(self._keys) - 1)
        self._sum_blocks()

    def _split(self, p: int, key: float) -> int:
        """Split the full leaf ``p`` in two and return the half that ``key`` belongs to."""
        middle = MAX_LEAF_ENTRIES // 2
        keys, slots = self._keys[p], self._slots[p]
        self._insert_leaf(p + 1, keys[middle], keys[middle:], slots[middle:])
        del keys[middle:], slots[middle:]
        self._count[p] = middle
        self._sum_blocks()
        return p if key < self._bound[p + 1] else p + 1

    def _merge_or_balance(self, p: int) -> None:
        """Merge the underfull leaf ``p`` with a neighbour, or balance the two."""
        count = self._count
        n = len(self._keys)
        if n == 1:
            return
        left = p - 1 if p and (p + 1 == n or count[p - 1] < count[p + 1]) else p
        right = left + 1
        total = count[left] + count[right]
        n_left = total if total <= MAX_MERGED_ENTRIES else total // 2
        keys = self._keys[left] + self._keys[right]
        slots = self._slots[left] + self._slots[right]
        self._keys[left], self._keys[right] = keys[:n_left], keys[n_left:]
        self._slots[left], self._slots[right] = slots[:n_left], slots[n_left:]
        count[left], count[right] = n_left, total - n_left
        if n_left == total:
            self._delete_leaf(right)
        else:
            self._bound[right] = keys[n_left]
        self._sum_blocks()

    def _insert_leaf(self, p: int, bound: float, keys: array[float], slots: array[int]) -> None:
        n = len(self._keys)
        self._keys.insert(p, keys)
        self._slots.insert(p, slots)
        self._bound[p + 1 : n + 1] = self._bound[p:n]
        self._count[p + 1 : n + 1] = self._count[p:n]
        self._bound[p] = bound
        self._count[p] = len(keys)

    def _delete_leaf(self, p: int) -> None:
        n = len(self._keys)
        del self._keys[p], self._slots[p]
        self._bound[p : n - 1] = self._bound[p + 1 : n]
        self._count[p : n - 1] = self._count[p + 1 : n]

    def _sum_blocks(self) -> None:
        starts = np.arange(0, len(self._keys), LEAVES_PER_BLOCK)
        self._block_count[:] = np.add.reduceat(self._count_np[: len(self._keys)], starts).tolist()
