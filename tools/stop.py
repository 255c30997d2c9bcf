"""``onrig stop``: stops a running rig from another terminal, actuators first; works even where its supervisor hangs."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from runtime.exit_codes import ExitCode
from runtime.supervise.running import Remote, Running, SegmentError, running_rigs
from runtime.supervise.states import State
from tools.arguments import VerbParser

_SAFE_S: Final = 15.0
"""A loop that has not said so by then hangs: the device's lease has made it safe, but nobody tells."""
_END_S: Final = 60.0
"""The last checkpoint of a large memory takes a while."""
_LOOK_S: Final = 0.001
_MOVING: Final = (State.RESETTING, State.RUNNING, State.FALLBACK, State.FADING)


def parser() -> argparse.ArgumentParser:
    """Build the verb's argument parser."""
    p = VerbParser(
        prog="onrig stop",
        description=__doc__,
        epilog="exit codes: 0 stopped and ended, 2 which run? (none runs, or several), 4 stopped, but nobody confirms",
    )
    p.add_argument("run", nargs="?", type=Path, metavar="RUN", help="run folder; default: the only run of this user")
    p.add_argument("--now", action="store_true", help="disarm at once instead of fading the command out")
    return p


def main(arguments: list[str]) -> int:
    """Stop a run and see it to its end; returns the exit code."""
    args = parser().parse_args(arguments)
    found = choose("stop", args.run)
    if isinstance(found, int):
        return found
    asked_ns = time.monotonic_ns()
    try:
        ended = os.pidfd_open(found.pid)
    except OSError:
        ended = -1
    try:
        with Remote(found) as remote:
            moved = remote.state in _MOVING
            remote.stop(2 if args.now else 1)
            safe_ns = _await_safe(remote, ended, asked_ns)
    except SegmentError:
        safe_ns, moved = 0, False  # it ended in this very moment
    how = "at once" if args.now else "faded out"
    if safe_ns:
        took_ms = max(safe_ns - asked_ns, 0) / 1e6
        what = f"actuators safe after {took_ms:.0f} ms ({how})" if moved else "nothing moved: the device was disarmed"
        print(f"{found.folder}: {what}", flush=True)
    if ended < 0 or not select.select((ended,), (), (), _END_S)[0]:
        return complain("stop", f"{found.folder}: process {found.pid} has not ended; see `ps`", ExitCode.HARDWARE)
    print(f"{found.folder}: {outcome(found.folder)}, {(time.monotonic_ns() - asked_ns) / 1e9:.1f} s in all")
    if not safe_ns:
        return complain(
            "stop",
            f"{found.folder}: the loop did not confirm that the actuators are safe; the device's lease has seen to it. "
            "Look at the rig",
            ExitCode.HARDWARE,
        )
    return ExitCode.OK


def _await_safe(remote: Remote, ended: int, asked_ns: int) -> int:
    """Wait for the loop's word that the device is disarmed; 0 when it gives none."""
    limit = time.monotonic() + _SAFE_S
    while time.monotonic() < limit:
        if remote.state not in _MOVING:
            return remote.safe_ns or time.monotonic_ns()
        if ended >= 0 and select.select((ended,), (), (), 0)[0]:
            break
        time.sleep(_LOOK_S)
    return 0


def choose(verb: str, run: Path | None) -> Running | int:
    """Find the run that is meant; says what is wrong and gives the exit code where there is no such run."""
    rigs = running_rigs()
    if run is None:
        if len(rigs) == 1:
            return rigs[0]
        if not rigs:
            return complain(verb, "no run of this user is under way")
        return complain(verb, f"{len(rigs)} runs are under way; say which: {', '.join(str(r.folder) for r in rigs)}")
    folder = run.resolve()
    for rig in rigs:
        if rig.folder == folder:
            return rig
    if not (folder / "config.yaml").exists():
        return complain(verb, f"'{run}' is no run folder")
    return complain(verb, f"'{run}' is not under way; it {outcome(folder)}")


def complain(verb: str, message: str, code: int = ExitCode.CONFIGURATION) -> int:
    """Print one line on what is wrong; ``tools.load`` has the same, but takes a second to import: too long here."""
    sys.stderr.write(f"onrig {verb}: {message}\n")
    return code


def outcome(folder: Path) -> str:
    """How a run ended, in a few words."""
    summary: dict[str, object] = {}
    with contextlib.suppress(OSError, msgspec.DecodeError):
        summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=dict[str, object])
    reason = summary.get("exit_reason")
    return f"ended: {reason}" if reason else "was killed before it could say how it ended"
