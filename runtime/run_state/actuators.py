"""Whether a rig's actuators are safe, by what its device says: read off the board, judged without any I/O.

*Safe* is what a state frame of the device says.  Without one there is only the device's own promise, its lease: it
counts from the frame that the last command answers, because the device accepts a command within that frame's period
alone (``hw/PROTOCOL.md`` §4).
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.shm.board import Board, Word

SAFE: Final = "safe: a state frame of the device shows it"
UNTOUCHED: Final = "not used: no command was sent to the device"
UNCONFIRMED: Final = "unconfirmed"
_NO_FRAME: Final = f"{UNCONFIRMED}: no state frame of the device shows them safe"


class Actuators(NamedTuple):
    """What the board tells of them; times are the host's monotonic clock in ns."""

    safe_ns: int
    """Receipt of the newest frame that shows them safe; 0 where none does since the device was armed."""
    since_ns: int
    """Receipt of the first of those frames."""
    answered_ns: int
    """Receipt of the frame that the last command answers; 0 where none was sent."""
    hold_ns: int
    """How long after that the device's lease lets a command stay in force; 0 where no lease runs."""
    ended: bool
    """Whether the loop has ended: it sends nothing any more."""

    @classmethod
    def read(cls, board: Board) -> Actuators:
        """Take what stands on the board."""
        return cls(
            board[Word.SAFE_NS],
            board[Word.SAFE_SINCE_NS],
            board[Word.ANSWERED_NS],
            board[Word.HOLD_NS],
            bool(board[Word.ENDED]),
        )

    def shown_safe(self, asked_ns: int) -> bool:
        """Whether a frame shows them safe that was received after ``asked_ns``, or after the loop's last word."""
        return self.safe_ns > asked_ns or (self.ended and self.safe_ns > 0)

    @property
    def untouched(self) -> bool:
        """Whether no command was sent, so that nothing but the safe output can be in force on the run's account."""
        return self.answered_ns == 0

    def unconfirmed(self, now_ns: int, now_unix_s: float) -> str:
        """What can be said where no frame shows them safe, in one line; ``now``: both clocks at the same moment."""
        if self.untouched:
            return f"{_NO_FRAME}, and no command was sent to it"
        if not self.hold_ns:
            return f"{_NO_FRAME}; its simulated time stands still, so that no lease runs out"
        ends_ns = self.answered_ns + self.hold_ns
        verb = "ends" if ends_ns > now_ns else "ended"
        clock = _clock(now_unix_s + (ends_ns - now_ns) / 1e9)
        bound = f"at most {self.hold_ns / 1e6:.0f} ms after its last command"
        return f"{_NO_FRAME}; the device's lease {verb} at {clock} ({bound})"

    def settle(self, code: int, now_ns: int, now_unix_s: float) -> tuple[int, str]:
        """How a run left them, its loop gone, and the run's exit code: none ends well that nobody confirms."""
        if self.safe_ns:
            return code, SAFE
        if self.untouched:
            return code, UNTOUCHED
        well = code in (ExitCode.OK, ExitCode.INTERRUPTED)
        return ExitCode.HARDWARE if well else code, self.unconfirmed(now_ns, now_unix_s)


def _clock(unix_s: float) -> str:
    """Local time of day to the millisecond, rounded up: what ends by then has ended."""
    ms = -int(-unix_s * 1000 // 1)
    return f"{time.strftime('%H:%M:%S', time.localtime(ms // 1000))}.{ms % 1000:03d}"
