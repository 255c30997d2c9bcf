"""Batches for on-policy algorithms, each of N consecutive experiences under one policy, taken from the mirror of a
rig's memory.

The experiences of the incomplete batch stay in the memory; this module only keeps track of where the batch starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms.on_policy import PolicyBatch
from onrig.runtime.memory.layout import POLICY_SHIFT, Flag, Slots
from onrig.runtime.memory.storage import Storage

_DEVIATES: Final = np.uint32(Flag.DEVIATES)
_TERMINATED: Final = np.uint32(Flag.TERMINATED)


class NextBatch(NamedTuple):
    """Position of the next batch in a sequence of experiences."""

    n_skipped: int
    """Number of experiences before the batch, from policies that were replaced before their batch was complete."""
    is_complete: bool


def find_next_batch(policies: NDArray[np.integer], size: int) -> NextBatch:
    """Find the first ``size`` consecutive experiences under one policy, or else the start of the incomplete sequence.

    ``policies``: the policy id of each experience, in order.
    """
    changes = np.flatnonzero(policies[1:] != policies[:-1]) + 1
    starts = np.concatenate(([0], changes))
    lengths = np.diff(np.concatenate((starts, [len(policies)])))
    complete_sequences = np.flatnonzero(lengths >= size)
    return (
        NextBatch(int(starts[complete_sequences[0]]), True)
        if len(complete_sequences)
        else NextBatch(int(starts[-1]), False)
    )


def log_density(
    action: NDArray[np.float64], mean: NDArray[np.float64], std: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ln pi(a|s) under N(mean, std^2), summed over the actions: (..., m) to (...)."""
    with np.errstate(divide="ignore", invalid="ignore"):  # std is 0 for actions without noise
        log_densities = -0.5 * np.square((action - mean) / std) - np.log(std) - 0.5 * math.log(2.0 * math.pi)
    total: NDArray[np.float64] = log_densities.sum(axis=-1)
    return total


def policy_batch(storage: Storage, slots: Slots) -> PolicyBatch:
    """Build a batch (S = K = 1) from the experiences in ``slots`` (T,), in insertion order.

    A chain ends where the next experience is not the following step of the same episode.
    """
    n = storage.layout.n_act
    mean, std, drawn = (storage.behaviour[slots, k * n : (k + 1) * n] for k in range(3))
    log_pi = log_density(*(field.astype(np.float64) for field in (drawn, mean, std)))
    words, layout, meta = storage.words, storage.layout, storage.meta[slots]
    first_slots, second_slots = slots[:-1], slots[1:]
    is_successor = (
        (storage.episode[second_slots] == storage.episode[first_slots])
        & (storage.step[second_slots] == storage.step[first_slots] + 1)
        & (words[first_slots, layout.next_observation] == words[second_slots, layout.observation]).all(axis=1)
    )
    terminated = meta & _TERMINATED != 0
    truncated = np.append(~is_successor, False) & ~terminated
    new_axes = None, None  # S and K
    return PolicyBatch(
        observation=storage.observation[slots][new_axes],
        drawn=drawn[new_axes],
        reward=storage.reward[slots].astype(np.float64)[new_axes],
        next_observation=storage.next_observation[slots][new_axes],
        terminated=terminated[new_axes],
        truncated=truncated[new_axes],
        overridden=(meta & _DEVIATES != 0)[new_axes],
        log_pi=log_pi[new_axes],
    )


class PolicyBatches:
    """Batches of ``size`` experiences, taken from a mirror that keeps the latest experiences in insertion order.

    Each batch comes from a single policy.  It does not matter which, because experiences record the distribution of
    their actions.  Experiences gathered during an update therefore belong to the next batch of the same policy, and are
    dropped if a new policy takes over before that batch is complete.
    """

    def __init__(self, storage: Storage, size: int) -> None:
        if not storage.cyclic or storage.capacity < size:
            raise ValueError(f"a memory of {storage.capacity} experiences cannot hold {size} in insertion order")
        if not storage.layout.behaviour:
            raise ValueError("the rig's experiences do not record their behaviour policies (process: own)")
        self._storage, self._size = storage, size
        self._n_writes_before = 0
        """Number of writes before the batch that is being gathered."""
        self._last_step = (-1, -1)
        """Episode and step of the last experience that was part of a batch."""
        self.n_learned = 0
        """Number of batches learned from."""
        self.n_dropped = 0
        """Number of experiences that belong to no batch."""
        self.n_deviating = 0
        """Number of experiences in batches whose applied action differs from the policy's."""

    def take_complete(self) -> Iterator[tuple[PolicyBatch, int]]:
        """Yield the complete batches, each with the slot of its first experience."""
        storage = self._storage
        while True:
            self._skip(max(0, storage.inserted - self._n_writes_before - storage.capacity))
            slots = self._skip_repeated(storage.changed_since(self._n_writes_before))
            next_batch = find_next_batch(storage.meta[slots] >> np.uint32(POLICY_SHIFT), self._size)
            self._skip(next_batch.n_skipped)
            if not next_batch.is_complete:
                return
            batch_slots = slots[next_batch.n_skipped : next_batch.n_skipped + self._size]
            self._n_writes_before += self._size
            self._last_step = int(storage.episode[batch_slots[-1]]), int(storage.step[batch_slots[-1]])
            self.n_learned += 1
            self.n_deviating += int(np.count_nonzero(storage.meta[batch_slots] & _DEVIATES))
            yield policy_batch(storage, batch_slots), int(batch_slots[0])

    def _skip_repeated(self, slots: Slots) -> Slots:
        """Skip experiences that were already in a batch, but that a rig repeats after returning to a checkpoint.

        They are identified by episode and step: if a killed run repeats an episode, only the steps after the last one
        used are new.
        """
        episode, step = self._storage.episode[slots], self._storage.step[slots]
        is_new = (episode > self._last_step[0]) | ((episode == self._last_step[0]) & (step > self._last_step[1]))
        n_repeated = int(np.argmax(is_new)) if is_new.any() else len(slots)
        self._n_writes_before += n_repeated
        return slots[n_repeated:]

    def _skip(self, n_experiences: int) -> None:
        self._n_writes_before += n_experiences
        self.n_dropped += n_experiences

    def rewind(self, n_writes: int) -> None:
        """Return to the position after ``n_writes`` writes; later writes are repeated or replaced."""
        self._n_writes_before = min(self._n_writes_before, n_writes)

    def skip_stored(self) -> None:
        """Skip the stored experiences, which were gathered by another learner's policies."""
        self._n_writes_before, self._last_step = self._storage.inserted, (-1, -1)

    def state(self) -> dict[str, NDArray[np.generic]]:
        counts = (self._n_writes_before, self.n_learned, self.n_dropped, self.n_deviating)
        return {"position": np.array([*counts, *self._last_step], np.int64)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        position = [int(x) for x in state["position"]]
        self._n_writes_before, self.n_learned, self.n_dropped, self.n_deviating = position[:4]
        episode, step = position[4:] or (-1, -1)  # missing in states of earlier versions
        self._last_step = episode, step
