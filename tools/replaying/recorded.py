"""Recorded data of a run: step records with their frames, and policies keyed by id."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onrig.hw.messages import State
from onrig.runtime.files import read_file
from onrig.runtime.images import ImageValues
from onrig.runtime.inputs import image_columns
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import FIELDS, Flag, RecordLayout, Step
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.latest import MAX_POLICY_BYTES

_COPIED_FIELDS: Final = tuple(f.name for f in FIELDS if f.stored.source == "loop")


class RecordedStep(NamedTuple):
    """Record, with the step decoded from it."""

    row: npt.NDArray[np.void]
    """The encoded record, shape ()."""
    seq: int
    step: Step

    @property
    def first(self) -> bool:
        """Whether this is the first record of an episode."""
        return bool(self.step.flags & Flag.FIRST)

    @property
    def last(self) -> bool:
        """Whether this is the last record of a training or evaluation episode."""
        return bool(self.step.flags & Flag.NO_ACTION)

    @property
    def is_cut_off(self) -> bool:
        """Whether the episode ended because the connection was closed."""
        return bool(self.step.flags & Flag.CUT_OFF)


def recorded_step(layout: RecordLayout, row: npt.NDArray[np.void]) -> RecordedStep:
    """Decode one record, shape ()."""
    return RecordedStep(row, int(row["seq"]), layout.step(row))


Counts = tuple[int, ...]


def to_state_frame(record: RecordedStep, previous: RecordedStep | None, u_start: Counts, u_end: Counts) -> State:
    """Reconstruct the state frame of a record.

    The episode's ``previous`` record contains the frame's data about the preceding period; for an episode's first
    frame, ``u_start`` and ``u_end`` are given instead. The lease is 0, because no decision uses it.
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


def copy_clock_and_accounts(step: Step, record: RecordedStep) -> None:
    """Copy the values of the loop's clock and counters from a record to a step.

    These are the numbers, the times, and the missed ticks before the step.
    """
    for name in _COPIED_FIELDS:
        setattr(step, name, getattr(record.step, name))


class RecordedImages:
    """Camera images, taken from the recorded policy inputs."""

    failure: Final = ""

    def __init__(self, config: RunConfig) -> None:
        self._columns: Final = tuple(image_columns(config.task.inputs, config.rig).values())
        self._inputs: tuple[float, ...] = ()

    def take(self, record: RecordedStep) -> None:
        """Set the record whose images ``read`` returns."""
        self._inputs = record.step.input

    def read(self) -> tuple[ImageValues, ...]:
        return tuple(self._inputs[columns] for columns in self._columns)


_MAX_SESSIONS: Final = 8


class PolicyCache:
    """Cache of policy sessions, which are built on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sessions: OrderedDict[tuple[int, bool], PolicySession | None] = OrderedDict()
        self.missing: dict[int, str] = {}
        """Reasons why policies could not be loaded, by policy."""

    def take(self, policy_id: int, *, native: bool) -> PolicySession | None:
        """Return a policy's session, which uses the native evaluator if ``native``.

        If the policy cannot be loaded, the result is None, and ``missing`` contains the reason.
        """
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
