"""Slots ordered by a changing key: find by rank, insert, remove and move, none of them O(n).

A B-tree of two levels.  A *leaf* holds up to ``MAX_LEAF_ENTRIES`` entries in ascending order, keys and slots in two
parallel arrays; a directory of a few thousand entries holds each leaf's lower bound and count.  A key is a 63-bit
number: the bits of a non-negative float32 (31 bits, in the order of the floats), then the sequence number of the
insertion (32 bits), so that ties are in insertion order.

Keys are compared as float64 numbers with the same bits, which have the same order and which ``bisect`` reads faster
than integers.  ``_MIN_NORMAL_BITS`` keeps them out of the subnormal range, where all would tie in a process that
flushes subnormals to zero.

``order.compiled`` does the same in C, with identical keys after every change; this implementation is its reference, and
is used if the library is not built.

Bounds: every leaf holds at least ``MIN_LEAF_ENTRIES`` entries, unless there is only one; a change touches at most two
leaves; the directory shifts only when a leaf is split or merged.  Memory per slot: 8 bytes for its key and 12 for its
entry.  Arrays over-allocate by a sixteenth and never shrink, so this is 22 to 27 bytes in practice and never more than
``BYTES_PER_SLOT`` (if all leaves were once full and are now at their minimum).
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.layout import Slots
from onrig.runtime.memory.order.leaves import LEAF_BYTES, LEAVES_PER_BLOCK, MAX_LEAF_ENTRIES, MIN_LEAF_ENTRIES, Leaves

MAX_FLAT_LENGTH: Final = 16384
"""Number of slots up to which listing all of them is faster than finding a few ranks."""
SORT_DIVISOR: Final = 12
"""Slots are renewed one by one if fewer than one in this many is renewed; with more, sorting all slots is faster (the
measured break-even is 10 to 16)."""
MERGE_DIVISOR: Final = 24
"""Slots are moved one by one if fewer than one in this many is moved; with more, merging all slots is faster (the
measured break-even is 24 to 100)."""
SEQUENCE_BITS: Final = 32
SEQUENCE_END: Final = 1 << SEQUENCE_BITS
INFINITY_BITS: Final = 0x7F800000
"""Bits of +inf, the largest key."""
BYTES_PER_SLOT: Final = 8 + LEAF_BYTES / MIN_LEAF_ENTRIES
_MIN_NORMAL_BITS: Final = 0x00100000
_ABSENT_KEY: Final = 0
_SEQUENCE_MASK: Final = np.uint64(SEQUENCE_END - 1)
_HIGH_WORD: Final = 1 if sys.byteorder == "little" else 0


class RankedSlots(Leaves):
    """Slots 0 ... capacity - 1, each at most once, ascending by (bits, sequence).

    ``bits`` are the bits of a non-negative float32 (:func:`float_bits`), or any other integer up to ``INFINITY_BITS``.
    :meth:`insert` assigns ascending sequence numbers.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.capacity: Final = capacity
        self._n = 0
        self._sequence = 0
        self._flat_slots: NDArray[np.uint32] | None = None
        self._key_of_np: Final[NDArray[np.uint64]] = np.zeros(capacity, np.uint64)
        self._key_of: Final = self._key_of_np.data.cast("B").cast("d")
        packed_key = np.zeros(1, np.uint64)
        self._packed_key: Final = packed_key.data
        self._packed_float: Final = packed_key.data.cast("B").cast("d")

    def __len__(self) -> int:
        return self._n

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        fixed_bytes = self._key_of_np.nbytes + self._bound_np.nbytes + self._count_np.nbytes
        return fixed_bytes + sum(map(sys.getsizeof, self._keys)) + sum(map(sys.getsizeof, self._slots))

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Key of each slot, (capacity,), 0 if it is absent; a view, for checkpoints."""
        return self._key_of_np

    def insert(self, slot: int, bits: int) -> None:
        """Insert an absent slot, after all slots with the same ``bits``."""
        sequence = self._sequence
        if sequence == SEQUENCE_END:
            # Once in 4.3e9 insertions (49 days at 1 kHz) since the last restart: the only O(n) step.
            self.load(self._key_of_np.copy())
            sequence = self._sequence
        self._sequence = sequence + 1
        self._packed_key[0] = (bits + _MIN_NORMAL_BITS) << SEQUENCE_BITS | sequence
        key = self._packed_float[0]
        self._key_of[slot] = key
        self._n += 1
        self._flat_slots = None
        p = bisect_right(self._bound, key, 0, len(self._keys)) - 1
        if self._count[p] == MAX_LEAF_ENTRIES:
            p = self._split(p, key)
        leaf = self._keys[p]
        i = bisect_left(leaf, key)
        leaf.insert(i, key)
        self._slots[p].insert(i, slot)
        self._count[p] += 1
        self._block_count[p // LEAVES_PER_BLOCK] += 1

    def pop(self, rank: int) -> int:
        """Remove and return the slot at ``rank`` (0 is the smallest)."""
        block = 0
        blocks = self._block_count
        for n_entries in blocks:
            if rank < n_entries:
                break
            rank -= n_entries
            block += 1
        p = block * LEAVES_PER_BLOCK
        count = self._count
        n_entries = count[p]
        while rank >= n_entries:
            rank -= n_entries
            p += 1
            n_entries = count[p]
        slot = self._slots[p].pop(rank)
        del self._keys[p][rank]
        count[p] = n_entries - 1
        blocks[block] -= 1
        if n_entries <= MIN_LEAF_ENTRIES:
            self._merge_or_balance(p)
        self._key_of[slot] = 0.0
        self._n -= 1
        self._flat_slots = None
        return slot

    def move(self, moved_slots: Slots, bits: NDArray[np.uint32]) -> None:
        """Assign new ``bits`` to ``moved_slots``, all present and distinct; they keep their sequence numbers."""
        old_keys = self._key_of_np.take(moved_slots)
        new_keys = old_keys.copy()
        new_keys.view(np.uint32)[_HIGH_WORD::2] = bits + np.uint32(_MIN_NORMAL_BITS)
        old_floats, new_floats = old_keys.view(np.float64), new_keys.view(np.float64)
        # Removal and insertion are inlined, and all leaves are found at once, until a leaf is split or merged:
        # sixteen calls of each would cost a third of the total.
        bound, count, keys, slots, blocks = self._bound, self._count, self._keys, self._slots, self._block_count
        if 0.0 in (old_values := old_floats.tolist()):
            raise ValueError("a slot to move is not in the order")
        if len(old_values) * MERGE_DIVISOR >= self._n:
            self._merge(moved_slots, old_keys, new_keys)
            return
        bounds = self._bound_np[: len(keys)]
        sources = (bounds.searchsorted(old_floats, "right") - 1).tolist()
        targets = (bounds.searchsorted(new_floats, "right") - 1).tolist()
        self._key_of_np[moved_slots] = new_keys
        self._flat_slots = None
        is_unchanged = True
        for slot, old_key, new_key, p, q in zip(
            moved_slots.tolist(), old_values, new_floats.tolist(), sources, targets, strict=True
        ):
            if not is_unchanged:
                p = bisect_right(bound, old_key, 0, len(keys)) - 1
            leaf = keys[p]
            i = bisect_left(leaf, old_key)
            del leaf[i]
            del slots[p][i]
            count[p] = n_entries = count[p] - 1
            blocks[p // LEAVES_PER_BLOCK] -= 1
            if n_entries < MIN_LEAF_ENTRIES:
                self._merge_or_balance(p)
                is_unchanged = False
            if not is_unchanged:
                q = bisect_right(bound, new_key, 0, len(keys)) - 1
            n_entries = count[q]
            if n_entries == MAX_LEAF_ENTRIES:
                q = self._split(q, new_key)
                n_entries = count[q]
                is_unchanged = False
            leaf = keys[q]
            i = bisect_left(leaf, new_key)
            leaf.insert(i, new_key)
            slots[q].insert(i, slot)
            count[q] = n_entries + 1
            blocks[q // LEAVES_PER_BLOCK] += 1

    def _merge(self, moved_slots: Slots, old_keys: NDArray[np.uint64], new_keys: NDArray[np.uint64]) -> None:
        """Assign new keys to ``moved_slots``, and rebuild the leaves."""
        keys = np.frombuffer(b"".join(self._keys), np.uint64)
        slots = self._sorted_slots()
        is_kept = np.ones(len(keys), np.bool_)
        is_kept[keys.searchsorted(np.sort(old_keys))] = False
        order = new_keys.argsort()
        sorted_keys, kept_keys = new_keys[order], keys[is_kept]
        insertion_indices = kept_keys.searchsorted(sorted_keys)
        insertion_indices += np.arange(len(insertion_indices))
        is_old_entry = np.ones(len(keys), np.bool_)
        is_old_entry[insertion_indices] = False
        merged_keys, merged_slots = np.empty(len(keys), np.uint64), np.empty(len(keys), np.uint32)
        merged_keys[insertion_indices], merged_slots[insertion_indices] = sorted_keys, moved_slots[order]
        merged_keys[is_old_entry], merged_slots[is_old_entry] = kept_keys, slots[is_kept]
        self._key_of_np[moved_slots] = new_keys
        self._fill(merged_keys.view(np.float64), merged_slots)
        self._flat_slots = None

    def remove(self, slot: int) -> None:
        """Remove a slot."""
        key = self._key_of[slot]
        p = bisect_right(self._bound, key, 0, len(self._keys)) - 1
        i = bisect_left(self._keys[p], key)
        del self._keys[p][i], self._slots[p][i]
        self._count[p] = n_entries = self._count[p] - 1
        self._block_count[p // LEAVES_PER_BLOCK] -= 1
        if n_entries < MIN_LEAF_ENTRIES:
            self._merge_or_balance(p)
        self._key_of[slot] = 0.0
        self._n -= 1
        self._flat_slots = None

    def renew(self, slots: Slots, bits: int) -> None:
        """Insert ``slots`` with these ``bits`` as the newest, in order; slots already present are removed first."""
        if self._sequence + len(slots) > SEQUENCE_END:
            self.load(self._key_of_np.copy())
        if len(slots) * SORT_DIVISOR < self._n:
            for slot in slots.tolist():
                if self._key_of[slot] != 0.0:
                    self.remove(slot)
                self.insert(slot, bits)
            return
        # For this many, sorting all slots is faster.
        unique_slots, last_indices = np.unique(slots[::-1], return_index=True)
        sequence = (self._sequence + len(slots) - 1 - last_indices).astype(np.uint64)
        self._key_of_np[unique_slots] = np.uint64(bits + _MIN_NORMAL_BITS << SEQUENCE_BITS) | sequence
        self._sequence += len(slots)
        self._rebuild(self._key_of_np)

    def rank(
        self, slots: Slots, values: NDArray[np.floating], *, largest_first: bool = False, keep_nan_rank: bool = False
    ) -> None:
        """Order ``slots`` (n,), all present, by |values| (n,) as float32; for duplicate slots the last value counts.

        ``keep_nan_rank`` keeps the rank of a slot whose value is NaN.  Raises ValueError, before any change, if a slot
        is absent or, without ``keep_nan_rank``, a value is NaN.
        """
        magnitudes = values.astype(np.float32, copy=False)
        try:
            bits = float_bits(magnitudes)
        except ValueError:
            if not keep_nan_rank:
                raise
            is_number = ~np.isnan(magnitudes)
            slots, bits = slots[is_number], float_bits(magnitudes[is_number])
        if len(set(slots.tolist())) < len(slots):
            slots, last = np.unique(slots[::-1], return_index=True)
            bits = bits[::-1][last]
        self.move(slots, np.uint32(INFINITY_BITS) - bits if largest_first else bits)

    def slots_at(self, ranks: NDArray[np.int64]) -> Slots:
        """Return the slots at ``ranks`` (k,), each in 0 ... len - 1."""
        if self._flat_slots is None and self._n > max(MAX_FLAT_LENGTH, LEAVES_PER_BLOCK * len(ranks)):
            count = self._count_np[: len(self._slots)]
            ends = count.cumsum()
            leaves = ends.searchsorted(ranks, "right")
            positions = ranks - (ends - count).take(leaves)
            slots = self._slots
            results = [slots[p][i] for p, i in zip(leaves.tolist(), positions.tolist(), strict=True)]
            return np.array(results, np.int64)
        return self._sorted_slots().take(ranks).astype(np.int64)

    def sorted_slots(self) -> Slots:
        """Return all slots from the smallest to the largest."""
        return self._sorted_slots().astype(np.int64)

    def _sorted_slots(self) -> NDArray[np.uint32]:
        if self._flat_slots is None:
            self._flat_slots = np.frombuffer(b"".join(self._slots), np.uint32)
        return self._flat_slots

    def load(self, keys: NDArray[np.uint64]) -> None:
        """Restore all entries from ``keys``, an earlier copy of :attr:`keys`, and renumber the sequence in order.

        Raises ValueError unless ``keys`` has (capacity,) entries with distinct sequence numbers.
        """
        keys = renumber(keys, self.capacity)
        self._sequence = int(np.count_nonzero(keys))
        self._rebuild(keys)

    def _rebuild(self, keys: NDArray[np.uint64]) -> None:
        slots, sorted_keys = sorted_entries(keys)
        self._key_of_np[:] = keys
        self._flat_slots = None
        self._n = len(slots)
        self._fill(sorted_keys.view(np.float64), slots.astype(np.uint32))


def renumber(keys: NDArray[np.uint64], capacity: int) -> NDArray[np.uint64]:
    """Return ``keys`` with sequence numbers that start from 0 and have the same order.

    Raises ValueError unless ``keys`` has (capacity,) entries with distinct sequence numbers.
    """
    if keys.shape != (capacity,) or keys.dtype != np.uint64:
        raise ValueError(f"keys of shape {keys.shape} and type {keys.dtype}, expected ({capacity},) uint64")
    slots = np.flatnonzero(keys != _ABSENT_KEY)
    sequence = keys[slots] & _SEQUENCE_MASK
    age_order = np.argsort(sequence)
    if np.any(np.diff(sequence[age_order]) == 0):
        raise ValueError("two keys with the same sequence number")
    renumbered = np.zeros(capacity, np.uint64)
    renumbered[slots[age_order]] = keys[slots[age_order]] & ~_SEQUENCE_MASK | np.arange(len(slots), dtype=np.uint64)
    return renumbered


def sorted_entries(keys: NDArray[np.uint64]) -> tuple[Slots, NDArray[np.uint64]]:
    """Return the slots that are present, and their keys, in ascending order of the keys."""
    slots = np.flatnonzero(keys != _ABSENT_KEY)
    order = np.argsort(keys[slots])
    return slots[order], keys[slots[order]]


class Orders:
    """Orders of S memories that draw minibatches in step."""

    def __init__(self, orders_by_memory: Sequence[RankedSlots]) -> None:
        self.orders_by_memory: Final = orders_by_memory

    def draw(
        self, uniforms: NDArray[np.float64], starts: NDArray[np.int64], lengths: NDArray[np.int64], updates: int
    ) -> Slots:
        """Draw a slot from each segment of ranks, (updates, S, batch).

        ``uniforms`` (S, updates * batch) over [0, 1); ``starts`` and ``lengths`` (S, batch): first rank and number of
        ranks of each segment.
        """
        memories, batch = starts.shape
        slots = np.empty((updates, memories, batch), np.int64)
        for s, order in enumerate(self.orders_by_memory):
            ranks = (uniforms[s].reshape(updates, batch) * lengths[s]).astype(np.int64) + starts[s]
            slots[:, s] = order.slots_at(ranks.reshape(-1)).reshape(updates, batch)
        return slots

    def rank(self, slots: Slots, values: NDArray[np.floating]) -> None:
        """Order ``slots`` (updates, S, batch), all present, by |values|, largest first, like ``RankedSlots.rank``; a
        slot whose value is NaN keeps its rank."""
        for s, order in enumerate(self.orders_by_memory):
            order.rank(slots[:, s].reshape(-1), values[:, s].reshape(-1), largest_first=True, keep_nan_rank=True)


def float_bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the bits of |values|, which sort like the magnitudes; raises ValueError if a value is NaN."""
    bits: NDArray[np.uint32] = np.abs(values, dtype=np.float32).view(np.uint32)
    if max(bits.tolist(), default=0) > INFINITY_BITS:
        raise ValueError("a value is NaN")
    return bits
