"""RecordedStep data of a run: configuration, step records, their frames, and policies by id."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onrig.hw.messages import State
from onrig.runtime.files import read_file
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import FIELDS, Flag, RecordLayout, Step
from onrig.runtime.shm.latest import MAX_POLICY_BYTES

_COPIED_FIELDS: Final = tuple(f.name for f in FIELDS if f.stored.source == "loop")


class RecordedStep(NamedTuple):
    """A record of the run, and the step decoded from it."""

    row: npt.NDArray[np.void]
    """The record itself, shape ()."""
    seq: int
    step: Step

    @property
    def first(self) -> bool:
        """Whether an episode begins with this record."""
        return bool(self.step.flags & Flag.FIRST)

    @property
    def last(self) -> bool:
        """Whether a training or evaluation episode was closed with this record."""
        return bool(self.step.flags & Flag.NO_ACTION)

    @property
    def cut_off(self) -> bool:
        """Whether the episode was closed because the connection was."""
        return bool(self.step.flags & Flag.CUT_OFF)


def recorded_step(layout: RecordLayout, row: npt.NDArray[np.void]) -> RecordedStep:
    """Decode one record, shape ()."""
    return RecordedStep(row, int(row["seq"]), layout.step(row))


Counts = tuple[int, ...]


def frame_of(record: RecordedStep, previous: RecordedStep | None, u_start: Counts, u_end: Counts) -> State:
    """Reconstruct the state frame of a record.

    Its report on the preceding period is in the ``previous`` record of the episode; ``u_start`` and ``u_end`` are those
    of an episode's first frame.  The lease, which no decision uses, is 0.
    """
    tau_us = 0
    if previous is not None:
        tau_us, u_start, u_end = previous.step.tau_us, previous.step.u_start, previous.step.u_end
    step = record.step
    lease = 0
    return State(
        *(step.frame, step.t_device_us, step.status, step.fault, lease, step.answers),
        *(tau_us, step.sensors, u_start, u_end),
    )


def copy_circumstances(step: Step, record: RecordedStep) -> None:
    """Copy the values of the loop's clock and accounts into a step: numbers, times, and missed ticks before it."""
    for name in _COPIED_FIELDS:
        setattr(step, name, getattr(record.step, name))


_MAX_SESSIONS: Final = 8


class PolicyCache:
    """Cache of policy sessions, which are built on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sessions: OrderedDict[tuple[int, bool], PolicySession | None] = OrderedDict()
        self.missing: dict[int, str] = {}
        """Policies that cannot be loaded, with the reason."""

    def take(self, policy_id: int, *, native: bool) -> PolicySession | None:
        """Return the session of a policy with an evaluator; None, and an entry in ``missing``, if there is none."""
        key = (policy_id, native)
        if key in self._sessions:
            self._sessions.move_to_end(key)
            return self._sessions[key]
        session: PolicySession | None = None
        path = self._folder / f"{policy_id}.onnx"
        try:
            session = PolicySession(read_file(path, MAX_POLICY_BYTES), native=native)
        except OSError as error:
            self.missing[policy_id] = f"{path}: {error.strerror}"
        except ModelRefused as refusal:
            self.missing[policy_id] = f"{path}: {refusal}"
        self._sessions[key] = session
        if len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session
