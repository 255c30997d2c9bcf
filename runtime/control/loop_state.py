"""The loop's shared memory, and the position between two episodes from which a run resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from onrig.runtime.control.policy_switch import SwitchState
from onrig.runtime.files import read_file
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.shm.board import Board
from onrig.runtime.shm.exchange import LoopSide
from onrig.runtime.shm.images import ImageSource
from onrig.runtime.shm.latest import MAX_POLICY_BYTES, Latest
from onrig.runtime.shm.ring import RingWriter


class SharedMemory(NamedTuple):
    """Parts of the run's shared memory that the loop uses."""

    ring: RingWriter
    board: Board
    kept_state: Latest | None = None
    """Storage for the position between episodes."""
    trainer: LoopSide | None = None
    """Exchange with the trainer that chooses the actions; None if policies choose them."""
    images: ImageSource | None = None
    """Images of the cameras; None without cameras."""


class LoopState(msgspec.Struct, frozen=True):
    """Position of the loop at the end of an episode; the defaults are the start of a run."""

    episode: int = 0
    """Last training episode completed."""
    evaluated: bool = False
    """Whether its evaluation is complete as well."""
    tick: int = 0
    """Number of ticks so far, which is the number of the next record."""
    device_us: int = 0
    """Device time so far (in lockstep, virtual time continues when a run is resumed)."""
    explorer: dict[str, float] = {}
    """``Explorer.state()``; empty before the first episode."""
    switch: SwitchState = msgspec.field(default=SwitchState(), name="seat")  # name in checkpoints of version 0.1
    seed_and_offset: tuple[int, int] | UnsetType = msgspec.field(default=UNSET, name="numbered_from")
    """``Actor.seed_and_offset``, once a trainer has set a seed."""
    earlier_seeds: tuple[tuple[int, int], ...] | UnsetType = msgspec.field(default=UNSET, name="numbered_before")
    """Previous values of ``seed_and_offset``, oldest first; included because a busy logger may skip positions."""


_MAX_EARLIER_SEEDS: Final = 8
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(LoopState)


def encode_state(state: LoopState) -> bytes:
    """Serialise a position for ``kept_state``."""
    return _ENCODER.encode(state)


def decode_state(data: bytes | None) -> LoopState:
    """Decode the output of ``encode_state``; None gives the start of a run."""
    return LoopState() if data is None else _DECODER.decode(data)


class StoredPosition:
    """Position of the running loop, stored after each episode so that the run can resume after a crash."""

    def __init__(self, store: Latest | None) -> None:
        """``store``: where to store the position; None to store it nowhere."""
        self.store = store
        self.last_completed: tuple[int, bool] | None = None
        """Last completed training episode, and whether its evaluation is complete as well; None until known."""
        self.device_us = 0
        self.seed_and_offset: tuple[int, int] | UnsetType = UNSET
        """As in LoopState."""
        self.earlier_seeds: tuple[tuple[int, int], ...] | UnsetType = UNSET

    def set_seed(self, seed_and_offset: tuple[int, int]) -> None:
        """Record a seed set by a trainer."""
        if self.seed_and_offset is not UNSET:
            earlier_seeds = () if self.earlier_seeds is UNSET else self.earlier_seeds
            self.earlier_seeds = (*earlier_seeds, self.seed_and_offset)[-_MAX_EARLIER_SEEDS:]
        self.seed_and_offset = seed_and_offset

    def write(self, tick: int, explorer: dict[str, float], switch: SwitchState) -> None:
        """Store the position; arguments as in LoopState."""
        if self.store is not None and self.last_completed is not None:
            seeds = self.seed_and_offset, self.earlier_seeds
            state = LoopState(*self.last_completed, tick, self.device_us, explorer, switch, *seeds)
            self.store.put(encode_state(state))


def load_stored_session(folder: Path, policy_id: int, *, native: bool) -> PolicySession | None:
    """Return a session for a policy stored in ``folder``; None if the policy is missing or does not run."""
    try:
        session = PolicySession(read_file(folder / f"{policy_id}.onnx", MAX_POLICY_BYTES), native=native)
        session.warm_up(1)
    except (OSError, ModelRefused):
        return None
    return session
