"""A view's process next to a run: started before it, restarted if it dies, ended after it."""

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
from onrig.runtime.supervise.revival import Restarts
from onrig.tools.web.bystander import PAGE, View
from onrig.tools.web.guard import TOKEN, new_token, parse_address

_START_S: Final = 60.0
_END_S: Final = 3.0
_LOOK_S: Final = 0.25


class ViewError(Exception):
    """The run cannot be shown; ``code`` is the exit code that goes with it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def live_view(folder: Path, address: str, view: View = PAGE) -> Iterator[str]:
    """Show the run in ``folder`` while the context lasts; yields the URL.  Raises ViewError.

    A view whose process dies comes back at the same URL: an open page has its STOP button there.
    """
    shown = _Shown(view, folder, address)
    try:
        url = shown.begin()
        with shown.watched():
            yield url
    finally:
        shown.end()


class _Shown:
    """The process of a view, and what it needs to be the same one again."""

    def __init__(self, view: View, folder: Path, address: str) -> None:
        self._view = view
        self._folder, self._address, self._log = folder, address, folder / "stderr.log"
        self._token = new_token()
        self._restarts = Restarts()
        self._child = self._start()

    def _start(self) -> Child:
        arguments = [str(self._folder), self._address or "-"]
        return Child(self._view.name, self._view.module, arguments, self._log, {TOKEN: self._token})

    def begin(self) -> str:
        """Wait for the first process to be there; returns the URL, whose port it keeps from now on."""
        url = self._await_url()
        self._address = f"[{parse_address(self._address).host}]:{urlsplit(url).port}"
        return url

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Start the process again whenever it dies in this context."""
        over, tell = os.pipe()
        # The kernel ends a process with the thread that started it: this one lives as long as the page is to.
        thread = threading.Thread(target=self._watch, args=(over,), name="live view", daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.write(tell, b".")
            thread.join()
            os.close(over)
            os.close(tell)

    def _watch(self, over: int) -> None:
        while not _comes(over, _LOOK_S):
            for _ in self._child.reports():
                pass  # its line must not fill
            code = self._child.poll()
            if code is None:
                continue
            pause_s = self._restarts.ended(time.monotonic() - self._child.started_s)
            self._note(code, "restarted" if pause_s is not None else f"given up; try onrig {self._view.name}")
            if pause_s is None or _comes(over, pause_s):
                break
            self._child.close()
            self._child = self._start()
        self.end()

    def _note(self, code: int, then: str) -> None:
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            print(f"{self._view.name}: the process of the view ended with code {code}; {then}", file=log)

    def end(self) -> None:
        """End the process; harmless once it has ended."""
        self._child.end(_END_S)
        self._child.close()

    def _await_url(self) -> str:
        option, child, limit = f"--{self._view.name}", self._child, time.monotonic() + _START_S
        while True:
            code = child.poll()
            for report in child.reports():
                if report.kind == "ready":
                    return report.message
                if report.kind == "error":
                    raise ViewError(f"{option}: {report.message}", child.end(_END_S, ask=False) or ExitCode.INTERNAL)
            if code is not None:
                log = self._folder / "stderr.log"
                raise ViewError(f"{option}: its process ended with code {code}; see {log}", ExitCode.INTERNAL)
            if time.monotonic() > limit:
                raise ViewError(f"{option}: no answer within {_START_S:g} s", ExitCode.INTERNAL)
            select.select((child,), (), (), 0.1)


def _comes(descriptor: int, within_s: float) -> bool:
    return bool(select.select((descriptor,), (), (), within_s)[0])
