"""Attacks in real time on a recorded wire: no program may report safe unless the device's frames confirm it."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onrig.hw.messages import shows_safe
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.shm.board import Word
from tests.lab.attacks.campaign import Piece
from tests.lab.endurance.injection import Hits
from tests.lab.endurance.schedule import FATAL, Hit, Role, hits
from tests.lab.rig.audit import Observed, findings
from tests.lab.rig.balance import Gauges
from tests.lab.rig.processes import CONTROL, WaitTimeout, send, until
from tests.lab.rig.rig import WatchedRig
from tests.lab.rig.run_folder import config_of, read_folder, tracebacks
from tests.lab.rig.wire import Mode, TimedState

_EVERY_S: Final = 3.0
"""Interval of hits."""
_UP_S: Final = 60.0
_END_S: Final = 60.0
_POLL_S: Final = 0.005
_SAMPLE_S: Final = 0.5
_EXPLAINED: Final = {
    "control": (ExitCode.INTERNAL, ExitCode.HARDWARE, ExitCode.SAFETY),
    "device": (ExitCode.HARDWARE, ExitCode.SAFETY),
    "supervisor": (-signal.SIGKILL,),
}
"""Exit codes by which a run may end when a process has been killed, or stopped for too long."""
_MODES: Final[tuple[Mode, ...]] = ("carry", "cut", "deaf", "freeze", "garble")
_SAFE: Final = re.compile(r"\b(?:are|is|actuators) safe\b")
_UNSURE: Final = re.compile(r"unconfirmed|did not confirm|lease")
_STOPPED_S: Final = 90.0
_LATE_S: Final = (0.0, 0.06)


def outlived_lease(seen: list[TimedState], lease_periods: int, safe: Sequence[float]) -> list[str]:
    """List frames in which a device acted on a command for longer than its lease and a period.

    seen: recorded frames in order; safe: (m,) safe output in counts.
    """
    late = [
        s.state.frame
        for s in seen
        if not shows_safe(s.state, safe) and s.state.answers and s.state.frame - s.state.answers > lease_periods + 1
    ]
    return (
        [f"the device acted on a command older than its lease in {len(late)} frames, first {late[0]}"] if late else []
    )


class RealtimeHits:
    """A campaign: each piece is one rig in real time that is hit ``count`` times."""

    def __init__(self, seed: int, pieces: int, count: int, *, stop: bool, max_stop_s: float | None) -> None:
        self.name = "stops-realtime" if stop else "kills-realtime"
        self.description = f"{pieces * count} {'SIGSTOP/SIGCONT' if stop else 'kill -9'} of random processes, real time"
        self.pieces, self.piece_s = pieces, 12.0 + count * _EVERY_S * 1.5
        self._seed, self._count, self._stop, self._max_stop_s = seed, count, stop, max_stop_s

    def run(self, number: int, folder: Path) -> Piece:
        """Run one piece."""
        plan = hits(f"{self._seed} {self.name} {number}", self._count, stop=self._stop, max_stop_s=self._max_stop_s)
        description = ", ".join(one.description for one in plan)
        with WatchedRig(folder, learner=True) as rig:
            hit = HitTarget(rig, _EVERY_S * self._count)
            try:
                found = hit.execute(plan)
            except WaitTimeout as error:
                found = [f"hangs, and nobody misses it: {error}"]
            found += outlived_lease(rig.wire.seen, rig.config.rig.lease_periods, rig.config.rig.safe_counts)
        found += tracebacks(rig.run_folder)
        counts = {"landed": hit.landed, "runs": hit.starts}
        return Piece(number, len(plan), [f"{line} ({description})" for line in found], counts, hit.gauges.grown_mb())


class HitTarget:
    """A rig that is hit for ``length_s``, resumed after each end of a run, and finally interrupted."""

    def __init__(self, rig: WatchedRig, length_s: float) -> None:
        self._rig, self._length_s = rig, length_s
        self._hits = Hits()
        self.gauges = Gauges()
        self._sampled_s = 0.0
        self.starts, self.landed = 1, 0

    def execute(self, plan: list[Hit]) -> list[str]:
        """Hit it as planned; returns the findings."""
        rig, left, found = self._rig, list(plan), []
        self._wait_until_up()
        at_s, hit = 0.0, set[Role]()
        while left or at_s < self._length_s:
            step_start_s = time.monotonic()
            self._step()
            if not rig.running:
                found += self._handle_end(hit)
                hit.clear()
                rig.start_run(rig.run_folder, resume=True)
                self.starts += 1
                self._wait_until_up()
                step_start_s = time.monotonic()
            if left and at_s >= left[0].at * self._length_s:
                one = left.pop(0)
                if self._hits.apply(one, self._pid_of):
                    self.landed += 1
                    hit.add(one.role)
                    if one.role == "device" and one.stop_s is None:
                        rig.kill_device()
                        rig.start_device()
            time.sleep(_POLL_S)
            at_s += time.monotonic() - step_start_s
        rig.run.stop(signal.SIGINT)
        limit_s = time.monotonic() + _END_S
        while rig.running:
            self._step()
            if time.monotonic() > limit_s:
                raise WaitTimeout(f"an interrupted run was not over after {_END_S:g} s")
            time.sleep(_POLL_S)
        return found + self._handle_end(hit, interrupted=True)

    def _handle_end(self, hit: set[Role], *, interrupted: bool = False) -> list[str]:
        """Examine an ended run: reason, remaining processes, account."""
        rig, code = self._rig, self._rig.run.ended()
        until(lambda: not self._is_at_rest(), "the processes of a run that has ended to end", limit_s=_UP_S)
        expected = {c for role in hit & set(FATAL) for c in _EXPLAINED[role]} | {ExitCode.INCOMPLETE}
        expected |= {ExitCode.INTERRUPTED, -signal.SIGINT} if interrupted else set()
        found = [] if code in expected else [f"ended with {code} although nothing had happened that ends a run so"]
        config = config_of(rig.run_folder)
        observed = Observed(code, rig.run.word(Word.CLOSED), resumed=self.starts > 1)
        return found + findings(read_folder(rig.run_folder, config), config, observed)

    def _is_at_rest(self) -> list[int]:
        self._hits.resume_stopped()
        return self._rig.run.live_processes()

    def _wait_until_up(self) -> None:
        rig = self._rig
        rows = len(rig.run.rows())
        rig.until(lambda: not rig.running or len(rig.run.rows()) > rows, "an episode", limit_s=_UP_S)

    def _step(self) -> None:
        self._hits.resume_stopped()
        now_s = time.monotonic()
        if now_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = now_s
            processes = self._rig.processes()
            if "control" in processes:  # otherwise the run is over, and its supervisor is drawing plots
                self.gauges.sample(now_s, processes)

    def _pid_of(self, role: Role) -> int | None:
        return self._rig.processes().get(role)


def false_safe(seen: list[TimedState], output_lines: list[tuple[int, str]], safe: Sequence[float]) -> list[str]:
    """List output lines that reported the actuators safe while the device reported otherwise.

    ``output_lines`` are (monotonic ns, line); the last state frame sent by the device before the line decides; safe:
    (m,) safe output in counts.
    """
    found = []
    for at_ns, line in output_lines:
        if not _claims_safe(line):
            continue
        before = [s.state for s in seen if s.at_ns <= at_ns]
        if before and not shows_safe(before[-1], safe):
            later = [s.at_ns for s in seen if s.at_ns > at_ns and shows_safe(s.state, safe)]
            until = f"for {(later[0] - at_ns) / 1e6:.0f} ms more" if later else "to the end"
            found.append(f"false safe: '{line.strip()[-80:]}' while the device acted, {until}")
    return found


def _claims_safe(line: str) -> bool:
    return bool(_SAFE.search(line)) and not _UNSURE.search(line)


class Stops:
    """A campaign: each piece stops one run while its connection, or its loop, fails."""

    name = "stops-on-a-bad-line"

    def __init__(self, seed: int, pieces: int) -> None:
        self.description = f"{pieces} times `onrig stop` while the line fails"
        self.pieces, self.piece_s = pieces, 12.0
        self._seed = seed

    def run(self, number: int, folder: Path) -> Piece:
        """Run one piece."""
        rng = random.Random(f"{self._seed} {self.name} {number}")
        mode, at_once = rng.choice(_MODES), rng.random() < 0.5
        delay_s, fails_before, hung = rng.uniform(*_LATE_S), rng.random() < 0.5, rng.random() < 0.2
        description = (
            f"line {mode}, {'--now, ' if at_once else ''}{'loop stopped, ' if hung else ''}{1e3 * delay_s:.0f} ms"
        )
        with WatchedRig(folder) as rig:
            rig.until_moving()
            if hung:
                send(rig.run.child(CONTROL).pid, signal.SIGSTOP)
            if fails_before:
                rig.wire.mode = mode
                time.sleep(delay_s)
            command = ["-m", "onrig.tools.cli", "stop", str(rig.run_folder), *(["--now"] if at_once else [])]
            output_lines = _timed_output(rig, command, mode, delay_s)
            rig.wire.mode = "carry"
            for pid in rig.run.live_processes():
                send(pid, signal.SIGCONT)
            rig.run.process.wait(_STOPPED_S)
            found = false_safe(rig.wire.seen, output_lines, rig.config.rig.safe_counts)
        found += tracebacks(rig.run_folder)
        called_safe = any(_claims_safe(line) for _, line in output_lines)
        return Piece(number, 1, [f"{line} ({description})" for line in found], {"called safe": int(called_safe)})


def _timed_output(rig: WatchedRig, command: list[str], mode: Mode, delay_s: float) -> list[tuple[int, str]]:
    """Run a command while the connection fails shortly afterwards; returns each output line with its time."""
    output_lines: list[tuple[int, str]] = []
    with subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as stop:
        time.sleep(delay_s)
        rig.wire.mode = mode
        assert stop.stdout is not None
        for line in stop.stdout:
            output_lines.append((time.monotonic_ns(), line.decode(errors="replace")))
        stop.wait(_STOPPED_S)
    return output_lines
