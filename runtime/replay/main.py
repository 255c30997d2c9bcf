"""The replay process (``onrig.sim.replay`` starts it).

It drains the ring, maintains the memory and the run folder, serves learners and admits policies.  If it dies, the loop
keeps running under its last policy, and a new replay process takes over the same ring.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from onrig.runtime.control.realtime import PARENT_VARIABLE, die_with_parent, leave_cpu
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.keys import KeyFileError
from onrig.runtime.link.server import CannotListen
from onrig.runtime.log.sink import LogMissing
from onrig.runtime.memory.transitions import Resynthesiser
from onrig.runtime.replay.checkpoint import CheckpointError
from onrig.runtime.replay.growth import MemoryLimitError
from onrig.runtime.replay.process import NAME, ReplayProcess, RestartFromCheckpoint
from onrig.runtime.replay.promise_watch import StepCheck
from onrig.runtime.rewards import TermFailed
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_started
from onrig.runtime.run_state.folder_access import FolderBusy, claim
from onrig.runtime.run_state.report import report

_CLAIM_TIMEOUT_S: Final = 20.0
"""How long to wait for a hung predecessor to release the folder; after that, this process refuses to start."""

_LEARNER_WARNING_S: Final = 10.0
"""How long a rig without a local learner waits for one to connect before it reports its address in a warning."""


def _describe_resumption(process: ReplayProcess) -> str:
    """Return a line on where a resumed run starts, and report a warning if it has no admitted policy."""
    assert process.recovery is not None
    if process.policy:
        return f"{process.recovery.summary_line}, under policy {process.policy}"
    warning = "no policy was admitted before the run ended: the learner's first policy, possibly untrained, will act"
    report(NAME, "warning", warning)
    return process.recovery.summary_line


def main(
    arguments: list[str],
    resynthesiser_for: Callable[[RunConfig, Path], Resynthesiser | None] = lambda config, folder: None,
    step_check_for: Callable[[RunConfig], StepCheck | None] = lambda config: None,
) -> int:
    """Run the replay process until the loop has ended, or until SIGTERM.

    ``resynthesiser_for`` takes the configuration and the run folder, and returns the object that replaces experiences
    with synthetic ones.  ``step_check_for`` takes the configuration, and returns the object that compares the rig's
    steps with the plants that its promise covers.  Both return None if the run does not need the object.
    """
    die_with_parent()
    run_folder, shm = Path(arguments[0]), Path(arguments[1])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda signum, frame: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = load_started(run_folder / "config.yaml")
    if not config.lockstep:
        leave_cpu(config.realtime)
    resynthesiser, check = resynthesiser_for(config, run_folder), step_check_for(config)
    try:
        claim(run_folder, _CLAIM_TIMEOUT_S)
        process = ReplayProcess(config, run_folder, shm, resynthesiser, check, resumes="--resume" in arguments[2:])
    except (CheckpointError, FolderBusy, TermFailed) as error:
        return _report_refusal(str(error), ExitCode.CONFIGURATION)
    except (LogMissing, KeyFileError) as error:
        return _report_refusal(str(error), ExitCode.PREFLIGHT)
    except CannotListen as error:
        return _report_refusal(str(error), ExitCode.HARDWARE)
    except OSError as error:  # such as no file descriptors, a full disk or no permission
        return _report_refusal(f"{error.filename or run_folder}: {error.strerror or error}", ExitCode.PREFLIGHT)
    if (reason := _initial_policy_refusal(process, config)) is not None:
        process.finish()
        return _report_refusal(f"{config.policy}: refused: {reason}", ExitCode.CONFIGURATION)
    addresses = " and ".join(process.endpoints)
    is_resumed = process.recovery is not None and not process.took_over
    report(NAME, "ready", f"{addresses}; {_describe_resumption(process)}" if is_resumed else addresses)
    return _serve_loop(process, config, stop)


def _report_refusal(reason: str, code: ExitCode) -> ExitCode:
    report(NAME, "error", reason)
    return code


def _initial_policy_refusal(process: ReplayProcess, config: RunConfig) -> str | None:
    """Admit the policy that a new run starts with; return the reason if it is refused."""
    if config.policy is None or not process.starts_run or process.policy:
        return None
    try:
        return process.admit_file(Path(config.policy))
    except OSError as error:
        return error.strerror or str(error)


def _serve_loop(process: ReplayProcess, config: RunConfig, stop: threading.Event) -> int:
    """Run the work cycle until the loop has ended or ``stop`` is set; return the exit code."""
    expects_learner = config.link.listen is not None and not config.local_learner
    no_learner_since_s = time.monotonic() if expects_learner else math.inf
    try:
        while not stop.is_set() and not process.is_finished:
            if not process.run_once():
                process.idle()
            if time.monotonic() - no_learner_since_s > _LEARNER_WARNING_S:
                no_learner_since_s = math.inf
                if not process.has_heard_learner:
                    addresses = " and ".join(process.endpoints)
                    message = f"no learner has connected in {_LEARNER_WARNING_S:g} s; this rig listens at {addresses}"
                    report(NAME, "warning", message)
        while process.run_once():
            pass
    except RestartFromCheckpoint:
        # In lockstep, a process that starts afresh from the checkpoint repeats everything after it.
        process.abandon()
        os.execv(sys.executable, sys.orig_argv)
    except TermFailed as error:  # earlier records have been processed; a successor would fail at the same one
        process.abandon()
        return _report_refusal(str(error), ExitCode.CONFIGURATION)
    except MemoryLimitError as error:  # exit before the machine's memory is exhausted; a new process takes over
        report(NAME, "warning", str(error))
        return ExitCode.INTERNAL
    if stop.is_set() and not process.has_loop_ended and not _is_orphaned():
        process.abandon()  # this process was stopped, but the run continues
        return ExitCode.INTERRUPTED
    process.finish()
    return ExitCode.OK


def _is_orphaned() -> bool:
    """Whether the supervisor has ended, so that no successor would be started."""
    return os.environ.get(PARENT_VARIABLE, "") != str(os.getppid())
