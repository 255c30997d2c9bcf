"""A process that shows a run to others: niced, off the loop's CPU, and ended by a signal."""

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
    """One way to show a run: an option of `onrig run` and a verb of that name."""

    name: str
    title: str
    module: str
    """Its process: ``python -m MODULE RUN_FOLDER ADDRESS``; ADDRESS as for the option, or ``-``."""


PAGE: Final = View("web", "live view", "onrig.tools.web.process")
FOXGLOVE: Final = View("foxglove", "Foxglove", "onrig.tools.foxglove.process")


class Server(Protocol):
    """Server of one run; a context manager."""

    url: str

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def work(self, asked: int) -> None:
        """Serve until the descriptor ``asked`` becomes readable."""


def serve(view: View, folder: Path, opened: Callable[[], Server], tell: Callable[[str], object]) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit code.

    ``opened`` raises ConfigError, ValueError (the address) or OSError (taken); ``tell`` receives the URL.
    """
    # Not an Event: a handler that interrupts the wait for one would wait for its lock for ever.  The interpreter itself
    # writes into the pipe: a handler in Python would not run for a signal that comes just before the read blocks.
    asked, ask = os.pipe()
    os.set_blocking(ask, False)
    signal.set_wakeup_fd(ask)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda signum, frame: None)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(ConfigError):
        config = load_resolved(folder / "config.yaml")
        if not config.lockstep:
            leave_cpu(config.realtime)
    try:
        server = opened()
    except (ConfigError, ValueError) as error:
        report(view.name, "error", str(error))
        return ExitCode.CONFIGURATION
    except OSError as error:
        report(view.name, "error", str(error))
        return ExitCode.PREFLIGHT
    with server:
        tell(server.url)
        server.work(asked)
    return ExitCode.OK
