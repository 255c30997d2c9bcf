"""``onrig resume``: lets a run go on that is paused, or that latched a fault which a person must re-arm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.running import Remote, SegmentError
from onrig.runtime.run_state.states import State
from onrig.tools.arguments import VerbParser
from onrig.tools.stop import choose, complain

_WAIT_S: Final = 5.0
_LOOK_S: Final = 0.005
_WAITING: Final = (State.PAUSED, State.FAULT)


def main(arguments: list[str]) -> int:
    """Resume a run; returns the exit code."""
    p = VerbParser(prog="onrig resume", description=__doc__)
    p.add_argument("run", nargs="?", type=Path, metavar="RUN", help="run folder; default: the only run of this user")
    args = p.parse_args(arguments)
    found = choose("resume", args.run)
    if isinstance(found, int):
        return found
    try:
        with Remote(found) as remote:
            before = State(remote.state)
            if before not in _WAITING:
                return complain("resume", f"{found.folder}: it is {before.name.lower()}; there is nothing to resume")
            remote.resume()
            limit = time.monotonic() + _WAIT_S
            while remote.state == before and time.monotonic() < limit:
                time.sleep(_LOOK_S)
            if remote.state == before:
                return complain(
                    "resume",
                    f"{found.folder}: still {before.name.lower()}; the cause is not gone yet (see its terminal)",
                    ExitCode.HARDWARE,
                )
    except SegmentError:
        return complain("resume", f"{found.folder}: it has ended in this moment")
    print(f"{found.folder}: goes on")
    return ExitCode.OK
