"""What people and signals ask of the loop: to stop, gently or at once, and to go on after a pause or a fault."""

from __future__ import annotations

from typing import Final

from onrig.runtime.shm.board import Board, Word

GENTLY: Final = 1
AT_ONCE: Final = 2


class Orders:
    """Reads the words of the board and counts the process's own signals; a few hundred nanoseconds per look."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._signals = 0
        self._resumed = 0
        self._looks = 0

    def signal(self) -> None:
        """Note a signal to this process itself: whoever supervised it is gone, so it is obeyed at once."""
        self._signals = AT_ONCE

    @property
    def stop(self) -> int:
        """0, GENTLY or AT_ONCE; whoever reads it is alive, and the board says so."""
        board = self._board
        self._looks += 1
        board[Word.LOOKS] = self._looks
        return max(board[Word.STOP], board.stop_outside, self._signals)

    @property
    def stopped(self) -> bool:
        """Whether the run is to end in any way."""
        return self.stop > 0

    def forget_resumes(self) -> None:
        """From now on only what is asked later counts."""
        self._resumed = self._resumes

    @property
    def resume(self) -> bool:
        """Whether somebody has asked to go on since ``forget_resumes``."""
        return self._resumes > self._resumed

    @property
    def _resumes(self) -> int:
        return self._board[Word.RESUME] + self._board[Word.RESUME_OUTSIDE]
