"""Sum tree: values by slot, their total, and a search by cumulative sum, without drift and for any capacity.

Two bit-identical implementations share the same arrays: numpy, the reference, and C (``hw/native/sum_tree.c``).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.hw.native import library

CHILDREN_PER_NODE: Final = 32
"""Number of children per node, large because a wide and flat tree suits array operations."""
MAX_ROOT_CHILDREN: Final = 1024
"""Maximum number of children of the root; their running sums are recomputed at every change."""


class _Level:
    """Values of one level, and their running sums within each node."""

    def __init__(self, n: int) -> None:
        blocks = -(-n // CHILDREN_PER_NODE)
        self.values: Final[NDArray[np.float64]] = np.zeros((blocks, CHILDREN_PER_NODE))
        self.running_sums: Final[NDArray[np.float64]] = np.zeros((blocks, CHILDREN_PER_NODE))
        self.flat_values: Final = self.values.reshape(-1)
        self.flat_running_sums: Final = self.running_sums.reshape(-1)


class SumTree:
    """``capacity`` non-negative float64 values, initially 0; 16.5 bytes each.

    Sums are recomputed from current values, never updated by differences, so they do not depend on the history and
    cannot drift.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        levels = [_Level(capacity)]
        while len(levels[-1].values) > MAX_ROOT_CHILDREN:
            levels.append(_Level(len(levels[-1].values)))
        self._levels: Final = levels
        self._root: Final[NDArray[np.float64]] = np.zeros(len(levels[-1].values))
        self._parents: Final = [*(level.flat_values for level in levels[1:]), self._root]
        self._running_root: Final[NDArray[np.float64]] = self._root.cumsum()

    @property
    def values(self) -> NDArray[np.float64]:
        """Values by slot, (capacity,); a read-only view."""
        return self._levels[0].flat_values[: self.capacity]

    @property
    def total(self) -> float:
        return float(self._running_root[-1])

    def put(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        """Set the values of ``slots``, each below the capacity; for a repeated slot the last value counts.

        Non-finite values are ignored.  Return the largest value, at least 0.
        """
        is_finite = np.isfinite(values)
        if not is_finite.all():
            slots, values = slots[is_finite], values[is_finite]
        max_value = float(values.max(initial=0.0))
        if len(set(slots.tolist())) < len(slots):
            slots, last_index = np.unique(slots[::-1], return_index=True)
            values = values[::-1][last_index]
        nodes = slots
        self._levels[0].flat_values[nodes] = values
        for level, parent in zip(self._levels, self._parents, strict=True):
            nodes = nodes // CHILDREN_PER_NODE
            running_sums = level.values[nodes].cumsum(axis=1)
            level.running_sums[nodes] = running_sums
            parent[nodes] = running_sums[:, -1]
        np.cumsum(self._root, out=self._running_root)
        return max_value

    def load(self, values: NDArray[np.float64]) -> None:
        """Set all values, (capacity,)."""
        self._levels[0].flat_values[: self.capacity] = values
        for level, parent in zip(self._levels, self._parents, strict=True):
            np.cumsum(level.values, axis=1, out=level.running_sums)
            parent[: len(level.running_sums)] = level.running_sums[:, -1]
        np.cumsum(self._root, out=self._running_root)

    def find(self, targets: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return for each target in [0, total) the slot whose share of the running sum contains it, (k,).

        A slot of value 0 is never returned.  If rounding puts a target beyond the end of a node, the node's last
        non-zero child contains it.  Raises ValueError if the total is 0.
        """
        if not self.total > 0.0:
            raise ValueError("cannot search: all values are 0")
        targets = np.minimum(targets, np.nextafter(self.total, 0.0))
        nodes = self._running_root.searchsorted(targets, "right")
        preceding_sums = np.concatenate(([0.0], self._running_root))
        targets = targets - preceding_sums.take(nodes)
        for level in reversed(self._levels):
            first = nodes * CHILDREN_PER_NODE
            targets = np.minimum(
                targets, np.nextafter(level.flat_running_sums.take(first + (CHILDREN_PER_NODE - 1)), 0.0)
            )
            # The first child whose running sum exceeds the target; the previous line ensures that the last one's does.
            nodes = first + (level.running_sums.take(nodes, 0) > targets[:, None]).argmax(1)
            if level is not self._levels[0]:
                targets = targets - np.where(nodes > first, level.flat_running_sums.take(nodes - 1), 0.0)
        return nodes

    def draw(self, uniforms: NDArray[np.float64], updates: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw a slot from each of ``batch`` equal shares of the total, with ``uniforms`` (updates * batch,) on [0, 1).

        Return slots (updates, batch) and their values.  Raises ValueError if the total is 0.
        """
        batch = len(uniforms) // updates
        fractions = (uniforms.reshape(updates, batch) + np.arange(batch)) / batch
        slots = self.find((fractions * self.total).reshape(-1)).reshape(updates, batch)
        return slots, self.values.take(slots)


_MAX_LEVELS: Final = 8


class _Struct(ctypes.Structure):
    """``sum_tree`` in ``sum_tree.c``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("capacity", "levels", "nodes")),
        *((name, ctypes.c_void_p) for name in ("root", "running_root")),
        *((name, ctypes.c_void_p * _MAX_LEVELS) for name in ("values", "running")),
        *((name, ctypes.c_void_p) for name in ("uniform", "target", "slot")),
    )


@cache
def _functions() -> ctypes.PyDLL | None:
    """Return the library's functions with their types set; calls to them keep the interpreter's lock."""
    native_library = library()
    if native_library is None:
        return None
    functions = ctypes.PyDLL(native_library._name)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, arguments in {
        "put": (pointer, pointer, pointer, number, pointer),
        "find": (pointer, pointer, number, pointer),
        "draw": (pointer, number, number),
    }.items():
        function = getattr(functions, f"onrig_sums_{name}")
        function.argtypes, function.restype = arguments, number
    return functions


class CompiledSumTree(SumTree):
    """``SumTree`` in C, except for ``load``."""

    def __init__(self, capacity: int, functions: ctypes.PyDLL) -> None:
        super().__init__(capacity)
        self._put, self._find, self._draw = (getattr(functions, f"onrig_sums_{f}") for f in ("put", "find", "draw"))
        pointers = ctypes.c_void_p * _MAX_LEVELS
        self._struct: Final = _Struct(
            capacity,
            len(self._levels),
            len(self._root),
            self._root.ctypes.data,
            self._running_root.ctypes.data,
            pointers(*(level.values.ctypes.data for level in self._levels)),
            pointers(*(level.running_sums.ctypes.data for level in self._levels)),
        )
        self._address: Final = ctypes.addressof(self._struct)
        self._largest: Final = np.zeros(1)
        self._largest_address: Final = self._largest.ctypes.data
        self._allocate(16)

    def _allocate(self, n: int) -> None:
        """Allocate buffers for ``n`` slots, uniform numbers and values.

        Copying a minibatch is faster than determining the addresses of its arrays.
        """
        self._size = 1 << (n - 1).bit_length()
        self._uniforms, self._targets = np.zeros(self._size), np.zeros(self._size)
        self._slots = np.zeros(self._size, np.int64)
        self._targets_address, self._slots_address = self._targets.ctypes.data, self._slots.ctypes.data
        self._struct.uniform = self._uniforms.ctypes.data
        self._struct.target, self._struct.slot = self._targets_address, self._slots_address

    def put(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        """Set the values of ``slots``; see ``SumTree.put``."""
        n = len(slots)
        if n <= self._size:
            self._slots[:n] = slots
            self._targets[:n] = values
            slots_at, values_at = self._slots_address, self._targets_address
        else:
            slots, values = np.ascontiguousarray(slots, np.int64), np.ascontiguousarray(values, np.float64)
            slots_at, values_at = slots.ctypes.data, values.ctypes.data
        self._largest[0] = 0.0
        if len(values) != n or self._put(self._address, slots_at, values_at, n, self._largest_address):
            raise IndexError(f"expected slots below {self.capacity}, got one outside")
        return float(self._largest[0])

    def find(self, targets: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the slots that contain ``targets``; see ``SumTree.find``."""
        targets = np.ascontiguousarray(targets, np.float64)
        slots = np.empty(len(targets), np.int64)
        if code := self._find(self._address, targets.ctypes.data, len(targets), slots.ctypes.data):
            _raise_for(code)
        return slots

    def draw(self, uniforms: NDArray[np.float64], updates: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw slots and their values (updates, batch); see ``SumTree.draw``."""
        n = len(uniforms)
        if n > self._size:
            self._allocate(n)
        self._uniforms[:n] = uniforms
        batch = n // updates
        if code := self._draw(self._address, updates, batch):
            _raise_for(code)
        return self._slots[:n].reshape(updates, batch).copy(), self._targets[:n].reshape(updates, batch).copy()


def _raise_for(code: int) -> None:
    raise ValueError("cannot search: all values are 0" if code == -2 else "a target is negative or NaN")


def sum_tree(capacity: int) -> SumTree:
    """Build a tree with all values 0, in C if the library is loaded."""
    functions = _functions()
    return SumTree(capacity) if functions is None else CompiledSumTree(capacity, functions)
