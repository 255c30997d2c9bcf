"""Start of a replay process: replacing its predecessor, restoring the checkpoint, and removing later data."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from onrig.runtime.record import RecordLayout
from onrig.runtime.replay.checkpoint import CheckpointError
from onrig.runtime.replay.checkpoint.upkeep import Upkeep
from onrig.runtime.replay.evidence import run_identity
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.replay.recovery import Recovery, decode_point, recover
from onrig.runtime.replay.scoring import ring_reader
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.checksums import FileChecksum
from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.latest import SLOT_SCHEMA, Latest, PolicySlot, loop_state_in
from onrig.runtime.shm.ring import RingReader
from onrig.runtime.shm.segment import Segment

WarningSink = Callable[[str], object]


class SharedMemory(NamedTuple):
    """Shared memory of the run."""

    board: Board
    loop_state: Latest
    ring: RingReader
    slot: PolicySlot


def attach(config: RunConfig, shm: Path, layout: RecordLayout) -> SharedMemory:
    """Attach to the run's shared memory, and replace the process that drains its ring."""
    segment = Segment.attach(shm / "board", BOARD_SCHEMA)
    board = Board(segment)
    board[Word.REPLAY_PID] = os.getpid()
    ring = Segment.attach(shm / "ring", layout.schema)
    reader = ring_reader(config, ring, layout, lambda: board[Word.ENDED] == 1)
    slot = PolicySlot(Segment.attach(shm / "slot", SLOT_SCHEMA))
    return SharedMemory(board, loop_state_in(segment), reader, slot)


class Start(NamedTuple):
    """Loop and run that a replay process serves."""

    session_id: int
    """Id of the loop's session, which also identifies its ring."""
    took_over: bool
    """Whether another replay process has served the same loop before."""
    run: str = ""
    """Identity of the run."""
    config_text: str = ""
    """Configuration of the run, as in ``config.yaml``."""


class StartState(NamedTuple):
    """State that a replay process has restored before it opens the run's files."""

    start: Start
    upkeep: Upkeep
    recovery: Recovery | None
    """Recovery of a run that is resumed or, in lockstep, taken over; None otherwise."""
    is_first: bool
    """Whether the process starts the run from the beginning."""

    @property
    def files(self) -> dict[str, FileChecksum]:
        """The run's append-only files at the restored checkpoint; empty without one."""
        return files_at_checkpoint(self.upkeep)


def begin(
    config: RunConfig,
    folder: Path,
    board: Board,
    memory: Memory,
    warn: WarningSink,
    on_progress: Callable[[], object],
    *,
    config_text: str,
    resumes: bool,
) -> StartState:
    """Restore ``memory`` from the newest checkpoint, and cut the run's files back if it returns to an earlier state.

    ``on_progress`` is called during long work.  Raises CheckpointError, and the errors of ``recover_files``.
    """
    took_over = board[Word.REPLAY_HEARTBEATS] > 0
    start = Start(board[Word.SESSION_ID], took_over, run_identity(folder), config_text)
    upkeep = Upkeep(folder / "buffer", memory, config, warn, on_progress)
    returns_to_checkpoint = config.lockstep if took_over else resumes
    recovery = (
        recover_files(folder, upkeep, lockstep=config.lockstep, warn=warn, is_loop_running=took_over)
        if returns_to_checkpoint
        else None
    )
    is_first = not took_over or (config.lockstep and upkeep.restored is None)
    return StartState(start, upkeep, recovery, is_first)


def recover_files(
    folder: Path, upkeep: Upkeep, *, lockstep: bool, warn: WarningSink, is_loop_running: bool = False
) -> Recovery:
    """Cut the run in ``folder`` back to the point at which it continues (``onrig.runtime.replay.recovery``).

    Must be called before anything opens the run's files.  Raises CheckpointError.  A file that cannot be cut raises
    CheckpointError as well, but OSError while the loop is running.
    """
    try:
        return recover(
            folder, upkeep.restored, upkeep.note, lockstep=lockstep, warn=warn, is_loop_running=is_loop_running
        )
    except OSError as error:
        if is_loop_running:  # for example a full disk; retried
            raise
        raise CheckpointError(f"{error.filename or folder}: {error.strerror}; the run was not resumed") from None


def files_at_checkpoint(upkeep: Upkeep) -> dict[str, FileChecksum]:
    """Return the run's append-only files at the restored checkpoint; empty without one."""
    return decode_point(upkeep.note).files if upkeep.restored is not None else {}
