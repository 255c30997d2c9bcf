"""Disk, shared memory and descriptors used up at random moments: whatever is lost is told, and what can wait waits."""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.shm.board import Word
from onrig.tools.faultlab.attack.lockstep import SETTINGS, ticks_of
from onrig.tools.faultlab.campaign import Piece
from onrig.tools.faultlab.ledger import Beside, findings, lost
from onrig.tools.faultlab.processes import Impatient
from onrig.tools.faultlab.run import Room, can_be_built
from onrig.tools.faultlab.run import Run
from onrig.tools.faultlab.run_folder import config_of, left_by, tracebacks

What = Literal["disk", "shm", "descriptors"]
_SIZES: Final = {"disk": 24 << 20, "shm": 64 << 20}
_LOG: Final = "log.keep_free_bytes=1"
"""The disk is a small one: else no log would be kept at all."""
_LASTS_S: Final = (0.2, 12.0)
_END_S: Final = 180.0
_LOOK_S: Final = 0.005
_BEFORE: Final = 0.15
"""Share of the pieces in which it is used up before the run begins."""


class Exhaustion:
    """A campaign: each piece is one lockstep run that runs out of something for a while."""

    def __init__(self, what: What, seed: int, pieces: int, *, longest_s: float | None) -> None:
        self.name = what
        self.does = f"{pieces} runs that run out of {_CALLED[what]}, at random moments"
        self.pieces, self.piece_s = pieces, 20.0
        self._what, self._seed, self._longest_s = what, seed, longest_s
        self._episodes = 16

    def run(self, number: int, folder: Path) -> Piece:
        """Let one run out of it."""
        rng = random.Random(f"{self._seed} {self.name} {number}")
        at, lasts_s = rng.uniform(-_BEFORE, 1), rng.uniform(*_LASTS_S)
        lasts_s = min(lasts_s, self._longest_s or lasts_s)
        told = f"from {max(at, 0):.0%} on, {lasts_s:.1f} s" if at >= 0 else "from before the start"
        disk = folder / "disk"
        disk.mkdir()
        settings = (*SETTINGS, f"episodes={self._episodes}", f"seed={self._seed}", _LOG)
        with ExitStack() as stack:
            room = None
            if self._what != "descriptors" and can_be_built():
                shared = _SIZES["shm"] if self._what == "shm" else 1 << 30
                room = stack.enter_context(Room({disk: _SIZES["disk"], Path("/dev/shm"): shared}))
            where = disk if self._what == "disk" else Path("/dev/shm")
            fill = (lambda run: _fill(room, where)) if room is not None else _LIMITS[self._what]
            give_back: Callable[[], None] = lambda: None  # noqa: E731
            if at < 0 and room is not None:
                give_back = _fill(room, where)
            run = stack.enter_context(Run(disk / "run", "pendulum", *settings, room=room, output=folder / "run.out"))
            try:
                if at >= 0:
                    _until_tick(run, round(at * ticks_of(self._episodes)))
                    give_back = fill(run)
                _wait(run, lasts_s)
                give_back()
                code = run.ended(_END_S)
            except Impatient as error:
                return Piece(number, 1, [f"hangs: {error} ({told})"])
            found, incomplete = self._examined(run, code, before=at < 0)
            found += tracebacks(run.folder) + tracebacks(folder / "disk")
        counts = {"completed": int(code == 0), "incomplete, and told": int(incomplete and code == ExitCode.INCOMPLETE)}
        return Piece(number, 1, [f"{line} ({told})" for line in found], counts)

    def _examined(self, run: Run, code: int, *, before: bool) -> tuple[list[str], bool]:
        """What was found, and whether anything is missing."""
        expected = (ExitCode.OK, ExitCode.INCOMPLETE, *((ExitCode.PREFLIGHT, ExitCode.CONFIGURATION) if before else ()))
        found = [] if code in expected else [f"ended with {code}: {' '.join(run.output.split()[-30:])}"]
        if not (run.folder / "config.yaml").exists():
            return found, False
        config = config_of(run.folder)
        left, beside = left_by(run.folder, config), Beside(code)
        if not left.summary and code == ExitCode.INCOMPLETE and "DATA INCOMPLETE" in run.output:
            return found, True  # the disk was full to the end, which is told where there was room: on the terminal
        return found + findings(left, config, beside), bool(lost(left, config, beside))


def _until_tick(run: Run, tick: int) -> None:
    """Wait for a tick, or for the end of a run that is quicker."""
    limit_s = time.monotonic() + _END_S
    while not run.process.ended and run.word(Word.TICK) < tick:
        if time.monotonic() > limit_s:
            raise Impatient(f"tick {tick} did not come within {_END_S:g} s")
        time.sleep(_LOOK_S)


def _wait(run: Run, seconds: float) -> None:
    limit_s = time.monotonic() + seconds
    while not run.process.ended and time.monotonic() < limit_s:
        time.sleep(_LOOK_S)


def _fill(room: Room, where: Path) -> Callable[[], None]:
    ballast = room.fill(where)
    return lambda: ballast.unlink(missing_ok=True)


def _limited(limit: int, value_of: Callable[[int], int]) -> Callable[[Run], Callable[[], None]]:
    """Lower a limit of every process of a run; what is returned raises it again."""

    def lower(run: Run) -> Callable[[], None]:
        before: dict[int, tuple[int, int]] = {}
        for pid in run.living():
            try:
                soft, hard = resource.prlimit(pid, limit)
                resource.prlimit(pid, limit, (min(value_of(pid), hard), hard))
            except (OSError, ValueError):  # it has just ended
                continue
            before[pid] = soft, hard

        def raise_again() -> None:
            for pid, limits in before.items():
                try:
                    resource.prlimit(pid, limit, limits)
                except OSError:
                    continue

        return raise_again

    return lower


def _open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


_CALLED: Final = {"disk": "disk", "shm": "shared memory", "descriptors": "file descriptors"}
_LIMITS: Final[dict[What, Callable[[Run], Callable[[], None]]]] = {
    "disk": _limited(resource.RLIMIT_FSIZE, lambda pid: 1),
    "shm": _limited(resource.RLIMIT_FSIZE, lambda pid: 1),
    "descriptors": _limited(resource.RLIMIT_NOFILE, _open_descriptors),
}
"""Where no room with small disks can be built: no file of the run grows any more."""
