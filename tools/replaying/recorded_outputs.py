"""Device outputs before the first frame of an episode, which no record contains."""

from __future__ import annotations

from typing import Final

from onrig.hw.messages import Status
from onrig.tools.replaying.recorded import Counts, RecordedStep

_N_KEPT_COMMANDS: Final = 256
"""Number of commands to keep."""


class RecordedOutputs:
    """Device outputs, reconstructed from the recorded commands."""

    def __init__(self, safe: Counts) -> None:
        """Begin without records; ``safe`` is the output of a disarmed device."""
        self._safe: Final = safe
        self._latest: RecordedStep | None = None
        self._sent_commands: dict[int, Counts] = {}
        """Latest commands, keyed by the frame to which they reply."""

    def add(self, record: RecordedStep) -> None:
        """Add the next record."""
        self._latest = record
        self._sent_commands[record.step.frame] = record.step.command
        if len(self._sent_commands) > _N_KEPT_COMMANDS:
            del self._sent_commands[next(iter(self._sent_commands))]

    def before(self, record: RecordedStep) -> tuple[Counts, Counts]:
        """Return the outputs at the start and the end of the period before an episode's first sample.

        After arming or a RESET, the output is the safe one. Otherwise, it is that of a command sent during the reset,
        identified by the number of the frame that it answers. If the sample's frame does not follow the latest recorded
        one, the output did not change in the period, because no command was sent.
        """
        step, previous = record.step, self._latest
        if step.status & Status.SAFE and not record.last:
            return self._safe, self._safe
        u_end = step.u_end if record.last else self._sent_commands.get(step.answers, step.u_start)
        is_consecutive = previous is not None and previous.step.frame + 1 == step.frame
        return previous.step.u_end if is_consecutive and previous is not None else u_end, u_end
