"""``python -m onrig.tools.service.halt PID``: make a run's actuators safe, even if its supervisor hangs.

systemd calls this command before it signals the supervisor. The command requests a fade-out, as Ctrl-C does, and then
an immediate stop if the run does not react.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.running import RemoteControl, Running, SegmentError, SegmentMissing, running_rigs

FADE_TIMEOUT_S: Final = 12.0
"""Timeout for a fade-out: the longest configurable one plus a margin."""
_IMMEDIATE_STOP_TIMEOUT_S: Final = 2.0
_POLL_INTERVAL_S: Final = 0.005


def halt(remote: RemoteControl, now_s: Callable[[], float], sleep: Callable[[float], None]) -> bool:
    """Request a fade-out, then an immediate stop, and return whether a frame from the device confirms safe outputs.

    The result is also True if the loop has ended without having used the actuators. ``now_s`` is the monotonic clock of
    the frames' timestamps.
    """
    remote.stop(1)
    request_ns = round(now_s() * 1e9)  # earlier frames do not show the current state
    for level, wait_s in ((1, FADE_TIMEOUT_S), (2, _IMMEDIATE_STOP_TIMEOUT_S)):
        remote.stop(level)
        deadline_s = now_s() + wait_s
        while now_s() < deadline_s:
            actuators = remote.actuators
            if actuators.is_confirmed_safe(request_ns):
                return True
            if actuators.loop_has_ended:
                return actuators.is_unused
            sleep(_POLL_INTERVAL_S)
    return False


def find_run(pid: int, rigs: list[Running]) -> Running | None:
    """Return the run whose supervisor has this pid, if any."""
    return next((rig for rig in rigs if rig.pid == pid), None)


def main(arguments: list[str]) -> int:
    """Halt the run, and return 0 if there is no run or if its actuators are unused or confirmed to be safe."""
    if len(arguments) != 1 or not arguments[0].isdigit():
        return 0  # systemd reports no main process: there is nothing to halt
    run = find_run(int(arguments[0]), running_rigs())
    if run is None:
        return 0
    try:
        with RemoteControl(run) as remote:
            if halt(remote, time.monotonic, time.sleep):
                return ExitCode.OK
            message = remote.actuators.unconfirmed_message(time.monotonic_ns(), time.time())
            sys.stderr.write(f"{run.folder}: actuators {message}; inspect the rig\n")
            return ExitCode.HARDWARE
    except SegmentMissing:
        return 0  # the run has just ended
    except SegmentError as error:  # for example, a run of a different version, which systemd's signal stops
        sys.stderr.write(f"{run.folder}: {error}\n")
        return ExitCode.HARDWARE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
