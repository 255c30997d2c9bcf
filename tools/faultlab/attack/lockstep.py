"""Blows in lockstep: however often it is hit, a run ends bit for bit as one that is left alone."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.shm.board import Word
from onrig.tools.faultlab.attack.blows import FATAL, Blow, Role, Struck, blows
from onrig.tools.faultlab.campaign import Piece
from onrig.tools.faultlab.ledger import Beside, findings, unlike, unlike_policies
from onrig.tools.faultlab.processes import ROLES, Impatient, until
from onrig.tools.faultlab.run import Run
from onrig.tools.faultlab.run_folder import Left, config_of, left_by, tracebacks

_STEPS, _EVERY = 100, 4
"""Of an episode, at 50 Hz; episodes from one evaluation to the next."""
SETTINGS: Final = (
    f"task.episode_s={_STEPS // 50}",
    "learner.updates_per_episode=10",
    f"evaluate_every={_EVERY}",
    "checkpoint_s=4",
    "selection={strategy: 'TDE(1.0)[PER+IS]', capacity: 500}",
)
"""Short episodes, a checkpoint after every second one, and a memory in which every TD error shows."""
_END_S: Final = 180.0
"""A run that has not ended by then hangs, and nobody has missed it."""
_ORPHANS_S: Final = 30.0
_STARTS: Final = 12
_LOOK_S: Final = 0.002


def ticks_of(episodes: int) -> int:
    """Records of a run of so many training episodes, those of its evaluation episodes among them."""
    return (_STEPS + 1) * (episodes + episodes // _EVERY)


class Whole(NamedTuple):
    """A run that nothing happened to."""

    left: Left
    policies: dict[int, bytes]


class Alone:
    """The run that others are compared with; it is made when the first of them asks."""

    def __init__(self, seed: int, episodes: int) -> None:
        self.episodes = episodes
        self.settings = (*SETTINGS, f"episodes={episodes}", f"seed={seed}")
        self._whole: Whole | None = None

    def whole(self, folder: Path) -> Whole:
        """What it left; made in ``folder``, where nothing of it remains.  Raises Impatient."""
        if self._whole is None:
            alone = folder / "alone"
            with Run(alone, "pendulum", *self.settings) as run:
                code = run.ended(_END_S)
            if code != ExitCode.OK:
                raise Impatient(f"a run that was left alone ended with {code}; see {alone}.out")
            self._whole = Whole(left_by(alone, config_of(alone)), policies_of(alone))
            shutil.rmtree(alone)
        return self._whole


class LockstepBlows:
    """A campaign: each piece is one run that is hit ``hits`` times, and compared with one that is left alone."""

    def __init__(self, alone: Alone, seed: int, pieces: int, hits: int, *, stop: bool, longest_s: float | None) -> None:
        self.name = "stops-lockstep" if stop else "kills-lockstep"
        self.does = f"{pieces * hits} {'SIGSTOP/SIGCONT' if stop else 'kill -9'} of random processes, lockstep"
        self.pieces, self.piece_s = pieces, 12.0
        self._seed, self._hits, self._stop, self._longest_s = seed, hits, stop, longest_s
        self._alone = alone

    def run(self, number: int, folder: Path) -> Piece:
        """Hit one run, go on with it as often as it takes, and compare."""
        reference = self._alone.whole(folder)
        plan = blows(f"{self._seed} {self.name} {number}", self._hits, stop=self._stop, longest_s=self._longest_s)
        hit = HitRun(folder / "run", self._alone.settings, ticks_of(self._alone.episodes))
        found = hit.through(plan)
        if hit.completed:
            config = config_of(hit.folder)
            left = left_by(hit.folder, config)
            found += findings(left, config, Beside(ExitCode.OK, resumed=hit.starts > 1))
            found += unlike(left, reference.left)
            found += unlike_policies(policies_of(hit.folder), reference.policies)
        found += tracebacks(hit.folder)
        told = ", ".join(blow.told for blow in plan)
        counts = {"landed": hit.landed, "gone on with": hit.starts - 1}
        return Piece(number, len(plan), [f"{line} ({told})" for line in found], counts)


class HitRun:
    """One run, hit and gone on with until it completes."""

    def __init__(self, folder: Path, settings: tuple[str, ...], ticks: int) -> None:
        self.folder, self._settings, self._ticks = folder, settings, ticks
        self.starts = self.landed = 0
        self.completed = False
        self._struck = Struck()

    def through(self, plan: list[Blow]) -> list[str]:
        """Bring the blows about; what was found on the way."""
        left = list(plan)
        found: list[str] = []
        resume = False
        while not self.completed and self.starts < _STARTS:
            self.starts += 1
            with Run(self.folder, "pendulum", *(() if resume else self._settings), resume=resume) as run:
                try:
                    code, due = self._one_life(run, left)
                    until(lambda run=run: not run.living(), "its processes to end", limit_s=_ORPHANS_S)  # type: ignore[misc]
                except Impatient as error:
                    return [*found, f"hangs, and nobody misses it: {error}; living: {', '.join(run.children())}"]
            if code == ExitCode.OK:
                self.completed = True
            elif not due:
                found.append(f"ended with {code} although nothing had happened that ends a run")
            if code == ExitCode.CONFIGURATION:  # it had not come far enough to be gone on with, and says so
                if (self.folder / "episodes.csv").exists() and (self.folder / "buffer").exists():
                    return [*found, f"cannot be gone on with: {run.output.strip().splitlines()[-1]}"]
                shutil.rmtree(self.folder, ignore_errors=True)
            resume = (self.folder / "config.yaml").exists()
        return found if self.completed else [*found, f"did not complete in {self.starts} starts"]

    def _one_life(self, run: Run, left: list[Blow]) -> tuple[int, bool]:
        """See a run to its end, hitting it; its exit code, and whether a blow explains an end before time."""
        due = self.starts > 1 and not (self.folder / "config.yaml").exists()
        limit_s = time.monotonic() + _END_S
        while not run.process.ended:
            self._struck.again()
            if left and run.word(Word.TICK) >= left[0].at * self._ticks:
                blow = left[0]
                if self._struck.strike(blow, lambda role: pid_of(run, role)):  # it may be on its way up
                    left.pop(0)
                    self.landed += 1
                    due = due or blow.role in FATAL
            if time.monotonic() > limit_s:
                raise Impatient(f"not over after {_END_S:g} s")
            time.sleep(_LOOK_S)
        while run.living() and time.monotonic() < limit_s:
            self._struck.again()
            time.sleep(_LOOK_S)
        return run.ended(), due


def pid_of(run: Run, role: Role) -> int | None:
    """The process of a run that has a role now."""
    if role == "supervisor":
        return run.pid
    return next((p.pid for module, p in run.children().items() if ROLES.get(module) == role), None)


def policies_of(folder: Path) -> dict[int, bytes]:
    """The policies that a run has kept, by id."""
    files = (folder / "policies").glob("*.onnx")
    return {int(path.stem): path.read_bytes() for path in files if path.stem.isdecimal()}
