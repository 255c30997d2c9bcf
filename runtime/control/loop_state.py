"""Shared memory of the loop, and its position between two episodes, from which a run resumes."""

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
from onrig.runtime.shm.exchange import LoopEnd
from onrig.runtime.shm.latest import MAX_POLICY_BYTES, Latest
from onrig.runtime.shm.ring import RingWriter


class SharedMemory(NamedTuple):
    """The loop's ends of the run's shared memory."""

    ring: RingWriter
    board: Board
    kept_state: Latest | None = None
    """Where the position is kept between episodes."""
    trainer: LoopEnd | None = None
    """Exchange with the trainer that acts; None if policies do."""


class LoopState(msgspec.Struct, frozen=True):
    """Position at the end of an episode; without arguments, the start of a run."""

    episode: int = 0
    """Last training episode completed."""
    evaluated: bool = False
    """Whether its evaluation is complete as well."""
    tick: int = 0
    """Ticks so far: the number of the next record."""
    device_us: int = 0
    """Device time so far (lockstep: virtual time continues when a run is resumed)."""
    explorer: dict[str, float] = {}
    """``Explorer.state()``; empty before the first episode."""
    switch: SwitchState = msgspec.field(default=SwitchState(), name="seat")  # name in checkpoints of version 0.1
    numbered_from: tuple[int, int] | UnsetType = UNSET
    """``Actor.numbered_from``, once a trainer has given a seed."""
    numbered_before: tuple[tuple[int, int], ...] | UnsetType = UNSET
    """Its last values before this one, oldest first: a busy logger may skip the positions that held them."""


_MAX_NUMBERED_BEFORE: Final = 8
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(LoopState)


def encode_state(state: LoopState) -> bytes:
    """Serialise a position for ``kept_state``."""
    return _ENCODER.encode(state)


def decode_state(data: bytes | None) -> LoopState:
    """Read the output of ``encode_state``; None gives the start of a run."""
    return LoopState() if data is None else _DECODER.decode(data)


class KeptPosition:
    """Position of the running loop, stored after each episode, from which a run resumes after a crash."""

    def __init__(self, store: Latest | None) -> None:
        """``store``: where to store it (None: do not store it)."""
        self.store = store
        self.at: tuple[int, bool] | None = None
        """Episode, and whether its evaluation is complete; None until it is known."""
        self.device_us = 0
        self.numbered_from: tuple[int, int] | UnsetType = UNSET
        """As in LoopState."""
        self.numbered_before: tuple[tuple[int, int], ...] | UnsetType = UNSET

    def number_from(self, given: tuple[int, int]) -> None:
        """Record a seed that a trainer gave."""
        if self.numbered_from is not UNSET:
            before = () if self.numbered_before is UNSET else self.numbered_before
            self.numbered_before = (*before, self.numbered_from)[-_MAX_NUMBERED_BEFORE:]
        self.numbered_from = given

    def keep(self, tick: int, explorer: dict[str, float], switch: SwitchState) -> None:
        """Store the position; arguments as in LoopState."""
        if self.store is not None and self.at is not None:
            numbered = self.numbered_from, self.numbered_before
            state = LoopState(*self.at, tick, self.device_us, explorer, switch, *numbered)
            self.store.put(encode_state(state))


def filed_session(folder: Path, policy_id: int, *, native: bool) -> PolicySession | None:
    """Return the session of a policy stored in ``folder``; None if it is missing or does not run."""
    try:
        session = PolicySession(read_file(folder / f"{policy_id}.onnx", MAX_POLICY_BYTES), native=native)
        session.warm_up(1)
    except (OSError, ModelRefused):
        return None
    return session
