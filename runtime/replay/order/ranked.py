"""Slots in the order of a key that changes all the time: find by rank, insert, remove and move, none of them O(n).

A B-tree of two levels.  A *leaf* holds up to ``LEAF`` entries in ascending order, keys and slots in two arrays side by
side; a directory of a few thousand lines holds each leaf's lower bound and count.  A key is a 63-bit number: the bits
of a float32 that is not negative (31 bits, which order as the floats do), then the sequence number of the insertion
(32 bits), so that ties stand in insertion order.

Keys are compared as the float64 of the same bits, which orders them alike and which ``bisect`` reads faster than an
integer; ``_NORMAL`` keeps them off the denormals, where a process that flushes those to zero would see ties.

Bounds: every leaf but a lone one holds at least ``LEAST`` entries; a change touches at most two leaves; the directory
is shifted only when a leaf is split or merged.  Memory per slot: 8 bytes for its key and 12 for its entry.  An array
over-allocates by a sixteenth and keeps what it once had, so this is 22 to 27 bytes in practice and never more than
``BYTES_PER_SLOT`` (all leaves once full and now at their least).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.replay.layout import Slots

LEAF: Final = 640
LEAST: Final = 288
MERGED: Final = 592
"""Neighbours with no more entries than this in all become one leaf; with more, they share."""
BLOCK: Final = 64
"""Leaves whose counts are summed up, to find a rank in two short scans."""
FLAT: Final = 16384
"""Up to this length a list of all slots is quicker to make than a few ranks to look up."""
SEQUENCE_BITS: Final = 32
SEQUENCE_END: Final = 1 << SEQUENCE_BITS
INFINITE: Final = 0x7F800000
"""Bits of +inf, the largest key."""
BYTES_PER_SLOT: Final = 8 + (12 * LEAF * 17 / 16 + 180) / LEAST
_NORMAL: Final = 0x00100000
_ABSENT: Final = 0
_SEQUENCE: Final = np.uint64(SEQUENCE_END - 1)
_HIGH_WORD: Final = 1 if sys.byteorder == "little" else 0


class RankedSlots:
    """Slots 0 ... capacity - 1, each at most once, ascending by (bits, sequence).

    ``bits`` are those of a float32 that is not negative (:func:`float_bits`), or any other integer up to ``INFINITE``.
    Sequence numbers are handed out by :meth:`insert`, ascending.
    """

    def __init__(self, capacity: int) -> None:
        leaves = capacity // LEAST + 2
        self.capacity: Final = capacity
        self._n = 0
        self._sequence = 0
        self._keys: Final[list[array[float]]] = []
        self._slots: Final[list[array[int]]] = []
        self._block_count: Final[list[int]] = []
        self._flat: NDArray[np.uint32] | None = None
        self._key_of_np: Final[NDArray[np.uint64]] = np.zeros(capacity, np.uint64)
        self._bound_np: Final[NDArray[np.float64]] = np.zeros(leaves, np.float64)
        self._count_np: Final[NDArray[np.int64]] = np.zeros(leaves, np.int64)
        # memoryviews, because reading and writing one item of an array costs twice as much.
        self._key_of: Final = self._key_of_np.data.cast("B").cast("d")
        self._bound: Final = self._bound_np.data.cast("B").cast("d")
        self._count: Final = self._count_np.data
        packed = np.zeros(1, np.uint64)
        self._packed: Final = packed.data
        self._packed_float: Final = packed.data.cast("B").cast("d")
        self._clear()

    def __len__(self) -> int:
        return self._n

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        fixed = self._key_of_np.nbytes + self._bound_np.nbytes + self._count_np.nbytes
        return fixed + sum(map(sys.getsizeof, self._keys)) + sum(map(sys.getsizeof, self._slots))

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The key of each slot, (capacity,), 0 for a slot that is not in; a view, for a checkpoint."""
        return self._key_of_np

    def insert(self, slot: int, bits: int) -> None:
        """Put in a slot that is not in, behind all that have the same ``bits``."""
        sequence = self._sequence
        if sequence == SEQUENCE_END:
            # Once in 4.3e9 insertions (49 days at 1 kHz), and every restart begins anew: the one O(n) step.
            self.load(self._key_of_np.copy())
            sequence = self._sequence
        self._sequence = sequence + 1
        self._packed[0] = (bits + _NORMAL) << SEQUENCE_BITS | sequence
        key = self._packed_float[0]
        self._key_of[slot] = key
        self._n += 1
        self._flat = None
        p = bisect_right(self._bound, key, 0, len(self._keys)) - 1
        if self._count[p] == LEAF:
            p = self._split(p, key)
        leaf = self._keys[p]
        i = bisect_left(leaf, key)
        leaf.insert(i, key)
        self._slots[p].insert(i, slot)
        self._count[p] += 1
        self._block_count[p // BLOCK] += 1

    def pop(self, rank: int) -> int:
        """Take out the slot at ``rank`` (0 is the smallest) and return it."""
        block = 0
        blocks = self._block_count
        for held in blocks:
            if rank < held:
                break
            rank -= held
            block += 1
        p = block * BLOCK
        count = self._count
        held = count[p]
        while rank >= held:
            rank -= held
            p += 1
            held = count[p]
        slot = self._slots[p].pop(rank)
        del self._keys[p][rank]
        count[p] = held - 1
        blocks[block] -= 1
        if held <= LEAST:
            self._relieve(p)
        self._key_of[slot] = 0.0
        self._n -= 1
        self._flat = None
        return slot

    def move(self, moved: Slots, bits: NDArray[np.uint32]) -> None:
        """Give the slots ``moved``, each in and named once, new ``bits``; they keep their sequence numbers."""
        old_keys = self._key_of_np.take(moved)
        new_keys = old_keys.copy()
        new_keys.view(np.uint32)[_HIGH_WORD::2] = bits + np.uint32(_NORMAL)
        olds, news = old_keys.view(np.float64), new_keys.view(np.float64)
        # Removing and inserting are written out here and the leaves looked up for all at once, until one is split
        # or relieved: sixteen calls of each would cost a third of the whole.
        bound, count, keys, slots, blocks = self._bound, self._count, self._keys, self._slots, self._block_count
        if 0.0 in (starts := olds.tolist()):
            raise ValueError("a slot to be moved is not in")
        bounds = self._bound_np[: len(keys)]
        sources = (bounds.searchsorted(olds, "right") - 1).tolist()
        targets = (bounds.searchsorted(news, "right") - 1).tolist()
        self._key_of_np[moved] = new_keys
        self._flat = None
        current = True
        for slot, old, new, p, q in zip(moved.tolist(), starts, news.tolist(), sources, targets, strict=True):
            if not current:
                p = bisect_right(bound, old, 0, len(keys)) - 1
            leaf = keys[p]
            i = bisect_left(leaf, old)
            del leaf[i]
            del slots[p][i]
            count[p] = held = count[p] - 1
            blocks[p // BLOCK] -= 1
            if held < LEAST:
                self._relieve(p)
                current = False
            if not current:
                q = bisect_right(bound, new, 0, len(keys)) - 1
            held = count[q]
            if held == LEAF:
                q = self._split(q, new)
                held = count[q]
                current = False
            leaf = keys[q]
            i = bisect_left(leaf, new)
            leaf.insert(i, new)
            slots[q].insert(i, slot)
            count[q] = held + 1
            blocks[q // BLOCK] += 1

    def remove(self, slot: int) -> None:
        """Take out a slot that is in."""
        key = self._key_of[slot]
        p = bisect_right(self._bound, key, 0, len(self._keys)) - 1
        i = bisect_left(self._keys[p], key)
        del self._keys[p][i], self._slots[p][i]
        self._count[p] = held = self._count[p] - 1
        self._block_count[p // BLOCK] -= 1
        if held < LEAST:
            self._relieve(p)
        self._key_of[slot] = 0.0
        self._n -= 1
        self._flat = None

    def renew(self, slots: Slots, bits: int) -> None:
        """Put ``slots`` in with these ``bits`` as the newest, in their order; those that are in are taken out first."""
        if len(slots) * BLOCK < self._n:
            for slot in slots.tolist():
                if self._key_of[slot] != 0.0:
                    self.remove(slot)
                self.insert(slot, bits)
            return
        # So many at once are sorted in anew.
        distinct, last = np.unique(slots[::-1], return_index=True)
        fresh = distinct[np.argsort(last)[::-1]]
        keys = self._key_of_np.copy()
        keys[fresh] = _ABSENT
        self.load(keys)
        keys = self._key_of_np.copy()
        first = self._n + (bits + _NORMAL << SEQUENCE_BITS)
        keys[fresh] = np.arange(first, first + len(fresh), dtype=np.uint64)
        self.load(keys)

    def at(self, ranks: NDArray[np.int64]) -> Slots:
        """Return the slots at ``ranks`` (k,), each in 0 ... len - 1."""
        if self._flat is None and self._n > max(FLAT, BLOCK * len(ranks)):
            count = self._count_np[: len(self._slots)]
            ends = count.cumsum()
            leaves = ends.searchsorted(ranks, "right")
            places = ranks - (ends - count).take(leaves)
            slots = self._slots
            found = [slots[p][i] for p, i in zip(leaves.tolist(), places.tolist(), strict=True)]
            return np.array(found, np.int64)
        return self._in_order().take(ranks).astype(np.int64)

    def in_order(self) -> Slots:
        """Return all slots from the smallest to the largest."""
        return self._in_order().astype(np.int64)

    def _in_order(self) -> NDArray[np.uint32]:
        if self._flat is None:
            self._flat = np.frombuffer(b"".join(self._slots), np.uint32)
        return self._flat

    def load(self, keys: NDArray[np.uint64]) -> None:
        """Replace everything by ``keys``, as :attr:`keys` gave them; sequence numbers are handed out anew, in order.

        Raises ValueError when they are not (capacity,) entries with a sequence number each.
        """
        if keys.shape != (self.capacity,) or keys.dtype != np.uint64:
            raise ValueError(f"keys of shape {keys.shape} and type {keys.dtype}, expected ({self.capacity},) uint64")
        slots = np.flatnonzero(keys != _ABSENT)
        held = keys[slots]
        sequence = held & _SEQUENCE
        by_age = np.argsort(sequence)
        if np.any(np.diff(sequence[by_age]) == 0):
            raise ValueError("two keys with the same sequence number")
        held = held & ~_SEQUENCE
        held[by_age] |= np.arange(len(slots), dtype=np.uint64)
        order = np.argsort(held)
        slots, held = slots[order], held[order]
        self._key_of_np.fill(_ABSENT)
        self._key_of_np[slots] = held
        self._clear()
        self._n = self._sequence = len(slots)
        filled = (LEAST + LEAF) // 2
        for p, first in enumerate(range(0, len(slots), filled)):
            keys_here = array("d", held[first : first + filled].tobytes())
            slots_here = array("I", slots[first : first + filled].astype(np.uint32).tobytes())
            if p:
                self._open_leaf(p, keys_here[0], keys_here, slots_here)
            else:
                self._keys[0], self._slots[0] = keys_here, slots_here
                self._count[0] = len(keys_here)
        if self._count[len(self._keys) - 1] < LEAST:
            self._relieve(len(self._keys) - 1)
        self._sum_blocks()

    def _clear(self) -> None:
        self._keys.clear()
        self._slots.clear()
        self._n = 0
        self._flat = None
        self._open_leaf(0, 0.0, array("d"), array("I"))
        self._sum_blocks()

    def _split(self, p: int, key: float) -> int:
        """Split the full leaf ``p`` in two and return the one that ``key`` belongs to."""
        half = LEAF // 2
        keys, slots = self._keys[p], self._slots[p]
        self._open_leaf(p + 1, keys[half], keys[half:], slots[half:])
        del keys[half:], slots[half:]
        self._count[p] = half
        self._sum_blocks()
        return p if key < self._bound[p + 1] else p + 1

    def _relieve(self, p: int) -> None:
        """Merge leaf ``p``, which holds too little, with a neighbour, or let them share."""
        count = self._count
        n = len(self._keys)
        if n == 1:
            return
        left = p - 1 if p and (p + 1 == n or count[p - 1] < count[p + 1]) else p
        right = left + 1
        total = count[left] + count[right]
        kept = total if total <= MERGED else total // 2
        keys = self._keys[left] + self._keys[right]
        slots = self._slots[left] + self._slots[right]
        self._keys[left], self._keys[right] = keys[:kept], keys[kept:]
        self._slots[left], self._slots[right] = slots[:kept], slots[kept:]
        count[left], count[right] = kept, total - kept
        if kept == total:
            self._close_leaf(right)
        else:
            self._bound[right] = keys[kept]
        self._sum_blocks()

    def _open_leaf(self, p: int, bound: float, keys: array[float], slots: array[int]) -> None:
        n = len(self._keys)
        self._keys.insert(p, keys)
        self._slots.insert(p, slots)
        self._bound[p + 1 : n + 1] = self._bound[p:n]
        self._count[p + 1 : n + 1] = self._count[p:n]
        self._bound[p] = bound
        self._count[p] = len(keys)

    def _close_leaf(self, p: int) -> None:
        n = len(self._keys)
        del self._keys[p], self._slots[p]
        self._bound[p : n - 1] = self._bound[p + 1 : n]
        self._count[p : n - 1] = self._count[p + 1 : n]

    def _sum_blocks(self) -> None:
        starts = np.arange(0, len(self._keys), BLOCK)
        self._block_count[:] = np.add.reduceat(self._count_np[: len(self._keys)], starts).tolist()


def float_bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the bits of |values|, which order as the values do; ValueError when one is not a number."""
    bits: NDArray[np.uint32] = np.abs(values, dtype=np.float32).view(np.uint32)
    if max(bits.tolist(), default=0) > INFINITE:
        raise ValueError("a value is not a number")
    return bits
