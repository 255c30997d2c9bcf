"""Uniform sampling, without replacement within a minibatch.

It follows the code of de Bruin et al. 2018.  A draw costs O(batch), regardless of how many experiences are stored.  The
C library draws the same slots (``hw/native/minibatch.c``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onrig.hw.native import library
from onrig.learner.samplers import Draw, Sampler, SamplerContext, State
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.order.uniforms import UniformArrays, restore_stream, stream_words


class _Struct(ctypes.Structure):
    """``distinct`` in ``minibatch.c``."""

    _fields_ = (
        ("table", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("seen", "uniform", "slot", "next_double", "state")),
    )


@cache
def _native_function() -> Any:
    native_library = library()
    if native_library is None:
        return None
    # The call keeps the interpreter's lock, as numpy's generators require.
    function = ctypes.PyDLL(native_library._name).onrig_draw_distinct
    function.argtypes, function.restype = (ctypes.c_void_p, *(ctypes.c_int64,) * 3), ctypes.c_int64
    return function


class _Distinct:
    """Draws of distinct slots by the C library; repeated slots are redrawn from numpy's generator."""

    def __init__(self, repair_stream: np.random.Generator, function: Any) -> None:
        bits = repair_stream.bit_generator.ctypes
        self._repair_stream: Final = repair_stream  # owns the state that the library changes
        self._function: Final = function
        self._next_double: Final = ctypes.cast(bits.next_double, ctypes.c_void_p).value
        self._state: Final = bits.state_address
        self._allocate(16, 16)

    def _allocate(self, n: int, batch: int) -> None:
        self._uniforms, self._slots = np.zeros(n), np.zeros(n, np.int64)
        self._hash_table = np.zeros(4 << (batch - 1).bit_length(), np.int64)
        arrays = (array.ctypes.data for array in (self._hash_table, self._uniforms, self._slots))
        self._struct = _Struct(len(self._hash_table), *arrays, self._next_double, self._state)
        self._address = ctypes.addressof(self._struct)

    def draw(self, uniforms: NDArray[np.float64], bound: int, batch: int) -> NDArray[np.int64]:
        """Draw slots (updates, batch) with ``uniforms`` (updates * batch,); ``bound`` is at least 2 ``batch``."""
        n = len(uniforms)
        if n != len(self._uniforms) or 4 * batch > len(self._hash_table):
            self._allocate(n, batch)
        self._uniforms[:] = uniforms
        if self._function(self._address, n // batch, batch, bound):
            raise ValueError(f"cannot draw {batch} distinct numbers below {bound}")
        return self._slots.reshape(-1, batch).copy()


class Uniform(Sampler):
    """Sampler that draws slots 0 .. n-1 uniformly, with two streams (PCG64) spawned from the given one."""

    required_signals: Final[frozenset[Signal]] = frozenset()

    def __init__(self, stream: np.random.Generator) -> None:
        # Collisions are redrawn from a separate stream, so that the main one advances by the same amount per draw.
        main, self._repair_stream = stream.spawn(2)
        self._uniforms: Final = UniformArrays(main)
        function = _native_function()
        self._distinct: Final = None if function is None else _Distinct(self._repair_stream, function)
        self._n_stored = 0

    @classmethod
    def build(cls, context: SamplerContext, stream: np.random.Generator, *, weighted: bool) -> Uniform:
        """Build the sampler; all weights are 1."""
        return cls(stream)

    def on_write(self, slots: NDArray[np.int64]) -> None:
        if len(slots):
            self._n_stored = max(self._n_stored, int(slots.max()) + 1)

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Draw ``updates`` minibatches, slots (updates, batch), without weights.

        Raises ValueError if fewer than ``batch`` experiences are stored.
        """
        n_stored = self._n_stored
        if n_stored < batch:
            raise ValueError(f"cannot draw {batch} experiences without replacement from the {n_stored} stored")
        if self._distinct is not None and 2 * batch <= n_stored:
            return Draw(self._distinct.draw(self._uniforms.take(updates * batch), n_stored, batch), None)
        if updates == 1:
            return Draw(self.draw_below(n_stored, batch)[None], None)
        slots = (self._uniforms.take(updates * batch) * n_stored).astype(np.int64).reshape(updates, batch)
        sorted_slots = np.sort(slots, axis=1)
        for row in np.flatnonzero((sorted_slots[:, 1:] == sorted_slots[:, :-1]).any(axis=1)):
            self._make_distinct(slots[row], n_stored)
        return Draw(slots, None)

    def draw_below(self, bound: int, n: int) -> NDArray[np.int64]:
        """Draw ``n`` distinct integers below ``bound``, which is at least ``n``."""
        # floor(u * bound) is below the bound for every u < 1; probabilities differ by less than bound / 2**53.
        numbers = (self._uniforms.take(n) * bound).astype(np.int64)
        if len(set(numbers.tolist())) < n:
            self._make_distinct(numbers, bound)
        return numbers

    def _make_distinct(self, row: NDArray[np.int64], bound: int) -> None:
        """Redraw repeated entries until all are distinct.

        All slots are treated alike, so every set of distinct slots is equally likely.
        """
        if 2 * len(row) > bound:
            row[:] = self._repair_stream.permutation(bound)[: len(row)]
            return
        drawn_slots: set[int] = set()
        for i, slot in enumerate(row.tolist()):
            if slot in drawn_slots:
                while slot in drawn_slots:
                    slot = int(self._repair_stream.random() * bound)
                row[i] = slot
            drawn_slots.add(slot)

    def state(self) -> State:
        return {
            "uniforms": self._uniforms.state(),
            "repair": stream_words(self._repair_stream),
            "stored": np.array(self._n_stored, dtype=np.int64),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._uniforms.restore(state["uniforms"].astype(np.uint64))
        restore_stream(self._repair_stream, state["repair"])
        self._n_stored = int(state["stored"])
