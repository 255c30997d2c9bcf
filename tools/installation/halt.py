"""``python -m tools.installation.halt PID``: makes a run's actuators safe, past a supervisor that hangs.

systemd calls it before it signals the supervisor.  It fades out as Ctrl-C does, and stops at once what does not heed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from runtime.supervise.running import Remote, Running, SegmentError, running_rigs
from runtime.supervise.states import State

_MOVING: Final = (State.RESETTING, State.RUNNING, State.FALLBACK, State.FADING)
FADE_S: Final = 12.0
"""The longest fade that a configuration may ask for, and some room."""
_AT_ONCE_S: Final = 2.0
_LOOK_S: Final = 0.005


def halt(remote: Remote, now_s: Callable[[], float], sleep: Callable[[float], None]) -> bool:
    """Ask for a fade, then for a stop at once; whether the loop came to a state in which nothing moves."""
    for level, wait_s in ((1, FADE_S), (2, _AT_ONCE_S)):
        remote.stop(level)
        limit = now_s() + wait_s
        while now_s() < limit:
            if remote.state not in _MOVING:
                return True
            sleep(_LOOK_S)
    return False


def find(pid: int, rigs: list[Running]) -> Running | None:
    """The run whose supervisor has this pid."""
    return next((rig for rig in rigs if rig.pid == pid), None)


def main(arguments: list[str]) -> int:
    """Halt the run; returns 0 when nothing moves (any more)."""
    if len(arguments) != 1 or not arguments[0].isdigit():
        return 0  # systemd knows of no main process: there is nothing to halt
    found = find(int(arguments[0]), running_rigs())
    if found is None:
        return 0
    try:
        with Remote(found) as remote:
            return 0 if halt(remote, time.monotonic, time.sleep) else 4
    except SegmentError:
        return 0  # it ended in this moment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
