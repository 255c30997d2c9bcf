"""Memory of experiences on the rig: storage, and the keeper that decides which experiences remain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.keepers.keeper import Keeper, Signal
from onrig.runtime.memory.layout import FLAG_MASK, POLICY_SHIFT, Flag, Slots
from onrig.runtime.memory.storage import Storage, Vector
from onrig.runtime.memory.strategy import build_keeper, parse_strategy
from onrig.runtime.memory.transitions import ResynthesisedBatch, Resynthesiser, Transitions
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.run_config import RunConfig, capacity_of, layout_of

TdErrorCallback = Callable[[Slots, NDArray[np.uint32], NDArray[np.float32]], None]
"""Callback that receives slots, the generations of their experiences, and the latest |TD errors|."""


class Memory:
    """Memory owned by the replay process; learners mirror ``storage`` write by write.

    A ``resynthesiser`` replaces some experiences with synthetic ones before they are written (de Bruin et al. 2018,
    §6.2.1).
    """

    def __init__(self, config: RunConfig, resynthesiser: Resynthesiser | None = None) -> None:
        self.strategy = parse_strategy(config.selection.strategy)
        self._resynthesiser = resynthesiser
        self._drops_intervened = config.selection.intervened == "drop"
        capacity = capacity_of(config)
        self.keeper = build_keeper(
            self.strategy,
            capacity,
            stream(config.seed, Role.KEEPER),
            write_probability=config.selection.write_probability,
            reserved=config.selection.reserved,
        )
        self.storage = Storage(capacity, layout_of(config), cyclic=self.keeper.cyclic)
        self.offered = 0
        """Number of experiences offered to the keeper."""
        self.stale_errors = 0
        """Number of feedback values received for experiences that had already been overwritten."""
        self.on_errors: TdErrorCallback | None = None
        """Called with the TD errors of current experiences, whether or not the keeper uses them."""

    @property
    def overflows(self) -> bool:
        """Whether a memory that should keep everything is full and rejects experiences."""
        is_full = self.storage.stored == self.storage.capacity
        return is_full and self.keeper.n_rejected > 0 and self.strategy.keeper.keeps_all

    def insert(self, t: Transitions) -> None:
        """Offer a batch of transitions to the keeper, in order, except those that the configuration excludes."""
        if self._drops_intervened:
            t = t.select(t.flags & Flag.INTERVENED == 0)
        if self._resynthesiser is not None:
            self._insert_resynthesised(t, self._resynthesiser(t))
        else:
            self._insert_measured(t, self.keeper)

    def _insert_measured(self, t: Transitions, keeper: Keeper) -> None:
        storage = self.storage
        rewards, flags = t.reward.tolist(), t.flags.tolist()
        policies, explorations = t.policy_id.tolist(), t.exploration.tolist()
        episodes, steps = t.episode.tolist(), t.step.tolist()
        behaviours: Sequence[Vector] = list(t.behaviour) if storage.layout.behaviour else ((),) * len(rewards)
        for i in range(len(rewards)):
            slot = keeper.place()
            if slot >= 0:
                storage.insert(
                    slot,
                    t.observation[i],
                    t.action[i],
                    rewards[i],
                    t.next_observation[i],
                    flags[i],
                    policies[i],
                    explorations[i],
                    episodes[i],
                    steps[i],
                    behaviours[i],
                )
                keeper.on_write(slot, explorations[i], episodes[i])
        self.offered += len(rewards)

    def seed(self, t: Transitions) -> None:
        """Insert experiences of an earlier run, oldest first; they do not count as offered by this run.

        They are neither thinned nor resynthesised, since the earlier run has already chosen them.
        """
        self._insert_measured(t, self.keeper.unthinned)
        self.offered = 0

    def _insert_resynthesised(self, measured: Transitions, offer: ResynthesisedBatch) -> None:
        keeper, storage = self.keeper, self.storage
        for i, may_overwrite in enumerate(offer.may_overwrite.tolist()):
            slot = keeper.place()
            if slot < 0:
                continue
            if may_overwrite or slot >= storage.stored:
                self._write(slot, offer.transitions, i)
            elif storage.meta[slot] & Flag.SYNTHETIC:
                self._write_again(slot, int(measured.episode[i]))
            else:
                self._write(slot, measured, i)
        self.offered += len(offer.may_overwrite)

    def _write(self, slot: int, t: Transitions, i: int) -> None:
        exploration = float(t.exploration[i])
        self.storage.insert(
            slot,
            t.observation[i],
            t.action[i],
            float(t.reward[i]),
            t.next_observation[i],
            int(t.flags[i]),
            int(t.policy_id[i]),
            exploration,
            int(t.episode[i]),
            int(t.step[i]),
            t.behaviour[i],
        )
        self.keeper.on_write(slot, exploration, int(t.episode[i]))

    def _write_again(self, slot: int, offered: int) -> None:
        """Write the slot's content again, unchanged, and report it to the keeper as part of the episode ``offered``.

        The keeper requires a write to each slot that it returns, in the episode of the experience on offer.  Strategies
        based on TD errors or replay counts then treat the experience as new (§6.3.1 uses FIFO[Uniform], which uses
        neither).
        """
        storage = self.storage
        exploration, meta = float(storage.exploration[slot]), int(storage.meta[slot])
        storage.insert(
            slot,
            storage.observation[slot],
            storage.action[slot],
            float(storage.reward[slot]),
            storage.next_observation[slot],
            meta & FLAG_MASK,
            meta >> POLICY_SHIFT,
            exploration,
            int(storage.episode[slot]),
            int(storage.step[slot]),
            storage.behaviour[slot],
        )
        self.keeper.on_write(slot, exploration, offered)

    def take_feedback(
        self, signal: Signal, slots: Slots, generations: NDArray[np.uint32], values: NDArray[np.float32]
    ) -> None:
        """Pass the learner's feedback to the keeper, except for experiences overwritten since.

        Non-finite values are dropped, because a diverged learner must not decide what is kept.
        """
        is_current = self.storage.is_current(slots, generations)
        is_usable = is_current & np.isfinite(values)
        self.stale_errors += int(np.count_nonzero(~is_current))
        self.keeper.on_feedback(signal, slots[is_usable], values[is_usable])
        if self.on_errors is not None and signal is Signal.TD_ERROR:
            self.on_errors(slots[is_usable], generations[is_usable], values[is_usable])
