"""The rig's memory of experiences: a storage, and the keeper that decides what stays in it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime.config.resolve import capacity_of
from runtime.config.schema import RunConfig
from runtime.random_streams import Role, stream
from runtime.replay.keepers import keeper_for
from runtime.replay.layout import Slots
from runtime.replay.storage import Storage
from runtime.replay.strategy import parse_strategy
from runtime.replay.transitions import Transitions


class Memory:
    """What the replay process owns; learners mirror ``storage`` write by write."""

    def __init__(self, config: RunConfig) -> None:
        self.strategy = parse_strategy(config.selection.strategy)
        capacity = capacity_of(config)
        self.keeper = keeper_for(self.strategy, capacity, stream(config.seed, Role.KEEPER))
        self.storage = Storage(capacity, len(config.rig.signals), len(config.rig.actuators), cyclic=self.keeper.cyclic)
        self.offered = 0
        """Experiences that asked to be kept."""
        self.stale_errors = 0
        """TD errors that named an experience which is no longer there."""

    def insert(self, t: Transitions) -> None:
        """Offer a batch of transitions to the keeper, in order."""
        keeper, storage = self.keeper, self.storage
        rewards, flags = t.reward.tolist(), t.flags.tolist()
        policies, explorations = t.policy_id.tolist(), t.exploration.tolist()
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
                )
                keeper.written(slot, explorations[i])
        self.offered += len(rewards)

    def take_errors(self, slots: Slots, generations: NDArray[np.uint32], abs_td: NDArray[np.float32]) -> None:
        """Tell the keeper how surprising replayed experiences were; those rewritten since are sifted out.

        Errors that are no number are dropped: a learner that diverged must not decide what is kept.
        """
        current = self.storage.is_current(slots, generations)
        good = current & np.isfinite(abs_td)
        self.stale_errors += int(np.count_nonzero(~current))
        self.keeper.replayed(slots[good])
        self.keeper.td_updated(slots[good], abs_td[good])
