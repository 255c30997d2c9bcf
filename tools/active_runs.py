"""Selecting, stopping and resuming this machine's active runs from another terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import read_fields
from onrig.runtime.run_state.actuators import SAFE_TEXT, UNCONFIRMED_TEXT, UNUSED_TEXT, Actuators
from onrig.runtime.run_state.running import (
    RemoteControl,
    Running,
    SegmentError,
    SegmentMissing,
    running_rigs,
    stop_by_signal,
)
from onrig.runtime.run_state.states import State
from onrig.tools.terminal import complain

_CONFIRM_TIMEOUT_S: Final = 15.0
"""Time without confirmation after which the loop is assumed to hang; longer than any device's lease."""
_INTERIM_REPORT_DELAY_S: Final = 2.0
"""Time without confirmation after which the interim state is printed; a fade-out is much shorter."""
_END_TIMEOUT_S: Final = 60.0
"""Shutdown timeout, long enough to write the last checkpoint of a large memory."""
_POLL_INTERVAL_S: Final = 0.001
_RESUME_TIMEOUT_S: Final = 5.0
_MIN_RUNNING_S: Final = 0.5
"""Time that a run must keep running after a resume to count as resumed. A persistent cause, such as a pressed e-stop,
stops it again within a few periods.
"""
_WAITING_STATES: Final = (State.PAUSED, State.FAULT)
_RESUME_POLL_INTERVAL_S: Final = 0.005


def stop(run: Path | None, *, now: bool) -> int:
    """Stop a run, wait until it has ended, and return the exit code. The actuators are made safe first, even if the
    supervisor hangs.
    """
    target = choose_run("stop", run, anywhere=True)  # the output names the run, wherever it is
    if isinstance(target, int):
        return target
    request_ns = time.monotonic_ns()
    try:
        end_fd = os.pidfd_open(target.pid)
    except OSError:
        end_fd = -1
    actuators: Actuators | None
    try:
        with RemoteControl(target) as remote:
            remote.stop(2 if now else 1)
            request_ns = time.monotonic_ns()  # only later frames show the effect of the request
            actuators = _await_confirmation(remote, end_fd, request_ns, target.folder)
    except SegmentMissing:
        actuators = None  # the run has just ended; its summary records the state
    except SegmentError as error:  # for example, a run started with a different version of Onrig
        actuators = None
        print(f"{target.folder}: {error}; requesting the stop with a signal instead", flush=True)
        stop_by_signal(target, 2 if now else 1)
    is_confirmed = actuators is not None and actuators.is_confirmed_safe(request_ns)
    if actuators is not None and is_confirmed:
        print(
            f"{target.folder}: {_describe_confirmation(actuators, request_ns, 'at once' if now else 'faded out')}",
            flush=True,
        )
    if end_fd < 0 or not select.select((end_fd,), (), (), _END_TIMEOUT_S)[0]:
        return complain("stop", f"{target.folder}: process {target.pid} has not ended; see `ps`", ExitCode.HARDWARE)
    print(
        f"{target.folder}: {describe_outcome(target.folder)}, {(time.monotonic_ns() - request_ns) / 1e9:.1f} s in all"
    )
    if is_confirmed:
        return ExitCode.OK
    if actuators is not None and actuators.is_unused:
        print(f"{target.folder}: no command was sent to the device")
        return ExitCode.OK
    if actuators is not None:
        actuators_text = actuators.unconfirmed_message(time.monotonic_ns(), time.time())
    else:
        actuators_text = str(read_fields(target.folder / "summary.json").get("actuators") or UNCONFIRMED_TEXT)
        if actuators_text in (SAFE_TEXT, UNUSED_TEXT):
            return ExitCode.OK
    return complain("stop", f"{target.folder}: actuators {actuators_text}; inspect the rig", ExitCode.HARDWARE)


def _await_confirmation(remote: RemoteControl, end_fd: int, request_ns: int, folder: Path) -> Actuators:
    """Wait until a frame reports safe actuators, the run has ended or the timeout has expired, and return the
    actuators' state.
    """
    interim_ns = request_ns + round(_INTERIM_REPORT_DELAY_S * 1e9)
    while True:
        has_ended = end_fd < 0 or bool(select.select((end_fd,), (), (), 0)[0])
        actuators = remote.actuators  # read after the check, so that a run that has ended has left its final state
        now_ns = time.monotonic_ns()
        if actuators.is_confirmed_safe(request_ns) or has_ended or now_ns - request_ns > _CONFIRM_TIMEOUT_S * 1e9:
            return actuators
        if now_ns > interim_ns:
            interim_ns = sys.maxsize
            print(f"{folder}: actuators {actuators.unconfirmed_message(now_ns, time.time())}", flush=True)
        time.sleep(_POLL_INTERVAL_S)


def _describe_confirmation(actuators: Actuators, request_ns: int, stop_type: str) -> str:
    """Describe how quickly a state frame confirmed that the actuators are safe."""
    if actuators.since_ns <= request_ns:
        return "the device was already disarmed, as its state frames confirm"
    delay_ms = (actuators.since_ns - request_ns) / 1e6
    return f"actuators safe after {delay_ms:.0f} ms ({stop_type}), confirmed by a state frame"


def choose_run(verb: str, run: Path | None, *, anywhere: bool) -> Running | int:
    """Return the selected run; on failure, print an error message and return the exit code.

    If ``run`` is None, the only active run is selected: among all runs of this user if ``anywhere``, otherwise among
    those under the working directory, so that no unrelated rig is selected by accident.
    """
    rigs = running_rigs()
    if run is None:
        candidates = rigs if anywhere else [rig for rig in rigs if rig.folder.is_relative_to(Path.cwd())]
        if len(candidates) == 1:
            return candidates[0]
        if not rigs:
            return complain(verb, "no run of this user is active")
        problem = f"{len(candidates)} runs are active" if candidates else f"no run under '{Path.cwd()}' is active"
        return complain(verb, f"{problem}; name one of {', '.join(str(rig.folder) for rig in candidates or rigs)}")
    folder = run.resolve()
    for rig in rigs:
        if rig.folder == folder:
            return rig
    if not (folder / "config.yaml").exists():
        return complain(verb, f"'{run}' is not a run folder")
    return complain(verb, f"'{run}' is not active; it {describe_outcome(folder)}")


def describe_outcome(folder: Path) -> str:
    """Describe briefly how a run ended."""
    summary = read_fields(folder / "summary.json")
    reason, actuators = summary.get("exit_reason"), str(summary.get("actuators", ""))
    warning = f"; actuators {actuators}" if actuators.startswith(UNCONFIRMED_TEXT) else ""
    return f"ended: {reason}{warning}" if reason else "was killed before it wrote its summary"


def resume(run: Path | None, *, confirmed: bool) -> int:
    """Resume a run and return the exit code. Without a ``run``, ask for confirmation unless ``confirmed``."""
    target = choose_run("resume", run, anywhere=False)
    if isinstance(target, int):
        return target
    target.trust_files()
    rig = _rig_name(target.folder)
    if run is None and not confirmed:
        if not sys.stdin.isatty():
            return complain("resume", f"{target.folder}: {rig} would move again; confirm with --yes, or name the run")
        print(f"{target.folder}: {rig} will move again.  Continue? (yes) ", end="", flush=True)
        if sys.stdin.readline().strip().lower() != "yes":
            return complain("resume", "not confirmed; nothing was resumed")
    try:
        with RemoteControl(target) as remote:
            initial_state = State(remote.state)
            if initial_state is State.DISCONNECTED:
                return complain("resume", f"{target.folder}: its device is not connected; plug it in first")
            if initial_state not in _WAITING_STATES:
                return complain(
                    "resume", f"{target.folder}: nothing to resume; the run is {initial_state.name.lower()}"
                )
            remote.resume()
            deadline_s = time.monotonic() + _RESUME_TIMEOUT_S
            while remote.state == initial_state and time.monotonic() < deadline_s:
                time.sleep(_RESUME_POLL_INTERVAL_S)
            settle_deadline_s = time.monotonic() + _MIN_RUNNING_S
            while remote.state != initial_state and time.monotonic() < settle_deadline_s:
                time.sleep(_RESUME_POLL_INTERVAL_S)
            if remote.state == initial_state:
                return complain(
                    "resume",
                    f"{target.folder}: still {initial_state.name.lower()}; the cause persists (see the run's terminal)",
                    ExitCode.HARDWARE,
                )
    except SegmentMissing:
        return complain("resume", f"{target.folder}: the run has just ended")
    except SegmentError as error:
        return complain(
            "resume", f"{error}; use the version of Onrig with which the run was started", ExitCode.PREFLIGHT
        )
    print(f"{target.folder}: {rig} resumed")
    return ExitCode.OK


def _rig_name(folder: Path) -> str:
    """Return ``rig 'NAME'`` for a run, or ``its rig`` if its configuration cannot be read."""
    from onrig.runtime.config.problem import ConfigError
    from onrig.runtime.run_loading import load_resolved

    try:
        return f"rig '{load_resolved(folder / 'config.yaml').rig.name}'"
    except ConfigError:
        return "its rig"
