"""Active runs of this machine: selection, stop and resumption from another terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import read_fields
from onrig.runtime.run_state.actuators import SAFE, UNCONFIRMED, UNTOUCHED, Actuators
from onrig.runtime.run_state.running import Remote, Running, SegmentError, SegmentMissing, running_rigs, stop_by_signal
from onrig.runtime.run_state.states import State
from onrig.tools.terminal import complain

_CONFIRM_TIMEOUT_S: Final = 15.0
"""Time without confirmation after which the loop counts as hung; the device's lease has long expired by then."""
_NOTICE_S: Final = 2.0
"""Time without confirmation after which the interim state is printed; a fade takes far less."""
_END_TIMEOUT_S: Final = 60.0
"""Shutdown timeout; the last checkpoint of a large memory takes a while."""
_POLL_S: Final = 0.001
_RESUME_S: Final = 5.0
_SETTLED_S: Final = 0.5
"""Time after which a resumed run counts as running: a persistent cause, such as a pressed e-stop, stops it within a few
periods."""
_WAITING: Final = (State.PAUSED, State.FAULT)
_RESUME_POLL_S: Final = 0.005


def stop(run: Path | None, *, now: bool) -> int:
    """Stop a run, actuators first, even if its supervisor hangs, and wait for its end; returns the exit code."""
    found = choose("stop", run, anywhere=True)  # the output of a stop must name its run
    if isinstance(found, int):
        return found
    asked_ns = time.monotonic_ns()
    try:
        ended = os.pidfd_open(found.pid)
    except OSError:
        ended = -1
    actuators: Actuators | None
    try:
        with Remote(found) as remote:
            remote.stop(2 if now else 1)
            asked_ns = time.monotonic_ns()  # earlier frames do not show the present state
            actuators = _await_confirmation(remote, ended, asked_ns, found.folder)
    except SegmentMissing:
        actuators = None  # it has just ended; its summary has the state
    except SegmentError as error:  # of another version, say
        actuators = None
        print(f"{found.folder}: {error}; requested by a signal instead", flush=True)
        stop_by_signal(found, 2 if now else 1)
    safe = actuators is not None and actuators.confirmed_safe(asked_ns)
    if actuators is not None and safe:
        print(
            f"{found.folder}: {_describe_confirmation(actuators, asked_ns, 'at once' if now else 'faded out')}",
            flush=True,
        )
    if ended < 0 or not select.select((ended,), (), (), _END_TIMEOUT_S)[0]:
        return complain("stop", f"{found.folder}: process {found.pid} has not ended; see `ps`", ExitCode.HARDWARE)
    print(f"{found.folder}: {outcome(found.folder)}, {(time.monotonic_ns() - asked_ns) / 1e9:.1f} s in all")
    if safe:
        return ExitCode.OK
    if actuators is not None and actuators.unused:
        print(f"{found.folder}: no command was sent to the device")
        return ExitCode.OK
    if actuators is not None:
        doubt = actuators.unconfirmed(time.monotonic_ns(), time.time())
    else:
        doubt = str(read_fields(found.folder / "summary.json").get("actuators") or UNCONFIRMED)
        if doubt in (SAFE, UNTOUCHED):
            return ExitCode.OK
    return complain("stop", f"{found.folder}: actuators {doubt}; check the rig", ExitCode.HARDWARE)


def _await_confirmation(remote: Remote, ended: int, asked_ns: int, folder: Path) -> Actuators:
    """Wait until a frame shows the actuators safe or the run's processes have ended; returns their state."""
    tell_ns = asked_ns + round(_NOTICE_S * 1e9)
    while True:
        gone = ended < 0 or bool(select.select((ended,), (), (), 0)[0])
        actuators = remote.actuators  # after the check: an ended run leaves its final state on the board
        now_ns = time.monotonic_ns()
        if actuators.confirmed_safe(asked_ns) or gone or now_ns - asked_ns > _CONFIRM_TIMEOUT_S * 1e9:
            return actuators
        if now_ns > tell_ns:
            tell_ns = sys.maxsize
            print(f"{folder}: actuators {actuators.unconfirmed(now_ns, time.time())}", flush=True)
        time.sleep(_POLL_S)


def _describe_confirmation(actuators: Actuators, asked_ns: int, how: str) -> str:
    """Describe the confirmation by a state frame, and its delay."""
    if actuators.since_ns <= asked_ns:
        return "device was already disarmed, confirmed by its state frames"
    return f"actuators safe after {(actuators.since_ns - asked_ns) / 1e6:.0f} ms ({how}), confirmed by a state frame"


def choose(verb: str, run: Path | None, *, anywhere: bool) -> Running | int:
    """Return the selected run, or the exit code after an error message.

    Without ``run``, the only active run is selected: any run of this user if ``anywhere``, else only one below the
    working directory, so that no unrelated rig is chosen by accident.
    """
    rigs = running_rigs()
    if run is None:
        found = rigs if anywhere else [rig for rig in rigs if rig.folder.is_relative_to(Path.cwd())]
        if len(found) == 1:
            return found[0]
        if not rigs:
            return complain(verb, "no run of this user is active")
        what = f"{len(found)} runs are active" if found else f"no run below '{Path.cwd()}' is active"
        return complain(verb, f"{what}; name one of {', '.join(str(rig.folder) for rig in found or rigs)}")
    folder = run.resolve()
    for rig in rigs:
        if rig.folder == folder:
            return rig
    if not (folder / "config.yaml").exists():
        return complain(verb, f"'{run}' is not a run folder")
    return complain(verb, f"'{run}' is not active; it {outcome(folder)}")


def outcome(folder: Path) -> str:
    """Describe briefly how a run ended."""
    summary = read_fields(folder / "summary.json")
    reason, actuators = summary.get("exit_reason"), str(summary.get("actuators", ""))
    doubt = f"; actuators {actuators}" if actuators.startswith(UNCONFIRMED) else ""
    return f"ended: {reason}{doubt}" if reason else "was killed before it wrote its summary"


def resume(run: Path | None, *, unasked: bool) -> int:
    """Resume a run, without confirmation if ``unasked``; returns the exit code."""
    found = choose("resume", run, anywhere=False)
    if isinstance(found, int):
        return found
    found.trust_files()
    rig = _rig_of(found.folder)
    if run is None and not unasked:
        if not sys.stdin.isatty():
            return complain("resume", f"{found.folder}: {rig} would move again; confirm with --yes, or name the run")
        print(f"{found.folder}: {rig} will move again.  Continue? (yes) ", end="", flush=True)
        if sys.stdin.readline().strip().lower() != "yes":
            return complain("resume", "not confirmed; nothing was resumed")
    try:
        with Remote(found) as remote:
            before = State(remote.state)
            if before is State.DISCONNECTED:
                return complain("resume", f"{found.folder}: its device is not connected; plug it in first")
            if before not in _WAITING:
                return complain("resume", f"{found.folder}: nothing to resume, the run is {before.name.lower()}")
            remote.resume()
            limit = time.monotonic() + _RESUME_S
            while remote.state == before and time.monotonic() < limit:
                time.sleep(_RESUME_POLL_S)
            settled = time.monotonic() + _SETTLED_S
            while remote.state != before and time.monotonic() < settled:
                time.sleep(_RESUME_POLL_S)
            if remote.state == before:
                return complain(
                    "resume",
                    f"{found.folder}: still {before.name.lower()}; the cause persists (see the run's terminal)",
                    ExitCode.HARDWARE,
                )
    except SegmentMissing:
        return complain("resume", f"{found.folder}: the run has just ended")
    except SegmentError as error:
        return complain("resume", f"{error}; resume it with the version of Onrig that runs it", ExitCode.PREFLIGHT)
    print(f"{found.folder}: {rig} resumed")
    return ExitCode.OK


def _rig_of(folder: Path) -> str:
    """Name of a run's rig, if its configuration can be read."""
    from onrig.runtime.config.problem import ConfigError
    from onrig.runtime.run_loading import load_resolved

    try:
        return f"rig '{load_resolved(folder / 'config.yaml').rig.name}'"
    except ConfigError:
        return "its rig"
