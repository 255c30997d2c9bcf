"""Finding the rigs that run on this machine, and telling them things past their supervisors.

Every run has a folder in shared memory (0700) named after its owner; a file in it names the run folder, and the board
in it has words for other terminals.  So a stop reaches the loop even where the supervisor hangs, and what a killed
run left behind is told apart from a running one by its owner's start time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.run_state.actuators import Actuators
from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.segment import Segment, SegmentError, live_folders

_NAME: Final = "run"


class Running(NamedTuple):
    """A run of this user that is alive."""

    pid: int
    """Of its supervisor."""
    shm: Path
    folder: Path
    """Its run folder, absolute."""


def announce(shm: Path, folder: Path) -> None:
    """Say which run folder a folder in shared memory belongs to."""
    (shm / _NAME).write_text(f"{folder.resolve()}\n", encoding="utf-8")


def running_rigs() -> list[Running]:
    """Find those of this user, the oldest first."""
    found = []
    for pid, shm in live_folders():
        try:
            folder = Path((shm / _NAME).read_text(encoding="utf-8").rstrip("\n"))
        except OSError:
            continue  # this moment at its beginning or its end: nothing of it moves
        found.append(Running(pid, shm, folder))
    return found


class Remote:
    """The board of a run of another process; a context."""

    def __init__(self, running: Running) -> None:
        """Raises SegmentError when the run has ended meanwhile."""
        self._segment = Segment.attach(running.shm / "board", BOARD_SCHEMA)
        self._board = Board(self._segment)

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *error: object) -> None:
        self._board.close()
        self._segment.close()

    def stop(self, level: int, *, from_view: bool = False) -> None:
        """Ask for a stop: 1 fades out, 2 at once; what was asked for before is never weakened.

        ``from_view``: by the live view's button and not by ``onrig stop``.
        """
        if from_view and not self._board.stop_outside:
            self._board[Word.STOP_VIEW] = 1
        if level > 1:
            self._board[Word.STOP_NOW_OUTSIDE] = 1
        self._board[Word.STOP_OUTSIDE] = 1

    def resume(self) -> None:
        """Ask a paused or faulted run to go on."""
        self._board[Word.RESUME_OUTSIDE] += 1

    @property
    def state(self) -> int:
        """A ``onrig.runtime.run_state.states.State``."""
        return self._board[Word.STATE]

    @property
    def actuators(self) -> Actuators:
        """What is known of the actuators at this moment, by the device's word."""
        return Actuators.read(self._board)


__all__ = ["Remote", "Running", "SegmentError", "announce", "running_rigs"]
