"""Discovery of the rigs running on this machine, and requests to them that bypass their supervisors.

Every run has a folder in shared memory (0700) named after its owning process. It contains the path of the run folder
and a board with words for requests, so that a stop reaches the loop even if the supervisor hangs. The owner's start
time distinguishes a running rig from the remains of a killed one."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.python_files import trust, trusted_digests
from onrig.runtime.run_state.actuators import Actuators
from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.segment import Segment, SegmentError, SegmentMissing, live_folders

_FOLDER_FILE: Final = "run"
_TRUSTED_FILES_FILE: Final = "trusted"


class Running(NamedTuple):
    """A live run of this user."""

    pid: int
    """Process id of its supervisor."""
    shm: Path
    folder: Path
    """Absolute path of its run folder."""

    def trust_files(self) -> None:
        """Trust the Python files that this run executes, so that this process can read the run's configuration."""
        with contextlib.suppress(OSError):  # the run has ended, or belongs to an earlier version
            for digest in (self.shm / _TRUSTED_FILES_FILE).read_text().split():
                trust(digest)


def announce(shm: Path, folder: Path) -> None:
    """Store the run folder's path and the trusted Python files in the run's shared memory."""
    (shm / _TRUSTED_FILES_FILE).write_text("\n".join(trusted_digests()))
    (shm / _FOLDER_FILE).write_bytes(os.fsencode(folder.resolve()) + b"\n")


def running_rigs() -> list[Running]:
    """Return this user's running rigs, oldest first."""
    rigs = []
    for pid, shm in live_folders():
        try:
            folder = Path(os.fsdecode((shm / _FOLDER_FILE).read_bytes().removesuffix(b"\n")))
        except OSError:
            continue  # just starting or ending: the rig does not move
        rigs.append(Running(pid, shm, folder))
    return rigs


def find_running(folder: Path) -> Running | None:
    """Return the run in progress in ``folder``; None before its start and after its end."""
    resolved_folder = folder.resolve()
    return next((running for running in running_rigs() if running.folder == resolved_folder), None)


def stop_by_signal(running: Running, level: int) -> None:
    """Request a stop by signalling the supervisor of a run whose board cannot be read; see `RemoteControl.stop`."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGQUIT if level > 1 else signal.SIGTERM)


class RemoteControl:
    """Context manager for the board of a run in another process."""

    def __init__(self, running: Running) -> None:
        """Raises SegmentMissing if the run has just ended, SegmentError if it belongs to another version of Onrig."""
        self._segment = Segment.attach(running.shm / "board", BOARD_SCHEMA)
        self._board = Board(self._segment)

    def __enter__(self) -> RemoteControl:
        return self

    def __exit__(self, *error: object) -> None:
        self._board.close()
        self._segment.close()

    def stop(self, level: int, *, from_view: bool = False) -> None:
        """Request a stop: 1 fades out, 2 is immediate; an earlier, stronger request remains in force.

        ``from_view``: from the live view's button rather than ``onrig stop``.
        """
        if from_view and not self._board.stop_outside:
            self._board[Word.STOP_VIEW] = 1
        if level > 1:
            self._board[Word.STOP_NOW_OUTSIDE] = 1
        self._board[Word.STOP_OUTSIDE] = 1

    def resume(self) -> None:
        """Request that a paused or faulted run resume."""
        self._board[Word.RESUME_OUTSIDE] += 1

    def report_departure(self) -> None:
        """Report that the rig's plant no longer matches the identification that the run started with."""
        self._board[Word.PLANT_DEPARTED] = 1

    @property
    def state(self) -> int:
        """State of the run (``onrig.runtime.run_state.states.State``)."""
        return self._board[Word.STATE]

    @property
    def actuators(self) -> Actuators:
        """State of the actuators as last reported by the device."""
        return Actuators.read(self._board)


__all__ = [
    "RemoteControl",
    "Running",
    "SegmentError",
    "SegmentMissing",
    "announce",
    "find_running",
    "running_rigs",
    "stop_by_signal",
]
