"""Storage of experiences: a single matrix of fixed size, for any capacity, written row by row.

Writing or gathering a row accesses one contiguous stretch of memory, which makes both fast; columns are views.  Every
write has a *number* (1, 2, ...), so that a mirror that has the first k writes can request all changes since then and
apply them bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.layout import (
    FLAG_MASK,
    GENERATION_MASK,
    GENERATION_SHIFT,
    POLICY_MASK,
    POLICY_SHIFT,
    Batch,
    Floats,
    Layout,
    Rows,
    Slots,
    Words,
)

N_RECENT_WRITES: Final = 4096
"""Number of latest writes that ``changed_since`` finds without scanning all slots (non-cyclic storage only)."""
NUMBER_BYTES: Final = 8
"""Bytes per row of non-cyclic storage for the number of its last write."""
STAMP_WORDS: Final = 3
"""Words in front of an exported row: slot, number (low, high)."""
_LOW_WORD_MASK: Final = 0xFFFFFFFF

Vector = Floats | NDArray[np.float64] | Sequence[float]


class _LastWrites:
    """Number of each slot's last write, and the slots of the latest writes, for slots written in any order."""

    def __init__(self, capacity: int) -> None:
        self.numbers: Final[NDArray[np.int64]] = np.zeros(capacity, np.int64)
        """(capacity,); 0 for a slot never written."""
        self._recent: Final[NDArray[np.int64]] = np.zeros(min(N_RECENT_WRITES, capacity), np.int64)
        self.recent_size: Final = len(self._recent)
        # memoryviews, because array items take twice as long to write.
        self.number_view, self.recent_view = self.numbers.data, self._recent.data

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.numbers.nbytes + self._recent.nbytes

    def add_all(self, slots: Slots, numbers: NDArray[np.int64]) -> None:
        """Record writes with increasing numbers; some numbers may be missing."""
        # A slot's last write has the largest number.  Missing numbers leave stale entries in ``_recent``, which do no
        # harm: those writes' slots have been rewritten since.
        np.maximum.at(self.numbers, slots, numbers)
        is_recent = numbers > numbers[-1] - self.recent_size
        self._recent[numbers[is_recent] % self.recent_size] = slots[is_recent]

    def scanned_bytes(self, n_known: int, inserted: int) -> int:
        """Do the same as ``Storage.scanned_bytes``, after ``inserted`` writes."""
        return 0 if inserted - n_known <= self.recent_size else self.numbers.nbytes

    def changed_since(self, n_known: int, inserted: int, limit: int | None) -> Slots:
        """Do the same as ``Storage.changed_since``, after ``inserted`` writes."""
        if inserted - n_known <= self.recent_size:
            writes = np.arange(n_known + 1, inserted + 1, dtype=np.int64)
            written_slots: Slots = self._recent[writes % self.recent_size]
            is_current: NDArray[np.bool_] = self.numbers[written_slots] == writes
            return written_slots[is_current][:limit]
        slots = np.flatnonzero(self.numbers > n_known)
        numbers: NDArray[np.int64] = self.numbers[slots]
        if limit is not None and limit < len(slots):
            # Sorting an entire large buffer for each part of a snapshot would take 100 times as long.
            is_oldest = numbers <= np.partition(numbers, limit - 1)[limit - 1]
            slots, numbers = slots[is_oldest], numbers[is_oldest]
        return slots[np.argsort(numbers)]


class Storage(Rows):
    """Storage for ``capacity`` transitions in rows of ``layout``, allocated and touched at the start.

    ``cyclic``: whether slots are written round robin (FIFO, FULL), so that the number of a slot's last write follows
    from the counter at no cost; otherwise the number is stored (8 bytes per slot, in addition to ``layout.row_bytes``).

    Slots fill from 0 upwards: slots 0 ... ``stored`` - 1 are occupied, whichever keeper is used.
    """

    def __init__(self, capacity: int, layout: Layout, *, cyclic: bool = True) -> None:
        if not (1 <= capacity <= _LOW_WORD_MASK) or layout.n_obs < 1 or layout.n_act < 1:
            sizes = f"{layout.n_obs} observations and {layout.n_act} actions"
            raise ValueError(f"cannot store {capacity} transitions with {sizes}")
        # uint32 is the base type so that copies preserve every bit: a float copy may alter a signalling NaN.
        super().__init__(layout, np.empty((capacity, layout.width), np.uint32))
        self.words.fill(0)  # touch every page now, so that a shortage of memory shows at the start
        self.capacity: Final = capacity
        self.inserted = 0
        """Number of writes over the lifetime of the buffer."""
        self._has_behaviour: Final = layout.behaviour
        self._reward_column: Final = layout.reward
        self._episode_column: Final = layout.episode
        self._width: Final = layout.width
        self._flat_words: Final = self.words.data.cast("B").cast("I")
        self._flat_floats: Final = self.words.data.cast("B").cast("f")
        self._last_writes: Final = None if cyclic else _LastWrites(capacity)

    @property
    def cyclic(self) -> bool:
        """Whether slots are written round robin."""
        return self._last_writes is None

    @property
    def stored(self) -> int:
        """Number of occupied slots."""
        return min(self.inserted, self.capacity)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.words.nbytes + (0 if self._last_writes is None else self._last_writes.nbytes)

    def insert(
        self,
        slot: int,
        observation: Vector,
        action: Vector,
        reward: float,
        next_observation: Vector,
        flags: int = 0,
        policy_id: int = 0,
        exploration: float = 0.0,
        episode: int = 0,
        step: int = 0,
        behaviour: Vector = (),
    ) -> int:
        """Write one transition into ``slot`` and return the number of the write (1 for the first).

        ``observation`` and ``next_observation``: (n_obs,), ``action``: (n_act,), in the rig's order; ``flags``:
        combination of :class:`~onrig.runtime.memory.layout.Flag`; ``behaviour``: (n_behaviour,).  The slot must be the
        one that the keeper returned; cyclic storage does not check this.
        """
        self.observation[slot] = observation
        self.action[slot] = action
        self.next_observation[slot] = next_observation
        if self._has_behaviour:
            self.behaviour[slot] = behaviour
        row = slot * self._width
        index = row + self._reward_column
        self._flat_floats[index] = reward
        self._flat_floats[index + 1] = exploration
        index = row + self._episode_column
        flat_words = self._flat_words
        flat_words[index] = episode
        flat_words[index + 1] = step
        index += 2
        generation = ((flat_words[index] >> GENERATION_SHIFT) + 1) & GENERATION_MASK
        flat_words[index] = (
            (policy_id & POLICY_MASK) << POLICY_SHIFT | generation << GENERATION_SHIFT | int(flags) & FLAG_MASK
        )
        self.inserted = number = self.inserted + 1
        last_writes = self._last_writes
        if last_writes is not None:  # inlined, because a call would take a fortieth of the insert's time
            last_writes.number_view[slot] = number
            last_writes.recent_view[number % last_writes.recent_size] = slot
        return number

    def gather(self, slots: Slots, out: Batch) -> Batch:
        """Copy the transitions in ``slots`` (size,) into ``out`` and return it."""
        self.words.take(slots, 0, out.words, "clip")
        return out

    def generation(self, slots: Slots) -> Words:
        """Return the generations of ``slots``: how often each has been written, modulo 2048."""
        return (self.meta[slots] >> np.uint32(GENERATION_SHIFT)) & np.uint32(GENERATION_MASK)

    def is_current(self, slots: Slots, generations: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which (slot, generation) pairs are current; False for slots out of range."""
        is_in_range = (slots >= 0) & (slots < self.stored)
        is_current: NDArray[np.bool_] = is_in_range & (self.generation(np.where(is_in_range, slots, 0)) == generations)
        return is_current

    def number(self, slots: Slots) -> NDArray[np.int64]:
        """Return the number of each slot's last write; 0 if it was never written."""
        if self._last_writes is None:
            return np.maximum(self.inserted - (self.inserted - 1 - slots) % self.capacity, 0)
        numbers: NDArray[np.int64] = self._last_writes.numbers.take(slots)
        return numbers

    def scanned_bytes(self, n_known: int) -> int:
        """Return the number of bytes that ``changed_since`` reads, in addition to its result."""
        return 0 if self._last_writes is None else self._last_writes.scanned_bytes(n_known, self.inserted)

    def changed_since(self, n_known: int, limit: int | None = None) -> Slots:
        """Return the slots written after the first ``n_known`` writes, each once, in the order of their last write.

        ``changed_since(0)`` returns the entire buffer, from the oldest to the newest experience.  ``limit`` restricts
        the result to the oldest of these slots; the next call continues from the number of the last one's write.  The
        cost is proportional to the number of changes, or a few passes over all slots if they go back further than the
        last 4096 writes of a non-cyclic storage.  Raises ValueError if ``n_known`` exceeds the number of writes so far,
        in which case the mirror belongs to a different buffer.
        """
        if not 0 <= n_known <= self.inserted:
            raise ValueError(f"the mirror has {n_known} writes, but the storage only {self.inserted}")
        if self._last_writes is not None:
            return self._last_writes.changed_since(n_known, self.inserted, limit)
        first = max(n_known, self.inserted - self.capacity)
        end = self.inserted if limit is None else min(self.inserted, first + limit)
        return np.arange(first, end, dtype=np.int64) % self.capacity

    def rows(self, slots: Slots) -> Words:
        """Export ``slots`` for :meth:`write_rows`, bit for bit: (len(slots), 3 + width) uint32, self-describing.

        The columns are the slot, the number (low and high word), and the row.  They are transmitted as little-endian
        words (``"<u4"``).
        """
        rows: Words = np.empty((len(slots), STAMP_WORDS + self._width), np.uint32)
        numbers = self.number(slots)
        rows[:, 0] = slots
        rows[:, 1] = numbers & _LOW_WORD_MASK
        rows[:, 2] = numbers >> 32
        rows[:, STAMP_WORDS:] = self.words[slots]
        return rows

    def write_rows(self, rows: Words) -> Slots:
        """Apply exported rows in order, to a mirror or when restoring; return their slots.

        Raises ValueError, before anything is written, if the rows do not fit this storage or do not continue the writes
        applied so far (numbers must increase).
        """
        if rows.ndim != 2 or rows.shape[1] != STAMP_WORDS + self._width:
            raise ValueError(f"rows of shape {rows.shape}, expected (any, {STAMP_WORDS + self._width})")
        slots = rows[:, 0].astype(np.int64)
        if not len(slots):
            return slots
        numbers = rows[:, 1].astype(np.int64) | rows[:, 2].astype(np.int64) << 32
        if slots.max() >= self.capacity:
            raise ValueError(f"row for slot {slots.max()}, but the storage has {self.capacity} slots")
        if numbers[0] <= self.inserted or np.any(np.diff(numbers) <= 0):
            raise ValueError(f"rows numbered from {numbers[0]} do not continue the {self.inserted} writes applied")
        if self.cyclic and np.any((numbers - 1) % self.capacity != slots):
            raise ValueError("rows are not in cyclic order")
        if len(np.unique(slots)) == len(slots):
            self.words[slots] = rows[:, STAMP_WORDS:]
        else:  # fancy assignment does not define which duplicate wins
            for slot, row in zip(slots.tolist(), rows, strict=True):
                self.words[slot] = row[STAMP_WORDS:]
        self.inserted = int(numbers[-1])
        if self._last_writes is not None:
            self._last_writes.add_all(slots, numbers)
        return slots

    def digest(self) -> bytes:
        """Return a hash of the content (16 bytes, BLAKE2b), equal on a mirror that has applied the same writes."""
        h = hashlib.blake2b(digest_size=16)
        layout = self.layout
        shape = (self.capacity, layout.n_obs, layout.n_act, layout.n_behaviour, self.inserted)
        h.update(np.array(shape, "<i8").tobytes())
        h.update(self.words[: self.stored].data)
        if self._last_writes is not None:
            h.update(self._last_writes.numbers[: self.stored].data)
        return h.digest()


def max_transitions(budget_bytes: int, layout: Layout, overhead_bytes: float = 0.0) -> int:
    """Return how many transitions, each with ``overhead_bytes`` in addition to its row, fit into ``budget_bytes``.

    Raises ValueError if not even one fits.
    """
    bytes_per_transition = layout.row_bytes + overhead_bytes
    capacity = int(budget_bytes // bytes_per_transition)
    if capacity < 1:
        raise ValueError(f"{budget_bytes} bytes hold no transition of {bytes_per_transition:g} bytes")
    return capacity
