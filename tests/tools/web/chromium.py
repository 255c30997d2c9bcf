"""A headless Chromium on a pair of pipes (DevTools protocol), for the page's tests and screenshots; nothing listens."""

from __future__ import annotations

import base64
import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS: Final = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--hide-scrollbars",
    "--mute-audio",
)
_EXEC_PROGRAM: Final = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
for fd, wanted in zip(ours, (3, 4)):
    os.dup2(fd, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from descriptor 3 and answers on 4."""
_POLL_S: Final = 0.1

Fields = dict[str, object]


class BrowserFault(RuntimeError):
    """The browser refused, or did not answer."""


def find_chromium() -> str | None:
    """Path of a Chromium on this machine; None if there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name)) is not None), None)


class Browser:
    """One page in its own browser; a context manager that leaves nothing behind."""

    def __init__(self, path: str, *, timeout_s: float = 30.0) -> None:
        self._timeout_s = timeout_s
        self._profile = tempfile.TemporaryDirectory(prefix="onrig-chromium-", ignore_cleanup_errors=True)
        browser_read_fd, write_fd = os.pipe()
        read_fd, browser_write_fd = os.pipe()
        # As root, Chromium does not start with its sandbox; it only loads our own page.
        sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _EXEC_PROGRAM,
                str(browser_read_fd),
                str(browser_write_fd),
                path,
                *_ARGUMENTS,
                *sandbox,
                f"--user-data-dir={self._profile.name}",
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(browser_read_fd, browser_write_fd),
        )
        os.close(browser_read_fd)
        os.close(browser_write_fd)
        self._read_fd, self._write_fd = read_fd, write_fd
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        """Errors on the page's console."""

    def __enter__(self) -> Browser:
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = str(self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._session = None
            self._send("Browser.close", {})
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read_fd)
        os.close(self._write_fd)
        self._profile.cleanup()

    def call(self, method: str, **parameters: object) -> Fields:
        """Send one command; raises BrowserFault."""
        number = self._send(method, parameters)
        limit = time.monotonic() + self._timeout_s
        while True:
            for message in self._receive():
                if message.get("id") == number:
                    if "error" in message:
                        raise BrowserFault(f"{method}: {message['error']}")
                    return msgspec.convert(message.get("result", {}), Fields)
            if time.monotonic() > limit:
                raise BrowserFault(f"{method}: no answer within {self._timeout_s:g} s")

    def show(
        self, url: str, *, width: int, height: int, is_dark: bool, is_mobile: bool = False, scale: float = 1.0
    ) -> None:
        """Open a page in a window of ``width`` x ``height`` CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=is_mobile
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> object:
        """Evaluate JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserFault(f"{expression}: {answer['exceptionDetails']}")
        return msgspec.convert(answer["result"], Fields).get("value")

    def wait_until(self, expression: str) -> object:
        """Evaluate until true; raises BrowserFault if it remains false.  A page that is loading may throw."""
        limit = time.monotonic() + self._timeout_s
        while not (value := self.evaluate(f"(() => {{ try {{ return {expression}; }} catch {{ return null; }} }})()")):
            if time.monotonic() > limit:
                raise BrowserFault(f"waited {self._timeout_s:g} s for {expression}; console: {self.problems}")
            self.listen(_POLL_S)
        return value

    def listen(self, seconds: float) -> None:
        """Let time pass."""
        limit = time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0:
            self._receive(left)

    def screenshot(self, path: Path, *, full_page: bool = False) -> None:
        """Save a PNG of the window, or of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full_page)
        path.write_bytes(base64.b64decode(str(answer["data"])))

    def _send(self, method: str, parameters: Fields) -> int:
        self._number += 1
        message: Fields = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = msgspec.json.encode(message) + b"\0"
        while data:
            data = data[os.write(self._write_fd, data) :]
        return self._number

    def _receive(self, timeout_s: float = _POLL_S) -> list[Fields]:
        if not select.select((self._read_fd,), (), (), timeout_s)[0]:
            return []
        data = os.read(self._read_fd, 1 << 20)
        if not data:
            raise BrowserFault("the browser has ended")
        *complete, self._buffer = (self._buffer + data).split(b"\0")
        messages = [msgspec.json.decode(part, type=Fields) for part in complete]
        for message in messages:
            self._handle_message(message)
        return messages

    def _handle_message(self, message: Fields) -> None:
        parameters = msgspec.convert(message.get("params", {}), Fields)
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(parameters.get("exceptionDetails")))
            case "Runtime.consoleAPICalled" if parameters.get("type") in ("error", "warning", "assert"):
                self.problems.append(str(parameters.get("args")))
            case "Log.entryAdded":
                entry = msgspec.convert(parameters.get("entry", {}), Fields)
                if entry.get("level") in ("error", "warning"):
                    self.problems.append(f"{entry.get('text')} {entry.get('url', '')}")
