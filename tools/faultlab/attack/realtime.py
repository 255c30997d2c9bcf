"""Blows in real time: the device stays safe by its own account, and what is lost is told."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

from onrig.hw.messages import Status
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.shm.board import Word
from onrig.tools.faultlab.attack.blows import FATAL, Blow, Role, Struck, blows
from onrig.tools.faultlab.campaign import Piece
from onrig.tools.faultlab.gauges import Gauges
from onrig.tools.faultlab.ledger import Beside, findings
from onrig.tools.faultlab.matrix_rig import FaultRig
from onrig.tools.faultlab.processes import Impatient, until
from onrig.tools.faultlab.run_folder import config_of, left_by, tracebacks
from onrig.tools.faultlab.wire import Seen

_UP_S: Final = 60.0
_END_S: Final = 60.0
_LOOK_S: Final = 0.005
_SAMPLE_S: Final = 0.5
_EXPLAINED: Final = {
    "control": (ExitCode.INTERNAL, ExitCode.HARDWARE, ExitCode.SAFETY),
    "device": (ExitCode.HARDWARE, ExitCode.SAFETY),
    "supervisor": (-signal.SIGKILL,),
}
"""Exit codes by which a run may end when a process has been killed, or stopped for too long."""


def kept_on(seen: list[Seen], lease_periods: int) -> list[str]:
    """Where a device went on under a command for longer than its lease and a period, by its own account.

    Frames that a wire kept, in order; ``answers`` names the frame that the command in force answers.
    """
    late = [
        s.state.frame
        for s in seen
        if s.state.status & Status.ARMED
        and not s.state.status & Status.SAFE
        and s.state.answers
        and s.state.frame - s.state.answers > lease_periods + 1
    ]
    return (
        [f"the device acted on a command older than its lease in {len(late)} frames, first {late[0]}"] if late else []
    )


class RealtimeBlows:
    """A campaign: each piece is one rig in real time that is hit ``hits`` times, ``every_s`` apart."""

    def __init__(
        self, seed: int, pieces: int, hits: int, *, stop: bool, every_s: float, longest_s: float | None
    ) -> None:
        self.name = "stops-realtime" if stop else "kills-realtime"
        self.does = f"{pieces * hits} {'SIGSTOP/SIGCONT' if stop else 'kill -9'} of random processes, real time"
        self.pieces, self.piece_s = pieces, 12.0 + hits * every_s * 1.5
        self._seed, self._hits, self._stop, self._longest_s = seed, hits, stop, longest_s
        self._every_s = every_s

    def run(self, number: int, folder: Path) -> Piece:
        """Hit one rig."""
        plan = blows(f"{self._seed} {self.name} {number}", self._hits, stop=self._stop, longest_s=self._longest_s)
        told = ", ".join(blow.told for blow in plan)
        with FaultRig(folder, learner=True) as rig:
            hit = HitRig(rig, self._every_s * self._hits)
            try:
                found = hit.through(plan)
            except Impatient as error:
                found = [f"hangs, and nobody misses it: {error}"]
            found += kept_on(rig.wire.seen, rig.config.rig.lease_periods)
        found += tracebacks(rig.run_folder)
        counts = {"landed": hit.landed, "runs": hit.starts}
        return Piece(number, len(plan), [f"{line} ({told})" for line in found], counts, hit.grown_mb)


class HitRig:
    """One rig, hit for ``length_s``, gone on with where a run ends, and ended as a person would."""

    def __init__(self, rig: FaultRig, length_s: float) -> None:
        self._rig, self._length_s = rig, length_s
        self._struck = Struck()
        self._gauges = Gauges()
        self._sampled_s = 0.0
        self.starts, self.landed = 1, 0

    @property
    def grown_mb(self) -> dict[str, float]:
        """By how much each process that lived long enough had grown."""
        return self._gauges.grown_mb()

    def through(self, plan: list[Blow]) -> list[str]:
        """Bring the blows about; what was found."""
        rig, left, found = self._rig, list(plan), []
        self._until_up()
        at_s, hit = 0.0, set[Role]()
        while left or at_s < self._length_s:
            turned_s = time.monotonic()
            self._turn()
            if not rig.running:
                found += self._ended(hit)
                hit.clear()
                rig.start_run(rig.run_folder, resume=True)
                self.starts += 1
                self._until_up()
                turned_s = time.monotonic()
            if left and at_s >= left[0].at * self._length_s:
                blow = left.pop(0)
                if self._struck.strike(blow, self._pid_of):
                    self.landed += 1
                    hit.add(blow.role)
                    if blow.role == "device" and blow.stops_s is None:
                        rig.kill_device()
                        rig.start_device()
            time.sleep(_LOOK_S)
            at_s += time.monotonic() - turned_s
        rig.run.stop(signal.SIGINT)
        limit_s = time.monotonic() + _END_S
        while rig.running:
            self._turn()
            if time.monotonic() > limit_s:
                raise Impatient(f"an interrupted run was not over after {_END_S:g} s")
            time.sleep(_LOOK_S)
        return found + self._ended(hit, interrupted=True)

    def _ended(self, hit: set[Role], *, interrupted: bool = False) -> list[str]:
        """Look at a run that has ended: is there a reason, has all of it ended, is its account true?"""
        rig, code = self._rig, self._rig.run.ended()
        until(lambda: not self._still(), "the processes of a run that has ended to end", limit_s=_UP_S)
        expected = {c for role in hit & set(FATAL) for c in _EXPLAINED[role]} | {ExitCode.INCOMPLETE}
        expected |= {ExitCode.INTERRUPTED, -signal.SIGINT} if interrupted else set()
        found = [] if code in expected else [f"ended with {code} although nothing had happened that ends a run so"]
        config = config_of(rig.run_folder)
        beside = Beside(code, rig.run.word(Word.CLOSED), resumed=self.starts > 1)
        return found + findings(left_by(rig.run_folder, config), config, beside)

    def _still(self) -> list[int]:
        self._struck.again()
        return self._rig.run.living()

    def _until_up(self) -> None:
        rig = self._rig
        rows = len(rig.rows())
        rig.until(lambda: not rig.running or len(rig.rows()) > rows, "an episode", limit_s=_UP_S)

    def _turn(self) -> None:
        self._struck.again()
        now_s = time.monotonic()
        if now_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = now_s
            processes = self._rig.processes()
            if "control" in processes:  # else the run is over, and its supervisor draws pictures
                self._gauges.sample(now_s, processes)

    def _pid_of(self, role: Role) -> int | None:
        return self._rig.processes().get(role)
