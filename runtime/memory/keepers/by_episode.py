"""FarPolFrac, MaxKLDiv and MinError: eviction of entire episodes, by a mean over their experiences.

Source: Novati & Koumoutsakos 2019, algorithm 1, and the filters in its code.  The paper evicts an episode once the
others exceed N experiences; for C slots, N is C minus the length of the episode.  Here, the slots of the episode are
overwritten one by one, starting from its first step, so that the cost per insert is small and its last steps remain
longest.  With this kind of eviction, the paper's `oldest` is FIFO, and the three strategies act like FIFO until the
learner's first feedback.
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.keepers.keeper import Arrays, Keeper, Signal
from onrig.runtime.memory.layout import Slots
from onrig.runtime.memory.order.ranked import INFINITY_BITS

_FIXED_POINT_SCALE: Final = 1 << 30
"""Integers per unit of a value (resolution 1e-9), which make the sums exact."""
_MAX_INTEGER: Final = 1 << 44
"""Largest integer (for a value of 16384); smaller if a memory has more than 2^18 slots, to keep its sums below 2^62."""
_NO_KEY: Final = (1 << 64) - 1
"""Key of a record that cannot be chosen, because it is free or its episode is still growing or being evicted."""
_NUMBER_MASK: Final = 0xFFFFFFFF
_NO_RECORD: Final = _NUMBER_MASK


class _EpisodeRecords:
    """Records of the stored episodes: key for choosing one, first slot, number of steps, and sum of the integers.

    Arrays are (capacity,); they are accessed through memoryviews, because array items take twice as long to read and
    write.
    """

    def __init__(self, capacity: int) -> None:
        self.keys: Final = np.full(capacity, _NO_KEY, np.uint64)
        self.first_slots: Final = np.arange(1, capacity + 1, dtype=np.uint32)
        """First slot; for a free record, the next free record."""
        self.sizes: Final = np.zeros(capacity, np.uint32)
        self.totals: Final = np.zeros(capacity, np.int64)
        self.key_view, self.first_slot_view, self.size_view, self.total_view = (
            self.keys.data, self.first_slots.data, self.sizes.data, self.totals.data
        )  # fmt: skip
        self.first_free_record = self.n_used = 0
        """First free record, and number of records ever used."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + self.first_slots.nbytes + self.sizes.nbytes + self.totals.nbytes

    def smallest_record(self) -> int | None:
        """Return the record with the smallest key; None if none can be chosen."""
        record = int(self.keys[: self.n_used].argmin())
        return None if self.key_view[record] == _NO_KEY else record

    def allocate(self) -> int:
        """Take a free record for an episode that has no steps yet."""
        record = self.first_free_record
        self.first_free_record = self.first_slot_view[record]
        self.n_used = max(self.n_used, record + 1)
        self.size_view[record] = self.total_view[record] = 0
        return record

    def release(self, record: int) -> None:
        """Make a record free again."""
        self.first_slot_view[record] = self.first_free_record
        self.first_free_record = record

    def rank(self, records: NDArray[np.int64], *, evicts_largest: bool) -> None:
        """Set the keys of these complete episodes according to their means."""
        mean = (self.totals[records] / self.sizes[records]).astype(np.float32)
        rank = mean.view(np.uint32).astype(np.uint64)
        if evicts_largest:
            rank = np.uint64(INFINITY_BITS) - rank
        self.keys[records] = rank << np.uint64(32) | self.keys[records] & np.uint64(_NUMBER_MASK)


class ByEpisode(Keeper):
    """Evicts the episode with the smallest key: the rank of its mean, then its age.

    Bounds: ``place`` and ``on_write`` take constant time, except for the choice of the next episode to evict, which
    reads the keys of all stored episodes once (8 bytes each); ``on_feedback`` takes time proportional to the number of
    values.
    """

    signal: ClassVar[Signal]
    unreplayed_value: ClassVar[float] = 0.0
    """Value of an experience that has not been replayed."""
    evicts_largest: ClassVar[bool] = True
    bytes_per_slot = 36.0
    checkpoint_bytes_per_slot = 24.0
    holds = "its episodes and the learner's feedback on them"

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        super().__init__(capacity, rng)
        # By slot: record of its episode, next slot of that episode (its own index for the last one), latest value.
        self._record_np: Final = np.zeros(capacity, np.uint32)
        self._next_np: Final = np.zeros(capacity, np.uint32)
        self._value_np: Final = np.zeros(capacity, np.float32)
        # memoryviews, as in _EpisodeRecords.
        self._record, self._next = self._record_np.data, self._next_np.data
        self._value = self._value_np.data.cast("B").cast("f")
        self._records: Final = _EpisodeRecords(capacity)
        self._max_integer: Final = min(_MAX_INTEGER, (1 << 62) // capacity)
        self._unreplayed_integer: Final = int(self._to_integers(np.full(1, self.unreplayed_value, np.float32))[0])
        self._n_filled = 0
        self._current_record = self._evicted_record = _NO_RECORD
        """Records of the growing episode and of the episode being evicted."""
        self._episode = self._episode_number = self._last_slot = 0
        """Number of the current episode as given by the caller and as assigned here, and its last slot."""
        self._next_evicted_slot = self._n_slots_to_evict = 0
        """Next slot of the episode being evicted, and number of its remaining slots."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._record_np.nbytes + self._next_np.nbytes + self._value_np.nbytes + self._records.nbytes

    def place(self) -> int:
        """Return the next free slot, or the next one of the episode being evicted.

        If a single episode fills the entire memory, it loses its first step.
        """
        if self._n_filled < self.capacity:
            self._n_filled += 1
            return self._n_filled - 1
        if not self._n_slots_to_evict and not self._choose_episode():
            return self._drop_first_step(self._current_record)
        slot = self._next_evicted_slot
        self._next_evicted_slot = self._next[slot]
        self._n_slots_to_evict -= 1
        if not self._n_slots_to_evict:
            self._records.release(self._evicted_record)
            self._evicted_record = _NO_RECORD
        return slot

    def _choose_episode(self) -> bool:
        """Choose the next episode to evict; return False if only the current one is stored."""
        records = self._records
        record = records.smallest_record()
        if record is None:
            return False
        records.key_view[record] = _NO_KEY
        self._evicted_record, self._next_evicted_slot, self._n_slots_to_evict = (
            record,
            records.first_slot_view[record],
            records.size_view[record],
        )
        return True

    def _drop_first_step(self, record: int) -> int:
        records = self._records
        slot = records.first_slot_view[record]
        records.first_slot_view[record] = self._next[slot]
        records.size_view[record] -= 1
        records.total_view[record] -= int(self._to_integers(self._value_np[slot : slot + 1])[0])
        return slot

    def on_write(self, slot: int, exploration: float, episode: int) -> None:
        """Append the experience to its episode."""
        if episode != self._episode or self._current_record == _NO_RECORD:
            self._begin_episode(episode)
        records, record = self._records, self._current_record
        if records.size_view[record]:
            self._next[self._last_slot] = slot
        else:
            records.first_slot_view[record] = slot
        self._record[slot], self._next[slot], self._value[slot] = record, slot, self.unreplayed_value
        self._last_slot = slot
        records.size_view[record] += 1
        records.total_view[record] += self._unreplayed_integer

    def _begin_episode(self, episode: int) -> None:
        records, ended_record = self._records, self._current_record
        if ended_record != _NO_RECORD and not records.size_view[ended_record]:
            records.release(ended_record)
        elif ended_record != _NO_RECORD:
            records.key_view[ended_record] = self._episode_number
            records.rank(np.array([ended_record]), evicts_largest=self.evicts_largest)
        self._current_record = records.allocate()
        self._episode, self._episode_number = episode, self._episode_number + 1

    def _to_integers(self, values: NDArray[np.float32]) -> NDArray[np.int64]:
        scaled_terms = np.minimum(self._mean_terms(values.astype(np.float64)) * _FIXED_POINT_SCALE, self._max_integer)
        integers: NDArray[np.int64] = np.rint(scaled_terms).astype(np.int64)
        return integers

    def _mean_terms(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the non-negative terms that are averaged over an episode."""
        terms: NDArray[np.float64] = np.abs(values)
        return terms

    def on_feedback(self, signal: Signal, slots: Slots, values: NDArray[np.float32]) -> None:
        """Replace the stored values of experiences with the latest ones."""
        if signal is not self.signal:
            return
        if np.isnan(values).any():
            raise ValueError("a value is NaN")
        slots, last_indices = np.unique(slots[::-1], return_index=True)
        is_stored = self._record_np[slots] != self._evicted_record
        slots, values = slots[is_stored], values[::-1][last_indices][is_stored]
        differences = self._to_integers(values) - self._to_integers(self._value_np[slots])
        self._value_np[slots] = values
        records = self._record_np[slots]
        np.add.at(self._records.totals, records, differences)
        changed_records = np.unique(records)
        self._records.rank(
            changed_records[changed_records != self._current_record].astype(np.int64),
            evicts_largest=self.evicts_largest,
        )

    def state(self) -> Arrays:
        """Return the value, episode and successor of each slot, and the position of the next write."""
        numbers = self._records.keys.astype(np.uint32)
        if self._current_record != _NO_RECORD:
            numbers[self._current_record] = self._episode_number
        if self._n_slots_to_evict:
            numbers[self._evicted_record] = 0
        position = (
            self._n_filled,
            self._episode,
            self._next_evicted_slot,
            self._n_slots_to_evict,
            self._current_record != _NO_RECORD,
        )
        return super().state() | {
            "place": np.array(position, np.int64),
            "values": self._value_np.copy(),
            "episodes": numbers[self._record_np],
            "next": self._next_np.copy(),
        }

    def restore(self, state: Arrays) -> None:
        """Restore ``state``; episodes are renumbered in order."""
        super().restore(state)
        n_filled, episode, next_evicted_slot, n_slots_to_evict, has_current = (int(number) for number in state["place"])
        shape = (self.capacity,)
        if any(state[name].shape != shape for name in ("values", "episodes", "next")):
            raise ValueError(f"state does not have {self.capacity} slots")
        self._value_np[:], self._next_np[:] = state["values"], state["next"]
        numbers = state["episodes"][:n_filled].astype(np.int64)
        is_evicted = numbers == 0
        stored_slots = np.flatnonzero(~is_evicted)
        episode_numbers, records = np.unique(numbers[stored_slots], return_inverse=True)
        n = len(episode_numbers)
        if (
            self._next_np.max() >= self.capacity
            or is_evicted.sum() != n_slots_to_evict
            or n + bool(n_slots_to_evict) > self.capacity
        ):
            raise ValueError("state with contradictory episodes")
        self._record_np[:] = n
        self._record_np[stored_slots] = records
        next_slots = self._next_np[stored_slots]
        first_slots = np.setdiff1d(stored_slots, next_slots[next_slots != stored_slots])
        table = self._records
        table.first_slots[:] = np.arange(1, self.capacity + 1)
        table.first_slots[self._record_np[first_slots]] = first_slots
        table.sizes[:n] = np.bincount(records, minlength=n)
        table.totals.fill(0)
        np.add.at(table.totals, records, self._to_integers(self._value_np[stored_slots]))
        table.keys.fill(_NO_KEY)
        table.keys[:n] = np.arange(1, n + 1)
        table.rank(np.arange(n), evicts_largest=self.evicts_largest)
        table.first_free_record = table.n_used = n + bool(n_slots_to_evict)
        self._n_filled, self._episode, self._episode_number = n_filled, episode, n
        self._next_evicted_slot, self._n_slots_to_evict, self._evicted_record = (
            next_evicted_slot,
            n_slots_to_evict,
            n if n_slots_to_evict else _NO_RECORD,
        )
        self._current_record = n - 1 if has_current else _NO_RECORD
        if has_current:
            table.key_view[self._current_record] = _NO_KEY
            last_slots = stored_slots[(next_slots == stored_slots) & (records == self._current_record)]
            self._last_slot = int(last_slots[0])


class FarPolFrac(ByEpisode):
    """Evicts the episode with the largest share of far-policy experiences (`farpolfrac`)."""

    name = "FarPolFrac"
    signal = Signal.FAR
    required_signals = frozenset({Signal.FAR})

    def _mean_terms(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        terms: NDArray[np.float64] = (values != 0.0).astype(np.float64)
        return terms


class MaxKLDiv(ByEpisode):
    """Evicts the episode with the largest mean KL divergence (`maxkldiv`)."""

    name = "MaxKLDiv"
    signal = Signal.KL
    required_signals = frozenset({Signal.KL})


class MinError(ByEpisode):
    """Evicts the episode with the smallest mean squared TD error (`minerror`); an experience not yet replayed counts as
    having the largest error."""

    name = "MinError"
    signal = Signal.TD_ERROR
    required_signals = frozenset({Signal.TD_ERROR})
    unreplayed_value = np.inf
    evicts_largest = False

    def _mean_terms(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        terms: NDArray[np.float64] = values * values
        return terms
