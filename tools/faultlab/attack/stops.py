"""Stops on a bad line: *safe* is said of a device that is safe by its own account, and of no other."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from onrig.hw.messages import Status
from onrig.tools.faultlab.campaign import Piece
from onrig.tools.faultlab.matrix_rig import FaultRig
from onrig.tools.faultlab.processes import CONTROL, send
from onrig.tools.faultlab.run_folder import tracebacks
from onrig.tools.faultlab.wire import Mode, Seen

_MODES: Final[tuple[Mode, ...]] = ("carry", "cut", "deaf", "freeze", "garble")
_SAFE: Final = re.compile(r"\b(?:are|is|actuators) safe\b")
_UNSURE: Final = re.compile(r"unconfirmed|did not confirm|lease")
_END_S: Final = 90.0
_LATE_S: Final = (0.0, 0.06)


def false_safe(seen: list[Seen], said: list[tuple[int, str]]) -> list[str]:
    """Lines that called the actuators safe while the device said otherwise.

    ``said`` are (monotonic ns, line); what counts is the last state frame that had left the device by then.
    """
    found = []
    for at_ns, line in said:
        if not _SAFE.search(line) or _UNSURE.search(line):
            continue
        before = [s.state for s in seen if s.at_ns <= at_ns]
        if before and not before[-1].status & Status.SAFE:
            later = [s.at_ns for s in seen if s.at_ns > at_ns and s.state.status & Status.SAFE]
            until = f"for {(later[0] - at_ns) / 1e6:.0f} ms more" if later else "to the end"
            found.append(f"false safe: '{line.strip()[-80:]}' while the device acted, {until}")
    return found


class Stops:
    """A campaign: each piece stops one run while its line, or its loop, fails."""

    name = "stops-on-a-bad-line"

    def __init__(self, seed: int, pieces: int) -> None:
        self.does = f"{pieces} times `onrig stop` while the line fails"
        self.pieces, self.piece_s = pieces, 12.0
        self._seed = seed

    def run(self, number: int, folder: Path) -> Piece:
        """Stop one run."""
        rng = random.Random(f"{self._seed} {self.name} {number}")
        mode, now = rng.choice(_MODES), rng.random() < 0.5
        late_s, before, hung = rng.uniform(*_LATE_S), rng.random() < 0.5, rng.random() < 0.2
        told = f"line {mode}, {'--now, ' if now else ''}{'loop stopped, ' if hung else ''}{1e3 * late_s:.0f} ms"
        with FaultRig(folder) as rig:
            rig.until_moving()
            if hung:
                send(rig.child(CONTROL), signal.SIGSTOP)
            if before:
                rig.wire.mode = mode
                time.sleep(late_s)
            command = ["-m", "onrig.tools.cli", "stop", str(rig.run_folder), *(["--now"] if now else [])]
            said = _said(rig, command, mode, late_s)
            rig.wire.mode = "carry"
            for pid in rig.run.living():
                send(pid, signal.SIGCONT)
            rig.run.process.wait(_END_S)
            found = false_safe(rig.wire.seen, said)
        found += tracebacks(rig.run_folder)
        claims = sum(bool(_SAFE.search(line)) and not _UNSURE.search(line) for _, line in said)
        return Piece(number, 1, [f"{line} ({told})" for line in found], {"called safe": int(claims > 0)})


def _said(rig: FaultRig, command: list[str], mode: Mode, late_s: float) -> list[tuple[int, str]]:
    """Let a command run, the line failing shortly afterwards; each line it said, and when it had been said."""
    said: list[tuple[int, str]] = []
    with subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as stop:
        time.sleep(late_s)
        rig.wire.mode = mode
        assert stop.stdout is not None
        for line in stop.stdout:
            said.append((time.monotonic_ns(), line.decode(errors="replace")))
        stop.wait(_END_S)
    return said
