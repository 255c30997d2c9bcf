"""The learner's copy of the rig's memory: the same rows in the same slots, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Behaviour, Minibatches, Window
from onrig.learner.samplers import Draw
from onrig.learner.trajectories import NO_NEIGHBOURS, Chain, Trajectories, experience_keys
from onrig.runtime.memory.layout import Batch, Flag, Layout, Slots
from onrig.runtime.memory.storage import STAMP_WORDS, Storage


def reshape_behaviour(batch: Batch, shape: tuple[int, int, int]) -> Behaviour:
    """Return the behaviour policies of gathered experiences, with fields of shape (*shape, ...)."""
    mean, std, drawn = np.moveaxis(batch.behaviour.reshape(*shape, 3, -1), -2, 0)
    overridden = (batch.meta & np.uint32(Flag.DEVIATES)) != 0
    return Behaviour(mean, std, drawn, overridden.reshape(shape))


class Mirror:
    """Copy of the rig's memory, which applies the rig's writes in order and gathers minibatches.

    ``intervened_weight`` is the weight that the critic's loss gives to experiences in which the shield intervened;
    ``successors``, ``window`` and ``needs_episodes`` are the algorithm's requirements
    (``onrig.learner.algorithm_config``).
    """

    def __init__(
        self,
        capacity: int,
        layout: Layout,
        *,
        cyclic: bool,
        intervened_weight: float = 1.0,
        successors: int = 1,
        window: int = 1,
        needs_episodes: bool = False,
    ) -> None:
        self._intervened_weight = intervened_weight
        self.storage = Storage(capacity, layout, cyclic=cyclic)
        self._batches: dict[bool, Batch] = {}
        """Last gathered batches: for updates (False), and for samplers (True)."""
        self._successors, self._window = successors, window
        needs_trajectories = needs_episodes or successors > 1 or window > 1
        self._trajectories = Trajectories(1, capacity, self._are_consecutive) if needs_trajectories else None

    def apply(self, payload: bytes, n_writes: int) -> Slots:
        """Apply rows received over the link, and return the slots written, in order.

        Raises ValueError if the rows do not continue the mirror.
        """
        width = STAMP_WORDS + self.storage.layout.width
        words = np.frombuffer(payload, "<u4").astype(np.uint32)
        if len(words) % width:
            raise ValueError(f"{len(words)} words are not a multiple of the row width {width}")
        slots = self.storage.write_rows(words.reshape(-1, width))
        if self.storage.inserted != n_writes:
            raise ValueError(f"the rows end at write {self.storage.inserted}, but the rig reports {n_writes}")
        if self._trajectories is not None:
            is_measured = self.storage.meta[slots] & np.uint32(Flag.SYNTHETIC) == 0
            keys = experience_keys(self.storage.episode[slots], self.storage.step[slots])
            self._trajectories.on_write(0, slots, np.where(is_measured, keys, -1))
        return slots

    def _are_consecutive(self, trial: int, first_slots: Slots, second_slots: Slots) -> NDArray[np.bool_]:
        words, layout = self.storage.words, self.storage.layout
        is_equal = words[first_slots, layout.next_observation] == words[second_slots, layout.observation]
        is_continuous: NDArray[np.bool_] = is_equal.all(axis=1)
        return is_continuous

    @property
    def next_slots(self) -> Slots:
        """(1, capacity): slot of the episode's next experience, or -1."""
        return NO_NEIGHBOURS if self._trajectories is None else self._trajectories.next_slots

    def segments_around(self, slots: Slots, n: int) -> Chain:
        """Return the segments of episodes around the experiences in slots (1, B), each with at most n experiences; the
        mirror must have been created with ``needs_episodes``."""
        assert self._trajectories is not None
        return self._trajectories.segments_around(slots, n)

    def gather(self, draw: Draw, *, for_view: bool = False) -> tuple[Minibatches, NDArray[np.uint32]]:
        """Gather the drawn experiences, and the generations (updates * batch,) of their slots.

        The arrays are valid until the next call with the same ``for_view``, which samplers set so that the batch for
        updates remains valid.
        """
        updates, size = draw.slots.shape
        n = updates * size
        batch = self._batches.get(for_view)
        if batch is None or len(batch.words) != n:
            batch = self._batches[for_view] = Batch(self.storage.layout, n)
        self.storage.gather(draw.slots.reshape(-1), batch)
        shape = (updates, 1, size)
        minibatches = Minibatches(
            observation=batch.observation.reshape(*shape, -1),
            action=batch.action.reshape(*shape, -1),
            reward=batch.reward.reshape(shape),
            next_observation=batch.next_observation.reshape(*shape, -1),
            terminated=batch.terminated().reshape(shape),
            weights=self._weights(draw, batch, shape),
            slots=draw.slots[:, None],
            behaviour=reshape_behaviour(batch, shape) if self.storage.layout.behaviour else None,
        )
        if self._trajectories is not None and self._successors > 1 and not for_view:
            chain = self._trajectories.with_successors(draw.slots[:, None], self._successors)
            minibatches = replace(
                minibatches,
                next_observation=self.storage.next_observation[chain.last_slots],
                terminated=(self.storage.meta[chain.last_slots] & np.uint32(Flag.TERMINATED)) != 0,
                rewards=np.where(chain.is_present, self.storage.reward[chain.slots], 0.0),
                lengths=chain.is_present.sum(axis=-1),
            )
        if self._trajectories is not None and self._window > 1:
            window_slots, is_present = self._trajectories.with_predecessors(draw.slots[:, None], self._window)
            minibatches = replace(
                minibatches, window=Window(window_slots, self.storage.observation[window_slots], is_present)
            )
        return minibatches, batch.generation()

    def _weights(self, draw: Draw, batch: Batch, shape: tuple[int, int, int]) -> NDArray[np.floating] | None:
        """Return the importance-sampling weights times the weights for interventions; None if all are 1."""
        sampling_weights = None if draw.weights is None else draw.weights.reshape(shape)
        if self._intervened_weight == 1.0:
            return sampling_weights
        intervention_weights = np.where(batch.intervened(), self._intervened_weight, 1.0).reshape(shape)
        return intervention_weights if sampling_weights is None else sampling_weights * intervention_weights
