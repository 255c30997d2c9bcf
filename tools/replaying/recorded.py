"""What was recorded, as plain values: the configuration, the step records, and the frames they were made of."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onrig.hw.messages import State
from onrig.runtime.control.tick import Step
from onrig.runtime.record import Flag, Kind
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved

_FIRST_POLICY: Final = re.compile(rb"^policy: .*$", re.MULTILINE)


def recorded_config(text: bytes) -> RunConfig:
    """Read a run's resolved configuration; raises ConfigError.

    The file that its first policy came from need not be there any more: the run has its own copy.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_bytes(_FIRST_POLICY.sub(b"policy: null", text))
        return load_resolved(path)


class Recorded(NamedTuple):
    """What a replay takes from a record: the frame, and what clocks and other processes decided."""

    row: npt.NDArray[np.void]
    """The record itself, shape ()."""
    seq: int
    tick: int
    episode: int
    kind: Kind
    flags: int
    policy_id: int
    frame: int
    t_device_us: int
    status: int
    fault: int
    answers: int
    tau_us: int
    sensors: tuple[int, ...]
    u_start: tuple[int, ...]
    u_end: tuple[int, ...]

    @property
    def first(self) -> bool:
        """Whether an episode begins here."""
        return bool(self.flags & Flag.FIRST)

    @property
    def last(self) -> bool:
        """Whether a training or evaluation episode was closed here."""
        return bool(self.flags & Flag.NO_ACTION)


def recorded(row: npt.NDArray[np.void]) -> Recorded:
    """Take one record, shape ()."""
    return Recorded(
        row,
        int(row["seq"]),
        int(row["tick"]),
        int(row["episode"]),
        Kind(int(row["kind"])),
        int(row["flags"]),
        int(row["policy_id"]),
        int(row["frame"]),
        int(row["t_device_us"]),
        int(row["status"]),
        int(row["fault"]),
        int(row["answers"]),
        int(row["tau_us"]),
        tuple(row["sensors"].tolist()),
        tuple(row["u_start"].tolist()),
        tuple(row["u_end"].tolist()),
    )


def frame_of(record: Recorded, previous: Recorded | None, in_force: tuple[int, ...]) -> State:
    """Put the state frame together again that a record was made of.

    What it said of the period before it stands in the ``previous`` record of the episode; where there is none,
    ``in_force`` is the command that was in force at the sample (counts).  The lease, which no decision looks at, is 0.
    """
    tau_us, u_start, u_end = 0, in_force, in_force
    if previous is not None:
        tau_us, u_start, u_end = previous.tau_us, previous.u_start, previous.u_end
    return State(
        record.frame,
        record.t_device_us,
        record.status,
        record.fault,
        0,
        record.answers,
        tau_us,
        record.sensors,
        u_start,
        u_end,
    )


def take_circumstances(step: Step, record: Recorded) -> None:
    """Copy into a step what no replay decides: numbers, times, and what was missed before it."""
    row = record.row
    step.tick = record.tick
    step.missed, step.miss = int(row["missed"]), int(row["miss"])  # type: ignore[assignment]
    step.t_mono_ns, step.t_receive_ns = int(row["t_mono_ns"]), int(row["t_receive_ns"])
    step.t_send_ns, step.lateness_ns = int(row["t_send_ns"]), int(row["lateness_ns"])
    step.tick_ns = int(row["tick_ns"])
    step.stage_ns = tuple(row["stage_ns"].tolist())
