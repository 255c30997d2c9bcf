"""Processes that show a run: they have low priority, run off the loop's CPU, and are ended by a signal."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Protocol

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.control.realtime import leave_cpu
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.report import report

_NICE: Final = 10


class View(NamedTuple):
    """View of a run: an option of `onrig run` and a verb of the same name."""

    name: str
    title: str
    module: str
    """Module of the process, run as ``python -m MODULE RUN_FOLDER ADDRESS``; ADDRESS is the option's value or ``-``."""


PAGE: Final = View("web", "live view", "onrig.tools.web.process")
FOXGLOVE: Final = View("foxglove", "Foxglove", "onrig.tools.foxglove.process")


class Server(Protocol):
    """Server of one run, as a context manager."""

    url: str

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def work(self, stop_fd: int) -> None:
        """Serve until the descriptor ``stop_fd`` becomes readable."""


def serve(view: View, folder: Path, open_server: Callable[[], Server], on_ready: Callable[[str], object]) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit code.

    ``open_server`` may raise ConfigError, ValueError (malformed address) or OSError (address in use); ``on_ready``
    receives the URL.
    """
    # An Event would deadlock, because a handler that interrupts its wait needs the lock that the wait holds. The
    # interpreter itself writes to the pipe, so a signal that arrives just before the read blocks is not lost.
    stop_fd, wakeup_fd = os.pipe()
    os.set_blocking(wakeup_fd, False)
    signal.set_wakeup_fd(wakeup_fd)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda signum, frame: None)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(ConfigError):
        config = load_resolved(folder / "config.yaml")
        if not config.lockstep:
            leave_cpu(config.realtime)
    try:
        server = open_server()
    except (ConfigError, ValueError) as error:
        report(view.name, "error", str(error))
        return ExitCode.CONFIGURATION
    except OSError as error:
        report(view.name, "error", str(error))
        return ExitCode.PREFLIGHT
    with server:
        on_ready(server.url)
        server.work(stop_fd)
    return ExitCode.OK
