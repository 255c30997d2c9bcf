"""Attacks on lockstep runs at random times: processes killed or stopped; disk, shared memory or descriptors exhausted.

A disturbed run must end bit for bit like an undisturbed one; losses for lack of space must be reported.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal, NamedTuple

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.shm.board import Word
from tests.lab.attacks.campaign import Piece
from tests.lab.endurance.injection import Hits
from tests.lab.endurance.schedule import FATAL, Hit, Role, hits
from tests.lab.rig.audit import Observed, differences, findings, losses, policy_differences
from tests.lab.rig.processes import ROLES, WaitTimeout, until
from tests.lab.rig.room import MountNamespace, can_mount
from tests.lab.rig.run import Run
from tests.lab.rig.run_folder import FolderContents, config_of, read_folder, tracebacks

_STEPS, _EVERY = 100, 4
"""Steps per episode, at 50 Hz, and episodes between evaluations."""
SETTINGS: Final = (
    f"task.episode_s={_STEPS // 50}",
    "learner.updates_per_episode=10",
    f"evaluate_every={_EVERY}",
    "checkpoint_s=4",
    "selection={strategy: 'TDE(1.0)[PER+IS]', capacity: 500}",
)
"""Short episodes, a checkpoint after every second one, and a memory that depends on every TD error."""
_END_S: Final = 180.0
"""Time after which a run counts as hung."""
_ORPHANS_S: Final = 30.0
_MAX_STARTS: Final = 12
_POLL_S: Final = 0.002

Resource = Literal["disk", "shm", "descriptors"]
_RESOURCE_LABELS: Final = {"disk": "disk", "shm": "shared memory", "descriptors": "file descriptors"}
_SIZES: Final = {"disk": 24 << 20, "shm": 64 << 20}
_LOG: Final = "log.keep_free_bytes=1"
"""Log settings for a small disk, on which no log would be written by default."""
_DURATION_S: Final = (0.2, 12.0)
_EARLY_SHARE: Final = 0.15
"""Share of the pieces in which the resource is exhausted before the run begins."""
_EPISODES: Final = 16


def ticks_of(episodes: int) -> int:
    """Number of records of a run of ``episodes`` training episodes, with evaluations."""
    return (_STEPS + 1) * (episodes + episodes // _EVERY)


class ReferenceResult(NamedTuple):
    """Results of an undisturbed run."""

    contents: FolderContents
    policies: dict[int, bytes]


class ReferenceRun:
    """The undisturbed reference run, made on first use."""

    def __init__(self, seed: int, episodes: int) -> None:
        self.episodes = episodes
        self.settings = (*SETTINGS, f"episodes={episodes}", f"seed={seed}")
        self._result: ReferenceResult | None = None

    def result(self, folder: Path) -> ReferenceResult:
        """Return its results; run in ``folder``, which is then emptied.  Raises WaitTimeout."""
        if self._result is None:
            run_folder = folder / "reference"
            with Run(run_folder, "pendulum", *self.settings) as run:
                code = run.ended(_END_S)
            if code != ExitCode.OK:
                raise WaitTimeout(f"an undisturbed run ended with {code}; see {run_folder}.out")
            self._result = ReferenceResult(read_folder(run_folder, config_of(run_folder)), policies_of(run_folder))
            shutil.rmtree(run_folder)
        return self._result


class LockstepHits:
    """A campaign: each piece is one run that is hit ``count`` times and compared with an undisturbed one."""

    def __init__(
        self, reference_run: ReferenceRun, seed: int, pieces: int, count: int, *, stop: bool, max_stop_s: float | None
    ) -> None:
        self.name = "stops-lockstep" if stop else "kills-lockstep"
        self.description = f"{pieces * count} {'SIGSTOP/SIGCONT' if stop else 'kill -9'} of random processes, lockstep"
        self.pieces, self.piece_s = pieces, 12.0
        self._seed, self._count, self._stop, self._max_stop_s = seed, count, stop, max_stop_s
        self.reference_run = reference_run

    def run(self, number: int, folder: Path) -> Piece:
        """Hit one run, resume it until it completes, and compare."""
        reference = self.reference_run.result(folder)
        plan = hits(f"{self._seed} {self.name} {number}", self._count, stop=self._stop, max_stop_s=self._max_stop_s)
        hit = HitRun(folder / "run", self.reference_run.settings, ticks_of(self.reference_run.episodes))
        found = hit.execute(plan)
        if hit.completed:
            config = config_of(hit.folder)
            contents = read_folder(hit.folder, config)
            found += findings(contents, config, Observed(ExitCode.OK, resumed=hit.starts > 1))
            found += differences(contents, reference.contents)
            found += policy_differences(policies_of(hit.folder), reference.policies)
        found += tracebacks(hit.folder)
        description = ", ".join(one.description for one in plan)
        counts = {"landed": hit.hits_landed, "gone on with": hit.starts - 1}
        return Piece(number, len(plan), [f"{line} ({description})" for line in found], counts)


class HitRun:
    """One run, hit and resumed until it completes."""

    def __init__(self, folder: Path, settings: tuple[str, ...], ticks: int) -> None:
        self.folder, self._settings, self._ticks = folder, settings, ticks
        self.starts = self.hits_landed = 0
        self.completed = False
        self._hits = Hits()

    def execute(self, plan: list[Hit]) -> list[str]:
        """Hit it as planned; returns the findings."""
        pending = list(plan)
        found: list[str] = []
        resume = False
        while not self.completed and self.starts < _MAX_STARTS:
            self.starts += 1
            with Run(self.folder, "pendulum", *(() if resume else self._settings), resume=resume) as run:
                try:
                    code, due = self._run_to_end(run, pending)
                    until(lambda run=run: not run.live_processes(), "its processes to end", limit_s=_ORPHANS_S)  # type: ignore[misc]
                except WaitTimeout as error:
                    return [*found, f"hangs undetected: {error}; living: {', '.join(run.children())}"]
            if code == ExitCode.OK:
                self.completed = True
            elif not due:
                found.append(f"ended with {code} although nothing had happened that ends a run")
            if code == ExitCode.CONFIGURATION:  # it ended too early to be resumed, and reports this
                if (self.folder / "episodes.csv").exists() and (self.folder / "buffer").exists():
                    return [*found, f"cannot be resumed: {run.output.strip().splitlines()[-1]}"]
                shutil.rmtree(self.folder, ignore_errors=True)
            resume = (self.folder / "config.yaml").exists()
        return found if self.completed else [*found, f"did not complete in {self.starts} starts"]

    def _run_to_end(self, run: Run, pending: list[Hit]) -> tuple[int, bool]:
        """Hit a run until its end; returns its exit code, and whether a hit explains an early end."""
        due = self.starts > 1 and not (self.folder / "config.yaml").exists()
        limit_s = time.monotonic() + _END_S
        while not run.process.has_ended:
            self._hits.resume_stopped()
            if pending and run.word(Word.TICK) >= pending[0].at * self._ticks:
                hit = pending[0]
                if self._hits.apply(hit, lambda role: pid_of(run, role)):  # else the process is starting
                    pending.pop(0)
                    self.hits_landed += 1
                    due = due or hit.role in FATAL
            if time.monotonic() > limit_s:
                raise WaitTimeout(f"not over after {_END_S:g} s")
            time.sleep(_POLL_S)
        while run.live_processes() and time.monotonic() < limit_s:
            self._hits.resume_stopped()
            time.sleep(_POLL_S)
        return run.ended(), due


def pid_of(run: Run, role: Role) -> int | None:
    """Return the pid of a run's process with this role."""
    if role == "supervisor":
        return run.pid
    return next((p.pid for module, p in run.children().items() if ROLES.get(module) == role), None)


def policies_of(folder: Path) -> dict[int, bytes]:
    """Return a run's stored policies by id."""
    files = (folder / "policies").glob("*.onnx")
    return {int(path.stem): path.read_bytes() for path in files if path.stem.isdecimal()}


class Exhaustion:
    """A campaign: each piece is one run with a temporarily exhausted resource."""

    def __init__(self, exhausted: Resource, seed: int, pieces: int, *, max_stop_s: float | None) -> None:
        self.name = exhausted
        self.description = f"{pieces} runs that run out of {_RESOURCE_LABELS[exhausted]}, at random moments"
        self.pieces, self.piece_s = pieces, 20.0
        self._exhausted, self._seed, self._max_stop_s = exhausted, seed, max_stop_s

    def run(self, number: int, folder: Path) -> Piece:
        """Run one piece."""
        rng = random.Random(f"{self._seed} {self.name} {number}")
        at, duration_s = rng.uniform(-_EARLY_SHARE, 1), rng.uniform(*_DURATION_S)
        duration_s = min(duration_s, self._max_stop_s or duration_s)
        description = f"from {max(at, 0):.0%} on, {duration_s:.1f} s" if at >= 0 else "from before the start"
        disk = folder / "disk"
        disk.mkdir()
        settings = (*SETTINGS, f"episodes={_EPISODES}", f"seed={self._seed}", _LOG)
        with ExitStack() as stack:
            room = None
            if self._exhausted != "descriptors" and can_mount():
                shared = _SIZES["shm"] if self._exhausted == "shm" else 1 << 30
                room = stack.enter_context(MountNamespace({disk: _SIZES["disk"], Path("/dev/shm"): shared}))
            where = disk if self._exhausted == "disk" else Path("/dev/shm")
            exhaust = (lambda run: _fill(room, where)) if room is not None else _LIMITS[self._exhausted]
            give_room_back: Callable[[], None] = lambda: None  # noqa: E731
            if at < 0 and room is not None:
                give_room_back = _fill(room, where)
            run = stack.enter_context(Run(disk / "run", "pendulum", *settings, room=room, output=folder / "run.out"))
            try:
                if at >= 0:
                    tick = round(at * ticks_of(_EPISODES))
                    _wait_while(run, lambda: run.word(Word.TICK) < tick, _END_S, f"tick {tick}")
                    give_room_back = exhaust(run)
                over_s = time.monotonic() + duration_s
                _wait_while(run, lambda: time.monotonic() < over_s, _END_S, "time to pass")
                give_room_back()
                code = run.ended(_END_S)
            except WaitTimeout as error:
                return Piece(number, 1, [f"hangs: {error} ({description})"])
            found, incomplete = self._examine(run, code, before=at < 0)
            found += tracebacks(run.folder) + tracebacks(folder / "disk")
        counts = {
            "completed": int(code == 0),
            "reported as incomplete": int(incomplete and code == ExitCode.INCOMPLETE),
        }
        return Piece(number, 1, [f"{line} ({description})" for line in found], counts)

    def _examine(self, run: Run, code: int, *, before: bool) -> tuple[list[str], bool]:
        """Return the findings, and whether anything is missing."""
        expected = (ExitCode.OK, ExitCode.INCOMPLETE, *((ExitCode.PREFLIGHT, ExitCode.CONFIGURATION) if before else ()))
        found = [] if code in expected else [f"ended with {code}: {' '.join(run.output.split()[-30:])}"]
        if not (run.folder / "config.yaml").exists():
            return found, False
        config = config_of(run.folder)
        contents, observed = read_folder(run.folder, config), Observed(code)
        if not contents.summary and code == ExitCode.INCOMPLETE and "DATA INCOMPLETE" in run.output:
            return found, True  # the disk was full until the end, so the loss is reported on the terminal
        return found + findings(contents, config, observed), bool(losses(contents, config, observed))


def _wait_while(run: Run, condition: Callable[[], bool], limit_s: float, description: str) -> None:
    """Wait while a condition holds, at most until the run ends."""
    until(lambda: run.process.has_ended or not condition(), description, limit_s=limit_s)


def _fill(room: MountNamespace, where: Path) -> Callable[[], None]:
    ballast = room.fill(where)
    return lambda: ballast.unlink(missing_ok=True)


def _limited(limit: int, value_of: Callable[[int], int]) -> Callable[[Run], Callable[[], None]]:
    """Return a function that lowers a limit for every process of a run, and returns a function that restores it."""

    def lower(run: Run) -> Callable[[], None]:
        before: dict[int, tuple[int, int]] = {}
        for pid in run.live_processes():
            try:
                soft, hard = resource.prlimit(pid, limit)
                resource.prlimit(pid, limit, (min(value_of(pid), hard), hard))
            except (OSError, ValueError):  # it has just ended
                continue
            before[pid] = soft, hard

        def restore() -> None:
            for pid, limits in before.items():
                try:
                    resource.prlimit(pid, limit, limits)
                except OSError:
                    continue

        return restore

    return lower


def _open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


_LIMITS: Final[dict[Resource, Callable[[Run], Callable[[], None]]]] = {
    "disk": _limited(resource.RLIMIT_FSIZE, lambda pid: 1),
    "shm": _limited(resource.RLIMIT_FSIZE, lambda pid: 1),
    "descriptors": _limited(resource.RLIMIT_NOFILE, _open_descriptors),
}
"""Limits used if no namespace with small disks can be built: files of the run cannot grow."""
