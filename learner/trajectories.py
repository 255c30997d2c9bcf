"""Links between neighbouring experiences of an episode, which are identified by episode and step rather than by slot.

A chain of experiences has no gaps, whatever the retention strategy overwrites or rejects: it ends where the next
experience is not stored.  Links are added and removed as slots are written, at a cost proportional to the number of
writes; a dictionary with an entry for each stored experience locates the neighbours of a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.layout import Slots

Bools = NDArray[np.bool_]
ContinuityTest = Callable[[int, Slots, Slots], Bools]
"""Function of a trial and two arrays of slots (k,) that returns whether each second experience starts in the final
state of the first.  It may not, because a fault can abort an episode, which then restarts under the same number."""

NO_NEIGHBOURS: Final = np.zeros((0, 0), np.int64)
"""Empty ``next_slots`` for an algorithm that needs no links."""
_STEP_BITS: Final = 32
BYTES_PER_SLOT: Final = 200.0
"""Maximum number of bytes per experience of a trial: links, key and dictionary entry."""


def experience_keys(episode: NDArray[np.integer], step: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the keys (k,) of experiences from their episodes and steps (k,); a successor's key is one higher."""
    keys: NDArray[np.int64] = (episode.astype(np.int64) << _STEP_BITS) + step
    return keys


class Chain(NamedTuple):
    """Consecutive experiences of an episode; missing steps repeat the slot of the last experience."""

    slots: Slots
    """(..., n)"""
    is_present: Bools
    """(..., n)"""

    @property
    def last_slots(self) -> Slots:
        """(...,): slot of the last experience."""
        return self.slots[..., -1]


class Trajectories:
    """Links between the experiences of S trials, each of whose memories has the slots 0 ... capacity - 1."""

    def __init__(self, trials: int, capacity: int, are_consecutive: ContinuityTest) -> None:
        self._capacity, self._are_consecutive = capacity, are_consecutive
        self._next_slots: NDArray[np.int64] = np.full((trials, capacity), -1)
        self._previous_slots: NDArray[np.int64] = np.full((trials, capacity), -1)
        self._keys: NDArray[np.int64] = np.full((trials, capacity), -1)
        self._slots: list[dict[int, int]] = [{} for _ in range(trials)]

    @property
    def next_slots(self) -> Slots:
        """(S, capacity): slot of the successor, -1 if it is not stored; kept up to date."""
        return self._next_slots

    def on_write(self, trial: int, slots: Slots, keys: NDArray[np.int64]) -> None:
        """Register new experiences in ``slots`` (k,), in order, once all of them are stored; slots may be repeated.

        ``keys`` (k,) come from ``experience_keys``, or increase by one within an episode; -1 marks an experience
        without neighbours.  If two experiences have the same key, the later one counts.
        """
        keys_by_slot, slot_by_key = self._keys[trial], self._slots[trial]
        for slot, key in zip(slots.tolist(), keys.tolist(), strict=True):
            old_key = int(keys_by_slot[slot])
            if slot_by_key.get(old_key) == slot:
                del slot_by_key[old_key]
            keys_by_slot[slot] = key
            if key >= 0:
                slot_by_key[key] = slot
        new_slots = np.unique(slots)
        next_slots, previous_slots = self._next_slots[trial], self._previous_slots[trial]
        for forward_links, backward_links in ((next_slots, previous_slots), (previous_slots, next_slots)):
            neighbours = forward_links[new_slots]
            is_linked = neighbours >= 0
            backward_links[neighbours[is_linked]] = -1
            forward_links[new_slots] = -1
        new_slots = new_slots[self._find_slots(trial, keys_by_slot[new_slots]) == new_slots]
        self._link(trial, self._find_slots(trial, keys_by_slot[new_slots] - 1), new_slots)
        self._link(trial, new_slots, self._find_slots(trial, keys_by_slot[new_slots] + 1))

    def _find_slots(self, trial: int, keys: NDArray[np.int64]) -> Slots:
        slot_by_key = self._slots[trial]
        return np.array([slot_by_key.get(key, -1) for key in keys.tolist()], np.int64)

    def _link(self, trial: int, first_slots: Slots, second_slots: Slots) -> None:
        both_exist = (first_slots >= 0) & (second_slots >= 0)
        first_slots, second_slots = first_slots[both_exist], second_slots[both_exist]
        is_continuous = self._are_consecutive(trial, first_slots, second_slots)
        first_slots, second_slots = first_slots[is_continuous], second_slots[is_continuous]
        next_slots, previous_slots = self._next_slots[trial], self._previous_slots[trial]
        # A neighbour may already be linked to an earlier experience with the same key.
        old_next_slots, old_previous_slots = next_slots[first_slots], previous_slots[second_slots]
        previous_slots[old_next_slots[old_next_slots >= 0]] = -1
        next_slots[old_previous_slots[old_previous_slots >= 0]] = -1
        next_slots[first_slots], previous_slots[second_slots] = second_slots, first_slots

    def with_successors(self, slots: Slots, n: int) -> Chain:
        """Return the experiences in ``slots`` (..., S, B), each followed by its successors, n in total:
        (..., S, B, n)."""
        return self._chain(self._next_slots, slots, n)

    def with_predecessors(self, slots: Slots, n: int) -> Chain:
        """Return the experiences in ``slots`` (..., S, B), each followed by its predecessors, n in total and latest
        first: (..., S, B, n)."""
        return self._chain(self._previous_slots, slots, n)

    def segments_around(self, slots: Slots, n: int) -> Chain:
        """Return the segments that contain the experiences in ``slots`` (S, B), each with at most n consecutive
        experiences of an episode: (S, B, n).

        A longer stored episode is cut into its first n experiences, the next n, and so on.  The cuts depend only on
        preceding experiences: if they depended on the end of the episode, the steps before it would have shorter
        horizons than others, and values would be biased as if fewer episodes ended.
        """
        path = self._path(self._previous_slots, slots)
        index = (path >= 0).sum(axis=0) - 1
        return self.with_successors(np.take_along_axis(path, (index % n)[None], axis=0)[0], n)

    def _path(self, neighbours: NDArray[np.int64], slots: Slots) -> NDArray[np.int64]:
        """Return the slots (k, S, B) from ``slots`` to the end of each chain, padded with -1."""
        trial = np.arange(len(neighbours))[:, None]
        path = [slots]
        while (path[-1] >= 0).any():
            path.append(np.where(path[-1] >= 0, neighbours[trial, path[-1]], -1))
        return np.array(path[:-1])

    def _chain(self, neighbours: NDArray[np.int64], slots: Slots, n: int) -> Chain:
        row_start = np.arange(len(neighbours))[:, None] * self._capacity
        flat_neighbours = neighbours.reshape(-1)
        chain = np.empty((*slots.shape, n), np.int64)
        is_present = np.empty((*slots.shape, n), np.bool_)
        chain[..., 0], is_present[..., 0] = slots, True
        for k in range(1, n):
            next_slots = flat_neighbours[chain[..., k - 1] + row_start]
            is_present[..., k] = exists = is_present[..., k - 1] & (next_slots >= 0)
            chain[..., k] = np.where(exists, next_slots, chain[..., k - 1])
        return Chain(chain, is_present)
