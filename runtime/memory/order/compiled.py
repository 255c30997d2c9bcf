"""The orders of ``order.ranked`` in C (``hw/native/order.c``): identical keys and slots after every change.

Leaves lie in pages that are allocated at the start, so that no change allocates memory; the bounds on time and memory
are the same as for the reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from onrig.hw.native import library
from onrig.runtime.memory.layout import Slots
from onrig.runtime.memory.order.ranked import SEQUENCE_END, Orders, RankedSlots, renumber, sorted_entries

MAX_LEAF_ENTRIES: Final = 320
MIN_LEAF_ENTRIES: Final = 144
MAX_MERGED_ENTRIES: Final = 296
"""This and the two sizes above are half of those in ``order.leaves``: in C, moving entries takes longer than finding
the leaf."""
LEAVES_PER_BLOCK: Final = 64
"""Leaves per partial sum of counts, as in ``order.c``."""
BUFFER_SIZE: Final = 512
_LARGEST_FIRST: Final = 1
_KEEP_NAN_RANK: Final = 2
_ERROR_MESSAGES: Final = {
    -1: "a slot or rank lies outside the order, or a slot to insert is already present",
    -2: "a slot to move is not in the order",
    -3: "a value is NaN",
}


class _RankedStruct(ctypes.Structure):
    """The struct ``ranked`` of ``order.c``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("capacity", "leaf", "least", "merged", "pages")),
        *((name, ctypes.c_int64) for name in ("entries", "leaves", "sequence")),
        *((name, ctypes.c_void_p) for name in ("key_of", "keys", "slots", "bound", "count", "page", "block")),
    )


class _MinibatchesStruct(ctypes.Structure):
    """The struct ``minibatches`` of ``order.c``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("orders", "batch")),
        *((name, ctypes.c_void_p) for name in ("order", "uniform", "start", "length", "slot", "value")),
    )


@cache
def _load_functions() -> ctypes.PyDLL | None:
    """Return the library's functions with their types, or None if the library is not available.

    Calls keep the GIL, because releasing it takes longer than most calls.
    """
    shared_library = library()
    if shared_library is None:
        return None
    functions = ctypes.PyDLL(shared_library._name)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, arguments in {
        "insert": (pointer, number, number),
        "pop": (pointer, number),
        "remove": (pointer, number),
        "renew": (pointer, pointer, number, number),
        "fill": (pointer, pointer, pointer, number),
        "at": (pointer, pointer, number, pointer),
        "in_order": (pointer, pointer),
        "draw": (pointer, number),
        "rank": (pointer, number, number),
    }.items():
        function = getattr(functions, f"onrig_ranked_{name}")
        function.argtypes, function.restype = arguments, None if name == "in_order" else number
    return functions


def _raise_error(code: int) -> NoReturn:
    raise ValueError(_ERROR_MESSAGES[code])


class CompiledRankedSlots:
    """``RankedSlots`` in C."""

    def __init__(self, capacity: int, functions: ctypes.PyDLL) -> None:
        self.capacity: Final = capacity
        n_pages = capacity // MIN_LEAF_ENTRIES + 2
        self._key_of: Final = np.zeros(capacity, np.uint64)
        # Untouched memory pages cost nothing.
        self._pages: Final = (
            np.empty(n_pages * MAX_LEAF_ENTRIES, np.uint64),
            np.empty(n_pages * MAX_LEAF_ENTRIES, np.uint32),
        )
        directory = (np.zeros(n_pages, np.uint64), np.zeros(n_pages, np.int64), np.arange(n_pages, dtype=np.int64))
        self._directory: Final = (*directory, np.zeros(n_pages // LEAVES_PER_BLOCK + 1, np.int64))
        arrays = (self._key_of, *self._pages, *self._directory)
        self._struct: Final = _RankedStruct(
            capacity,
            MAX_LEAF_ENTRIES,
            MIN_LEAF_ENTRIES,
            MAX_MERGED_ENTRIES,
            n_pages,
            0,
            0,
            0,
            *(array.ctypes.data for array in arrays),
        )
        self.address: Final = ctypes.addressof(self._struct)
        self._functions: Final = functions
        self._insert, self._pop = functions.onrig_ranked_insert, functions.onrig_ranked_pop
        self._rank: Final = functions.onrig_ranked_rank
        self._orders: Final = np.array([self.address], np.uint64)
        # Buffers for a minibatch, because getting the address of an array takes longer than copying it.
        self._slots, self._values = np.zeros(BUFFER_SIZE, np.int64), np.zeros(BUFFER_SIZE, np.float32)
        self._slots_address: Final[int] = self._slots.ctypes.data
        self._call: Final = self._make_call(self._slots, self._values)
        self._call_address: Final = ctypes.addressof(self._call)
        self.load(self._key_of.copy())

    def __len__(self) -> int:
        n: int = self._struct.entries
        return n

    @property
    def nbytes(self) -> int:
        """Bytes held once all pages are in use."""
        return sum(array.nbytes for array in (self._key_of, *self._pages, *self._directory))

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Key of each slot, (capacity,), 0 if it is absent; a view, for checkpoints."""
        return self._key_of

    def insert(self, slot: int, bits: int) -> None:
        """Insert an absent slot, after all slots with the same ``bits``."""
        if code := self._insert(self.address, slot, bits):
            self._renumber_for(1, code)
            self.insert(slot, bits)

    def pop(self, rank: int) -> int:
        """Remove and return the slot at ``rank`` (0 is the smallest)."""
        slot: int = self._pop(self.address, rank)
        if slot < 0:
            _raise_error(slot)
        return slot

    def remove(self, slot: int) -> None:
        """Remove a slot."""
        if code := self._functions.onrig_ranked_remove(self.address, slot):
            _raise_error(code)

    def renew(self, slots: Slots, bits: int) -> None:
        """Insert ``slots`` with these ``bits`` as the newest, in order; slots already present are removed first."""
        n = len(slots)
        if n <= BUFFER_SIZE:
            self._slots[:n] = slots
            index = self._slots_address
        else:
            slots = np.ascontiguousarray(slots, np.int64)
            index = slots.ctypes.data
        if code := self._functions.onrig_ranked_renew(self.address, index, n, bits):
            self._renumber_for(n, code)
            self.renew(slots, bits)

    def rank(
        self, slots: Slots, values: NDArray[np.floating], *, largest_first: bool = False, keep_nan_rank: bool = False
    ) -> None:
        """Order ``slots`` (n,), all present, by |values| (n,) as float32; see ``RankedSlots.rank``."""
        n = len(slots)
        if n <= BUFFER_SIZE:
            self._slots[:n] = slots
            self._values[:n] = values
            call, call_address = self._call, self._call_address
        else:
            slots, values = np.ascontiguousarray(slots, np.int64), np.ascontiguousarray(values, np.float32)
            if len(values) != n:
                raise ValueError(f"{n} slots and {len(values)} values")
            call = self._make_call(slots, values)
            call_address = ctypes.addressof(call)
        call.batch = n
        if n and (code := self._rank(call_address, 1, largest_first * _LARGEST_FIRST | keep_nan_rank * _KEEP_NAN_RANK)):
            _raise_error(code)

    def _make_call(self, slots: Slots, values: NDArray[np.floating]) -> _MinibatchesStruct:
        orders = self._orders.ctypes.data
        return _MinibatchesStruct(1, 0, orders, None, None, None, slots.ctypes.data, values.ctypes.data)

    def _renumber_for(self, n: int, code: int) -> None:
        """Restart the sequence numbers if ``n`` more do not fit; otherwise raise the error ``code``.

        This is the only O(n) step, needed once in 4.3e9 insertions.
        """
        if self._struct.sequence + n <= SEQUENCE_END or self._struct.sequence == len(self):
            _raise_error(code)
        self.load(self._key_of.copy())

    def slots_at(self, ranks: NDArray[np.int64]) -> Slots:
        """Return the slots at ``ranks`` (k,), each in 0 ... len - 1."""
        ranks = np.ascontiguousarray(ranks, np.int64)
        slots = np.empty(len(ranks), np.int64)
        code = self._functions.onrig_ranked_at(self.address, ranks.ctypes.data, len(ranks), slots.ctypes.data)
        if code:
            _raise_error(code)
        return slots

    def sorted_slots(self) -> Slots:
        """Return all slots from the smallest to the largest."""
        slots = np.empty(len(self), np.int64)
        self._functions.onrig_ranked_in_order(self.address, slots.ctypes.data)
        return slots

    def load(self, keys: NDArray[np.uint64]) -> None:
        """Restore all entries from ``keys``, an earlier copy of :attr:`keys`; see ``RankedSlots.load``."""
        slots, sorted_keys = sorted_entries(renumber(keys, self.capacity))
        pointers = sorted_keys.ctypes.data, slots.ctypes.data
        if code := self._functions.onrig_ranked_fill(self.address, *pointers, len(slots)):
            _raise_error(code)


class CompiledOrders:
    """``Orders`` in C: one call for all memories."""

    def __init__(self, orders_by_memory: Sequence[CompiledRankedSlots], functions: ctypes.PyDLL) -> None:
        self.orders_by_memory: Final = orders_by_memory
        self._addresses: Final = np.array([order.address for order in orders_by_memory], np.uint64)
        self._draw, self._rank = functions.onrig_ranked_draw, functions.onrig_ranked_rank
        self._shape = (0, 0)

    def draw(
        self, uniforms: NDArray[np.float64], starts: NDArray[np.int64], lengths: NDArray[np.int64], updates: int
    ) -> Slots:
        """Draw a slot from each segment of ranks, (updates, S, batch); see ``Orders.draw``."""
        if (updates, starts.shape[1]) != self._shape:
            self._allocate_buffers(updates, starts.shape[1])
        self._uniforms[:] = uniforms
        self._starts[:] = starts
        self._lengths[:] = lengths
        if code := self._draw(self._call_address, updates):
            _raise_error(code)
        return self._slots.copy()

    def rank(self, slots: Slots, values: NDArray[np.floating]) -> None:
        """Order ``slots`` (updates, S, batch), all present, by |values|; see ``Orders.rank``."""
        updates, _, batch = slots.shape
        if (updates, batch) != self._shape:
            self._allocate_buffers(updates, batch)
        self._slots[:] = slots
        self._values[:] = values
        if slots.size and (code := self._rank(self._call_address, updates, _LARGEST_FIRST | _KEEP_NAN_RANK)):
            _raise_error(code)

    def _allocate_buffers(self, updates: int, batch: int) -> None:
        """Allocate the buffers for minibatches of this shape."""
        memories = len(self.orders_by_memory)
        self._shape = (updates, batch)
        self._uniforms = np.empty((memories, updates * batch), np.float64)
        self._starts, self._lengths = np.empty((memories, batch), np.int64), np.empty((memories, batch), np.int64)
        self._slots = np.empty((updates, memories, batch), np.int64)
        self._values = np.empty((updates, memories, batch), np.float32)
        arrays = (self._addresses, self._uniforms, self._starts, self._lengths, self._slots, self._values)
        self._call = _MinibatchesStruct(memories, batch, *(array.ctypes.data for array in arrays))
        self._call_address = ctypes.addressof(self._call)


def ranked_slots(capacity: int) -> RankedSlots | CompiledRankedSlots:
    """Build an empty order, in C if the library is loaded."""
    functions = _load_functions()
    return RankedSlots(capacity) if functions is None else CompiledRankedSlots(capacity, functions)


def ranked_orders(capacity: int, memories: int) -> Orders | CompiledOrders:
    """Build the empty orders of several memories, in C if the library is loaded."""
    functions = _load_functions()
    if functions is None:
        return Orders([RankedSlots(capacity) for _ in range(memories)])
    return CompiledOrders([CompiledRankedSlots(capacity, functions) for _ in range(memories)], functions)
