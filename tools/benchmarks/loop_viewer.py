"""Somebody who looks at the live page all the time: takes what it streams, as a browser does, and throws it away."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
import urllib.parse
from typing import Final

_URL: Final = re.compile(r"http://\S+")
_STREAM: Final = "/api/stream"
_TIMEOUT_S: Final = 5.0


def address_in(text: str) -> str | None:
    """The address of the page among what a run has printed."""
    found = _URL.search(text)
    return found[0] if found else None


class Viewer:
    """Watches the page at ``url``; a context.  ``received`` counts the bytes that came."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self.received = 0
        self._connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=_TIMEOUT_S)
        self._path = f"{_STREAM}?{parts.query}" if parts.query else _STREAM
        self._leaves = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Viewer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._leaves.set()
        self._thread.join(2 * _TIMEOUT_S)

    def _watch(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(self._connection):
            self._connection.request("GET", self._path)
            answer = self._connection.getresponse()
            while not self._leaves.is_set() and (data := answer.read1(65536)):
                self.received += len(data)
