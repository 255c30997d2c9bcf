"""Process that runs a rig for a trainer: ``python -m onrig.tools.trainers.host RUN_FOLDER [PORT]``.

It supervises the run as `onrig run` does, in its own process and session, isolated from the trainer's interpreter lock
and signals. When the trainer ends or crashes, the run stops immediately.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import Final

from onrig.runtime.control.realtime import PARENT_VARIABLE, resolve_loop_cpu
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.folder_access import lock_folder
from onrig.runtime.run_state.report import Report, report
from onrig.runtime.supervise.requests import TRAINER, Request
from onrig.runtime.supervise.supervisor import Supervisor
from onrig.tools.load import sections

ENDED: Final = "ended"
"""Kind of the last report, which gives the reason for the end."""
_FORWARDED: Final = ("error", "warning", "fault")


class TrainerWatch:
    """Monitor of the trainer's process, which requests an immediate stop when the trainer has ended."""

    name: str = TRAINER

    def __init__(self, pid: int) -> None:
        """Watch the trainer's process ``pid``. Raises OSError if it has ended."""
        self._fd = os.pidfd_open(pid)
        self.is_listening = True

    def fileno(self) -> int:
        """Return the pidfd, which becomes readable when the trainer has ended."""
        return self._fd

    def requests(self) -> list[Request]:
        """Return STOP_NOW once after the trainer has ended, otherwise nothing."""
        if not (self.is_listening and select.select((self._fd,), (), (), 0)[0]):
            return []
        self.is_listening = False
        return [Request.STOP_NOW]


def _forward(message: Report) -> None:
    if message.kind in _FORWARDED:
        report(message.source, message.kind, message.message)


def main(arguments: list[str]) -> int:
    """Supervise the run to its end, and return the exit code."""
    folder, port = Path(arguments[0]), arguments[1] if len(arguments) > 1 else None
    trainer_pid = int(os.environ.get(PARENT_VARIABLE, os.getppid()))
    try:
        watch = TrainerWatch(trainer_pid)
    except OSError:
        return 0
    os.environ.pop(PARENT_VARIABLE, None)
    resolve_loop_cpu()
    lock = lock_folder(folder)
    config = load_resolved(folder / "config.yaml", sections)
    code, reason = Supervisor(config, folder, port, _forward, watch).run()
    report("run", ENDED, reason, code=code)
    os.close(lock)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
