"""``python -m onrig.tools.service.halt PID``: makes a run's actuators safe, even if its supervisor hangs.

systemd calls it before it signals the supervisor.  It fades out as Ctrl-C does, and stops at once what does not heed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.running import Remote, Running, SegmentError, SegmentGone, running_rigs

FADE_S: Final = 12.0
"""The longest fade that a configuration may ask for, and some room."""
_AT_ONCE_S: Final = 2.0
_LOOK_S: Final = 0.005


def halt(remote: Remote, now_s: Callable[[], float], sleep: Callable[[float], None]) -> bool:
    """Ask for a fade, then for a stop at once; whether the device's own frame then shows its outputs safe.

    ``now_s`` is the monotonic clock that the frames are stamped with.
    """
    remote.stop(1)
    asked_ns = round(now_s() * 1e9)  # what a frame showed before may have changed since
    for level, wait_s in ((1, FADE_S), (2, _AT_ONCE_S)):
        remote.stop(level)
        limit = now_s() + wait_s
        while now_s() < limit:
            actuators = remote.actuators
            if actuators.shown_safe(asked_ns):
                return True
            if actuators.ended:
                return actuators.untouched
            sleep(_LOOK_S)
    return False


def find(pid: int, rigs: list[Running]) -> Running | None:
    """The run whose supervisor has this pid."""
    return next((rig for rig in rigs if rig.pid == pid), None)


def main(arguments: list[str]) -> int:
    """Halt the run; returns 0 when there is none, or when a frame of its device shows its outputs safe."""
    if len(arguments) != 1 or not arguments[0].isdigit():
        return 0  # systemd knows of no main process: there is nothing to halt
    found = find(int(arguments[0]), running_rigs())
    if found is None:
        return 0
    try:
        with Remote(found) as remote:
            if halt(remote, time.monotonic, time.sleep):
                return ExitCode.OK
            doubt = remote.actuators.unconfirmed(time.monotonic_ns(), time.time())
            sys.stderr.write(f"{found.folder}: actuators {doubt}. Look at the rig\n")
            return ExitCode.HARDWARE
    except SegmentGone:
        return 0  # it has just ended
    except SegmentError as error:  # of another version, say: systemd's signal stops it
        sys.stderr.write(f"{found.folder}: {error}\n")
        return ExitCode.HARDWARE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
