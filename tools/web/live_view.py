"""Process of a view alongside a run: it starts before the run, is restarted if it dies, and ends after the run."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.supervise.child import Child
from onrig.runtime.supervise.revival import RestartHistory
from onrig.tools.web.guard import TOKEN, new_token, parse_address
from onrig.tools.web.view import PAGE, View

_START_S: Final = 60.0
_END_S: Final = 3.0
_POLL_S: Final = 0.25


class ViewError(Exception):
    """Raised if the run cannot be shown; ``code`` is the exit code of `onrig run`."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def live_view(folder: Path, address: str, view: View = PAGE) -> Iterator[str]:
    """Show the run in ``folder`` for the duration of the context, and yield the URL. Raises ViewError.

    A process that dies is restarted at the same URL, so that the STOP button of an open page works again.
    """
    process = _ViewProcess(view, folder, address)
    try:
        url = process.await_url()
        with process.supervised():
            yield url
    finally:
        process.end()


class _ViewProcess:
    """Process of a view; restarted processes keep its address and token."""

    def __init__(self, view: View, folder: Path, address: str) -> None:
        self._view = view
        self._folder, self._address, self._log = folder, address, folder / "stderr.log"
        self._token = new_token()
        self._restarts = RestartHistory()
        self._child = self._start()

    def _start(self) -> Child:
        arguments = [str(self._folder), self._address or "-"]
        return Child(self._view.name, self._view.module, arguments, self._log, {TOKEN: self._token})

    def await_url(self) -> str:
        """Wait until the first process serves, and return the URL, whose port restarted processes keep."""
        url = self._first_report()
        self._address = f"[{parse_address(self._address).host}]:{urlsplit(url).port}"
        return url

    @contextlib.contextmanager
    def supervised(self) -> Iterator[None]:
        """Restart the process whenever it dies in this context."""
        stop_fd, stop_write_fd = os.pipe()
        # PR_SET_PDEATHSIG ends a child when the thread that started it ends, so the thread must outlive the view.
        thread = threading.Thread(target=self._watch, args=(stop_fd,), name="live view", daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.write(stop_write_fd, b".")
            thread.join()
            os.close(stop_fd)
            os.close(stop_write_fd)

    def _watch(self, stop_fd: int) -> None:
        while not _readable(stop_fd, _POLL_S):
            for _ in self._child.reports():
                pass  # reading keeps the pipe from filling up, which would block the child
            code = self._child.poll()
            if code is None:
                continue
            pause_s = self._restarts.next_delay_s(time.monotonic() - self._child.started_s)
            self._log_exit(
                code, "restarted" if pause_s is not None else f"not restarted again; try onrig {self._view.name}"
            )
            if pause_s is None or _readable(stop_fd, pause_s):
                break
            self._child.close()
            self._child = self._start()
        self.end()

    def _log_exit(self, code: int, consequence: str) -> None:
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            print(f"{self._view.name}: the process of the view ended with code {code}; {consequence}", file=log)

    def end(self) -> None:
        """End the process if it is still running."""
        self._child.end(_END_S)
        self._child.close()

    def _first_report(self) -> str:
        option, child, deadline_s = f"--{self._view.name}", self._child, time.monotonic() + _START_S
        while True:
            code = child.poll()
            for report in child.reports():
                if report.kind == "ready":
                    return report.message
                if report.kind == "error":
                    code = child.end(_START_S, send_sigterm=False) or ExitCode.INTERNAL  # it is ending by itself
                    raise ViewError(f"{option}: {report.message}", code)
            if code is not None:
                log = self._folder / "stderr.log"
                raise ViewError(
                    f"{option}: the process of the view ended with code {code}; see {log}", ExitCode.INTERNAL
                )
            if time.monotonic() > deadline_s:
                raise ViewError(f"{option}: no answer within {_START_S:g} s", ExitCode.INTERNAL)
            select.select((child,), (), (), 0.1)


def _readable(descriptor: int, within_s: float) -> bool:
    return bool(select.select((descriptor,), (), (), within_s)[0])
