"""What the device's own frames say of its outputs, kept on the board for whoever wants to know whether they are safe.

An acknowledged DISARM is not that: only a state frame tells what is in force.
"""

from __future__ import annotations

from onrig.hw.intake import is_before
from onrig.hw.messages import State, shows_safe
from onrig.hw.session import DeviceSession
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.board import Board, Word


def longest_hold_ns(config: RunConfig) -> int:
    """How long after the receipt of a frame the command that answers it can be in force, by the wall's clock.

    The device accepts it within the period that the frame begins, and then holds it for at most a lease.  0 in
    lockstep, where time stands still between commands.
    """
    return 0 if config.lockstep else (config.rig.lease_periods + 1) * config.wall_period_ns


class Confirmation:
    """The words of the board that tell whether the outputs are safe; the control process's alone."""

    def __init__(self, config: RunConfig, session: DeviceSession, board: Board) -> None:
        self._session, self._board = session, board
        self._armed_at: int | None = None
        self._shown: int | None = None
        board[Word.HOLD_NS] = longest_hold_ns(config)

    def arming(self) -> None:
        """The device is about to be armed: nothing confirms its outputs until a frame does again."""
        self._board[Word.SAFE_NS] = 0
        self._board[Word.SAFE_SINCE_NS] = 0

    def armed(self) -> None:
        """Its answer has come: the frames received until now were sampled before, and say nothing of what follows."""
        self._armed_at = self._session.last_frame

    def take(self, state: State) -> None:
        """Note what a frame says, received while the device is to be disarmed."""
        board = self._board
        if not shows_safe(state):
            board[Word.SAFE_NS] = 0
            board[Word.SAFE_SINCE_NS] = 0
        elif self._armed_at is None or is_before(self._armed_at, state.frame):
            received_ns = self._session.received_ns
            if not board[Word.SAFE_SINCE_NS]:
                board[Word.SAFE_SINCE_NS] = received_ns
            board[Word.SAFE_NS] = received_ns
            self._shown = state.frame

    def given_after(self, frame: int | None) -> bool:
        """Whether a frame newer than the one of that number (None: any) has shown the outputs safe, and none other."""
        if not self._board[Word.SAFE_NS] or self._shown is None:
            return False
        return frame is None or is_before(frame, self._shown)
