"""The learner process: ``python -m onrig.learner.main CONFIG ENDPOINT [--state FOLDER] [--start FILE]``.

It mirrors the rig's memory, trains, and offers policies.  It may stop and restart at any time: the rig owns the
experiences, and the rest of the state (networks, optimisers) is saved in FOLDER.  While another learner pushes, it
mirrors the memory and waits for its turn.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

from onrig.learner.attachment import Connection, LearnerMismatchError, LinkVersionError, MemoryChanged
from onrig.learner.process import NAME, LearnerProcess
from onrig.learner.states import StatesConflictError
from onrig.learner.tape.executors import ExecutorError, executor_for
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.control.realtime import die_with_parent, leave_cpu
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.client import LinkClosed, RequestRejected
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_started
from onrig.runtime.run_state.report import report

_NICE: Final = 10


def learn(config: RunConfig, connection: Connection, state: Path | None, initial_networks: Path | None = None) -> int:
    """Learn for the connected rig until its run ends, starting from ``initial_networks`` if given; return the exit
    code."""
    stop_flag = [False]

    def request_stop(signum: int, frame: object) -> None:
        stop_flag[0] = True

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, request_stop)
    if state is not None:
        state.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as folders:  # created only if needed: a killed process would leave it behind

        def temporary_folder() -> Path:
            return Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="onrig-learner-")))

        folder = temporary_folder() if state is None else state
        while True:
            process = LearnerProcess(config, connection, folder, stop_flag, initial_networks)
            try:
                process.run()
            except (LinkClosed, LinkVersionError) as error:
                process.save()
                if not stop_flag[0]:
                    report(NAME, "error", str(error))
                    return ExitCode.HARDWARE
                return ExitCode.OK
            except LearnerMismatchError as error:
                report(NAME, "error", str(error))
                return ExitCode.CONFIGURATION
            except StatesConflictError as foreign:
                if state is not None:
                    report(NAME, "error", str(foreign))
                    return ExitCode.CONFIGURATION
                folder = temporary_folder()  # the state folder belongs to another run at the same address
            except MemoryChanged as change:
                # The replay process was replaced: mirror the new one's memory, and keep the networks.
                process.save()
                report(NAME, "warning", f"{change}; mirroring from the start")
            except RequestRejected as error:
                if not process.result_accepted:
                    report(NAME, "error", str(error))
                    return ExitCode.INTERNAL
                process.save()
                report(NAME, "warning", f"{error}; reattaching")
            else:
                return ExitCode.OK
            finally:
                process.close()


def main(arguments: list[str]) -> int:
    """Parse the arguments and learn; outside lockstep, run at a lower priority than the control loop."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="learner")
    parser.add_argument("config", type=Path)
    parser.add_argument("endpoint")
    parser.add_argument("--state", type=Path)
    parser.add_argument("--start", type=Path)
    args = parser.parse_args(arguments)
    try:
        config = load_started(args.config)
        executor_for("float32")
    except (ConfigError, ExecutorError) as error:
        report(NAME, "error", str(error))
        return ExitCode.CONFIGURATION
    if not config.lockstep:
        # Kernel threads in the ordinary scheduling class carry the control loop's bytes to and from the device and
        # need precedence.  (SCHED_IDLE is worse: at 500 Hz 55 to 91 of 2000 ticks were missed, compared with 2 to 15.)
        os.nice(_NICE)
        leave_cpu(config.realtime)
    return learn(config, Connection(args.endpoint), args.state, args.start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
