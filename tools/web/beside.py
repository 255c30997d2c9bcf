"""The page's process beside a run: started before it, ended after it, missed by nobody if it dies."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from runtime.exit_codes import ExitCode
from runtime.supervise.child import Child

_START_S: Final = 20.0
_END_S: Final = 3.0


class NoView(Exception):
    """The page cannot be served; ``code`` is the exit code that goes with it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def live_view(folder: Path, address: str) -> Iterator[str]:
    """Serve the page of the run in ``folder`` while the context lasts; gives its URL.  Raises NoView."""
    child = Child("web", "tools.web.process", [str(folder), address or "-"], folder / "stderr.log")
    try:
        yield _await_url(child, folder)
    finally:
        child.end(_END_S)
        child.close()


def _await_url(child: Child, folder: Path) -> str:
    limit = time.monotonic() + _START_S
    while True:
        code = child.poll()
        for report in child.reports():
            if report.kind == "ready":
                return report.message
            if report.kind == "error":
                raise NoView(f"--web: {report.message}", child.end(_END_S, ask=False) or ExitCode.INTERNAL)
        if code is not None:
            raise NoView(f"--web: its process ended with code {code}; see {folder / 'stderr.log'}", ExitCode.INTERNAL)
        if time.monotonic() > limit:
            raise NoView(f"--web: no page within {_START_S:g} s", ExitCode.INTERNAL)
        select.select((child,), (), (), 0.1)
