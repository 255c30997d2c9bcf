"""The device's end of a Unix socket: the same bytes as over a pty, without a kernel worker on their way."""

from __future__ import annotations

import contextlib
import select
import socket
from pathlib import Path
from typing import Final

_READ_BYTES: Final = 4096


class SocketLine:
    """As ``onrig.sim.twin.line.Line``.  One host at a time; the next one is heard when the one before has hung up."""

    def __init__(self, path: Path) -> None:
        """Listen at ``path``, for this user alone; raises OSError where that cannot be."""
        self.path = str(path)
        """Where the host finds the device."""
        self.hung_up = True
        self._host: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(self.path)
            path.chmod(0o600)
            self._listener.listen(1)
        except OSError:
            self._listener.close()
            raise
        self._listener.setblocking(False)

    def read(self, timeout_ns: int) -> bytes:
        """Bytes that are there, waiting up to ``timeout_ns`` for the first; sets ``hung_up``."""
        if timeout_ns > 0 and not select.select((self._host or self._listener,), (), (), timeout_ns * 1e-9)[0]:
            return b""
        if self._host is None:
            self._admit()
        host = self._host
        if host is None:
            return b""
        try:
            data = host.recv(_READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self.hung_up = not data
        if self.hung_up:
            host.close()
            self._host = None
        return data

    def _admit(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._host, _ = self._listener.accept()
            self._host.setblocking(False)

    def write(self, data: bytes) -> None:
        """Send what the line takes at once; the rest is lost, as on a real line without flow control."""
        if self._host is not None:
            with contextlib.suppress(OSError):
                self._host.send(data)

    def close(self) -> None:
        """Close; the socket disappears."""
        if self._host is not None:
            self._host.close()
        self._listener.close()
        Path(self.path).unlink(missing_ok=True)
