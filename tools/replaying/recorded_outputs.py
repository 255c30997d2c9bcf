"""Outputs of the device before the first frame of an episode, which no record contains."""

from __future__ import annotations

from typing import Final

from onrig.hw.messages import Status
from onrig.tools.replaying.recorded import Counts, RecordedStep

_N_KEPT_COMMANDS: Final = 256
"""Number of commands to keep."""


class RecordedOutputs:
    """Outputs of the device, reconstructed from the recorded commands."""

    def __init__(self, safe: Counts) -> None:
        """``safe``: output of a disarmed device."""
        self._safe: Final = safe
        self._latest: RecordedStep | None = None
        self._sent: dict[int, Counts] = {}
        """Latest commands, by the frame to which they reply."""

    def add(self, record: RecordedStep) -> None:
        """Add the next record."""
        self._latest = record
        self._sent[record.step.frame] = record.step.command
        if len(self._sent) > _N_KEPT_COMMANDS:
            del self._sent[next(iter(self._sent))]

    def before(self, record: RecordedStep) -> tuple[Counts, Counts]:
        """Return the outputs at the start and the end of the period before an episode's first sample.  The frame
        contains the number of the frame whose command is the output: the safe output after arming or a reset, otherwise
        a command of the reset.  If the frame does not follow the latest recorded one, the output did not change in the
        period, since no command was sent.
        """
        step, latest = record.step, self._latest
        if step.status & Status.SAFE and not record.last:
            return self._safe, self._safe
        u_end = step.u_end if record.last else self._sent.get(step.answers, step.u_start)
        follows = latest is not None and latest.step.frame + 1 == step.frame
        return latest.step.u_end if follows and latest is not None else u_end, u_end
