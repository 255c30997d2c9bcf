"""Whose memory a checkpoint holds."""

from __future__ import annotations

from typing import Protocol

import msgspec

from onrig.runtime.replay.memory.keepers.keeper import Keeper
from onrig.runtime.replay.memory.storage import Storage
from onrig.runtime.replay.memory.strategy import Strategy


class Experiences(Protocol):
    """What is saved and restored: :class:`~onrig.runtime.replay.memory.experiences.Memory`, by its parts."""

    storage: Storage
    keeper: Keeper
    strategy: Strategy
    offered: int
    stale_errors: int


class Identity(msgspec.Struct, frozen=True):
    """What must be equal for a checkpoint to be another's continuation."""

    capacity: int
    n_obs: int
    n_act: int
    strategy: str
    seed: int

    def difference(self, wanted: Identity) -> str | None:
        """Say in which way this is not ``wanted``; None when it is."""
        for field, unit in (
            ("capacity", " experiences"),
            ("n_obs", " observations"),
            ("n_act", " actions"),
            ("strategy", " as its strategy"),
            ("seed", " as its seed"),
        ):
            mine, theirs = getattr(self, field), getattr(wanted, field)
            if mine != theirs:
                return f"of a memory with {mine}{unit}, this one has {theirs}"
        return None

    def grows_into(self, wanted: Identity) -> bool:
        """Whether this memory, which never overwrites (FULL), goes on in a larger one: its run was made longer."""
        larger = msgspec.structs.replace(self, capacity=wanted.capacity)
        return self.strategy.startswith("FULL[") and self.capacity < wanted.capacity and larger == wanted


def identity_of(memory: Experiences, seed: int) -> Identity:
    """Identity of a run's memory."""
    layout = memory.storage.layout
    return Identity(memory.storage.capacity, layout.n_obs, layout.n_act, str(memory.strategy), seed)
