"""Recorded data of a run: configuration, step records, their frames, and policies by id."""

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

_TOLD: Final = tuple(f.name for f in FIELDS if f.stored.source == "loop")


class Recorded(NamedTuple):
    """A record of the run, and the step that it was made of."""

    row: npt.NDArray[np.void]
    """The record itself, shape ()."""
    seq: int
    step: Step

    @property
    def first(self) -> bool:
        """Whether an episode begins here."""
        return bool(self.step.flags & Flag.FIRST)

    @property
    def last(self) -> bool:
        """Whether a training or evaluation episode was closed here."""
        return bool(self.step.flags & Flag.NO_ACTION)

    @property
    def cut_off(self) -> bool:
        """Whether it was closed here because the line was."""
        return bool(self.step.flags & Flag.CUT_OFF)


def recorded(layout: RecordLayout, row: npt.NDArray[np.void]) -> Recorded:
    """Take one record, shape ()."""
    return Recorded(row, int(row["seq"]), layout.step(row))


Counts = tuple[int, ...]


def frame_of(record: Recorded, previous: Recorded | None, u_start: Counts, u_end: Counts) -> State:
    """Reconstruct the state frame behind a record.

    Its report on the period before it is in the ``previous`` record of the episode; ``u_start`` and ``u_end`` are those
    of an episode's first frame.  The lease, which no decision reads, is 0.
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


def take_circumstances(step: Step, record: Recorded) -> None:
    """Copy into a step what the loop's clock and accounts told: numbers, times, and what was missed before it."""
    for name in _TOLD:
        setattr(step, name, getattr(record.step, name))


_KEPT: Final = 8


class PolicyShelf:
    """Builds the session of a policy when it is first asked for, and keeps the last ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sessions: OrderedDict[tuple[int, bool], PolicySession | None] = OrderedDict()
        self.missing: dict[int, str] = {}
        """Policies that cannot be loaded, with the reason."""

    def take(self, policy_id: int, *, native: bool) -> PolicySession | None:
        """Return the session of a policy for the evaluator that acted; None (and noted) where there is none."""
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
        if len(self._sessions) > _KEPT:
            self._sessions.popitem(last=False)
        return session
