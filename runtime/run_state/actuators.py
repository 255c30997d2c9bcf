"""State of a rig's actuators as confirmed by its device: read from the board and evaluated without I/O.

*Safe* means confirmed by a state frame from the device. Without such a frame, only the device's lease limits how long a
command stays in force. The lease counts from the frame that the last command answers, because the device accepts a
command only within that frame's period (``hw/PROTOCOL.md`` §4).
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.shm.board import Board, Word

SAFE_TEXT: Final = "safe: shown by a state frame from the device"
UNUSED_TEXT: Final = "not used: no command was sent to the device"
UNCONFIRMED_TEXT: Final = "unconfirmed"
_NO_SAFE_FRAME_TEXT: Final = f"{UNCONFIRMED_TEXT}: no state frame from the device shows them safe"


class Actuators(NamedTuple):
    """State of the actuators, read from the board; times are the host's monotonic clock in ns."""

    safe_ns: int
    """Time of receipt of the newest frame that shows them safe; 0 if none has arrived since the device was armed."""
    since_ns: int
    """Time of receipt of the first of those frames."""
    answered_ns: int
    """Time of receipt of the frame that the last command answers; 0 if none was sent."""
    hold_ns: int
    """How long the device's lease keeps that command in force; 0 if no lease runs."""
    loop_has_ended: bool
    """Whether the loop has ended and sends no more commands."""

    @classmethod
    def read(cls, board: Board) -> Actuators:
        """Read the state from the board."""
        return cls(
            board[Word.SAFE_NS],
            board[Word.SAFE_SINCE_NS],
            board[Word.ANSWERED_NS],
            board[Word.HOLD_NS],
            bool(board[Word.ENDED]),
        )

    def is_confirmed_safe(self, asked_ns: int) -> bool:
        """Return whether a frame received after ``asked_ns``, or after the loop's end, shows them safe."""
        return self.safe_ns > asked_ns or (self.loop_has_ended and self.safe_ns > 0)

    @property
    def is_unused(self) -> bool:
        """Whether the run sent no command, so that only the safe output can be in force."""
        return self.answered_ns == 0

    def unconfirmed_message(self, now_ns: int, now_unix_s: float) -> str:
        """Return one line about actuators that no frame shows to be safe; ``now_*``: both clocks at the same moment."""
        if self.is_unused:
            return f"{_NO_SAFE_FRAME_TEXT}, and no command was sent to it"
        if not self.hold_ns:
            return f"{_NO_SAFE_FRAME_TEXT}; its simulated time has stopped, so no lease expires"
        ends_ns = self.answered_ns + self.hold_ns
        verb = "ends" if ends_ns > now_ns else "ended"
        clock = _clock(now_unix_s + (ends_ns - now_ns) / 1e9)
        bound = f"at most {self.hold_ns / 1e6:.0f} ms after its last command"
        return f"{_NO_SAFE_FRAME_TEXT}; the device's lease {verb} at {clock} ({bound})"

    def final_verdict(self, code: int, now_ns: int, now_unix_s: float) -> tuple[int, str]:
        """Return the exit code at the end of a run, and a line about the actuators.

        OK and INTERRUPTED become HARDWARE if commands were sent and no frame shows the actuators safe.
        """
        if self.safe_ns:
            return code, SAFE_TEXT
        if self.is_unused:
            return code, UNUSED_TEXT
        ended_without_failure = code in (ExitCode.OK, ExitCode.INTERRUPTED)
        return ExitCode.HARDWARE if ended_without_failure else code, self.unconfirmed_message(now_ns, now_unix_s)


def _clock(unix_s: float) -> str:
    """Return the local time of day to the millisecond, rounded up."""
    ms = -int(-unix_s * 1000 // 1)
    return f"{time.strftime('%H:%M:%S', time.localtime(ms // 1000))}.{ms % 1000:03d}"
