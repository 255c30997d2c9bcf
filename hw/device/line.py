"""Device end of the connection: a pty, a serial port for a device on a second board, or a Unix socket."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from pathlib import Path
from typing import Final

from onrig.hw.transport import open_port

_READ_BYTES: Final = 4096
_READABLE: Final = select.POLLIN | select.POLLERR


class Line:
    """Non-blocking pty or serial port; only on a pty can a hang-up of the host be detected."""

    def __init__(self, fd: int, path: str) -> None:
        self.path = path
        """Address at which the host reaches the device."""
        self.has_hung_up = True
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    @classmethod
    def pty(cls) -> Line:
        """Open a pseudo-terminal; the host opens its slave side at ``path``."""
        import tty  # imported here, because a driver's socket does not need it

        master, slave = os.openpty()
        tty.setraw(slave)
        path = os.ttyname(slave)
        os.set_blocking(master, False)
        os.close(slave)  # an open slave would hide the host's hang-up
        return cls(master, path)

    @classmethod
    def serial(cls, path: str) -> Line:
        """Open a serial port.  Raises LinkError on failure."""
        return cls(os.dup(open_port(path).fileno()), path)

    def read(self, timeout_ns: int) -> bytes:
        """Return the available bytes, waiting up to ``timeout_ns`` for the first, and update ``has_hung_up``."""
        if self.has_hung_up:
            # After a hang-up, poll() always returns immediately: sleep briefly instead, unless data can be read.
            # Data sent before the host closed a pty is still readable; an unplugged port reports POLLERR.
            events = self._poll.poll(0)
            if events and events[0][1] & select.POLLHUP and events[0][1] & _READABLE != select.POLLIN:
                select.select((), (), (), min(max(timeout_ns, 0), 5_000_000) * 1e-9)
                return b""
        if timeout_ns > 0 and not select.select((self._fd,), (), (), timeout_ns * 1e-9)[0]:
            return b""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self.has_hung_up = not data
        return data

    def write(self, data: bytes) -> None:
        """Send what fits into the buffer; the rest is lost, as on a real port without flow control."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._fd, data)

    def close(self) -> None:
        os.close(self._fd)


class SocketLine:
    """Counterpart of :class:`Line` on a Unix socket, without a kernel worker in the data path.

    It serves one host at a time and accepts the next after the previous one has hung up.
    """

    def __init__(self, path: Path) -> None:
        """Listen at ``path`` for this user only.  Raises OSError on failure."""
        self.path = str(path)
        """Address at which the host reaches the device."""
        self.has_hung_up = True
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
        """Return the available bytes, waiting up to ``timeout_ns`` for the first, and update ``has_hung_up``."""
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
        self.has_hung_up = not data
        if self.has_hung_up:
            host.close()
            self._host = None
        return data

    def _admit(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._host, _ = self._listener.accept()
            self._host.setblocking(False)

    def write(self, data: bytes) -> None:
        """Send what fits into the buffer; the rest is lost, as on a real port without flow control."""
        if self._host is not None:
            with contextlib.suppress(OSError):
                self._host.send(data)

    def close(self) -> None:
        if self._host is not None:
            self._host.close()
        self._listener.close()
        Path(self.path).unlink(missing_ok=True)
