"""Byte transports: a serial port or pty through its descriptor, and a loopback within one process.

pyserial opens and configures the port; the tick reads and writes the descriptor directly, because pyserial reads byte
by byte and takes a hundred microseconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
from collections.abc import Callable
from typing import Final, Protocol

DEFAULT_BAUD_RATE: Final = 921_600
READ_BYTES: Final = 4096
"""Maximum size of a read; a full read means that more data is waiting."""
_SELECT_LIMIT: Final = 1024
_NS_PER_MS: Final = 1_000_000


class LinkError(Exception):
    """Missing or lost link to the device; the message says in one line what failed, where, and what to do."""


class LineClosed(LinkError):
    """Connection closed by the peer: an unplugged cable, a device without power, an ended twin."""


class Transport(Protocol):
    """Bidirectional byte stream with bounded blocking."""

    @property
    def name(self) -> str:
        """Name of the port, for messages."""

    def fileno(self) -> int:
        """Return the descriptor, or -1 without one."""

    def read(self, timeout_ns: int) -> bytes:
        """Return the available bytes, at most READ_BYTES, waiting up to ``timeout_ns`` for the first.

        The result is empty if nothing arrives in time.  Raises LineClosed if the other end is gone, LinkError if this
        end is closed.
        """

    def write(self, data: bytes) -> int:
        """Send without waiting and return the number of bytes accepted (fewer than given if the buffer is full).

        Raises the same errors as ``read``.
        """

    def close(self) -> None:
        """Close the transport; closing twice is harmless."""


def wait_readable(poll: select.poll, fd: int, timeout_ns: int) -> None:
    """Wait at most ``timeout_ns`` until ``fd``, which is registered with ``poll``, is readable.

    poll rounds up to milliseconds, which is one period at 1 kHz, so select, which is accurate to microseconds, waits
    for the remainder.
    """
    whole_ms, rest_ns = divmod(max(timeout_ns, 0), _NS_PER_MS)
    if whole_ms and poll.poll(whole_ms):
        return
    if rest_ns and fd < _SELECT_LIMIT:
        select.select((fd,), (), (), rest_ns * 1e-9)
    elif rest_ns:
        poll.poll(1)


class DescriptorTransport:
    """A Transport over an open, non-blocking descriptor, which it owns: serial port, either end of a pty, socket."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    @property
    def name(self) -> str:
        return self._name

    def fileno(self) -> int:
        return self._fd

    def read(self, timeout_ns: int) -> bytes:
        """Return the available bytes, waiting up to ``timeout_ns`` for the first.

        Raises the same errors as ``Transport.read``.
        """
        if timeout_ns > 0:
            self._wait(timeout_ns)
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise self._lost_error(error) from error
        if not data:
            raise self._lost_error(None)
        return data

    def write(self, data: bytes) -> int:
        """Send without waiting and return the number of bytes accepted.  Raises the errors of ``Transport.read``."""
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost_error(error) from error

    def close(self) -> None:
        """Close the descriptor; closing twice is harmless."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _wait(self, timeout_ns: int) -> None:
        if self._fd < 0:
            raise self._lost_error(None)
        wait_readable(self._poll, self._fd, timeout_ns)

    def _lost_error(self, error: OSError | None) -> LinkError:
        if self._fd < 0:
            return LinkError(f"{self._name}: the port was closed by this process")
        reason = f" ({os.strerror(error.errno)})" if error is not None and error.errno else ""
        return LineClosed(
            f"{self._name}: the device hung up{reason}; check its power and cable (or that its twin is still running)"
        )


class LoopbackTransport:
    """A Transport whose other end is a pair of functions in the same process (tests, lockstep without processes).

    ``handle(data)`` takes written bytes and returns the other end's immediate answer.  ``wait(timeout_ns)`` advances
    the (virtual) time by at most that much and returns the data that the other end sent meanwhile; without it, no
    unsolicited data arrives.
    """

    def __init__(
        self,
        handle: Callable[[bytes], bytes],
        wait: Callable[[int], bytes] = lambda timeout_ns: b"",
        name: str = "loopback",
    ) -> None:
        self._handle = handle
        self._wait = wait
        self._name = name
        self._pending = b""
        self._is_closed = False

    @property
    def name(self) -> str:
        return self._name

    def fileno(self) -> int:
        """Return -1: no descriptor."""
        return -1

    def read(self, timeout_ns: int) -> bytes:
        """Return data sent by the other end; if none is available, run that end for up to ``timeout_ns``."""
        if self._is_closed:
            raise LinkError(f"{self._name}: the port was closed by this process")
        pending = self._pending
        if not pending and timeout_ns > 0:
            pending = self._wait(timeout_ns)
        self._pending = pending[READ_BYTES:]
        return pending[:READ_BYTES]

    def write(self, data: bytes) -> int:
        """Pass all of ``data`` to the other end, and keep its answer for the next read."""
        if self._is_closed:
            raise LinkError(f"{self._name}: the port was closed by this process")
        self._pending += self._handle(data)
        return len(data)

    def close(self) -> None:
        """Close the transport; closing twice is harmless."""
        self._is_closed = True


def open_port(path: str, baud_rate: int = DEFAULT_BAUD_RATE) -> DescriptorTransport:
    """Open a serial port or the slave side of a pty (raw, exclusive, low latency if supported), or a socket.

    Raises LinkError if the port does not exist, is not accessible, is in use, is not a serial port, or does not support
    the baud rate.
    """
    if _is_socket(path):
        return _open_socket(path)
    import termios  # imported here, so that a configuration can be checked on systems without termios

    import serial

    try:
        port = serial.Serial(path, baud_rate, timeout=0, exclusive=True)
    # SerialException is an OSError; the termios.error of a port that vanishes meanwhile is not.
    except (OSError, ValueError, termios.error) as error:
        raise LinkError(_describe_open_error(path, baud_rate, error)) from error
    with contextlib.closing(port):
        # Ptys and some USB drivers lack this mode; `onrig doctor` reports the remaining delay.
        with contextlib.suppress(ValueError, OSError, NotImplementedError):
            port.set_low_latency_mode(True)
        # The duplicate keeps the file open (with lock, settings and DTR) when pyserial closes its own descriptor.
        fd = os.dup(port.fileno())
    try:
        _complete_raw_mode(fd)
    except termios.error as error:
        os.close(fd)
        raise LinkError(f"{path}: cannot be set to raw mode ({error.args[-1]}); name another port") from error
    return DescriptorTransport(fd, path)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _open_socket(path: str) -> DescriptorTransport:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as host:
        host.setblocking(False)
        try:
            host.connect(path)
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                raise LinkError(f"{path}: nothing listens there any more; restart the device's process") from error
            raise LinkError(_describe_open_error(path, 0, error)) from error
        return DescriptorTransport(host.detach(), path)


def _complete_raw_mode(fd: int) -> None:
    """Complete pyserial's raw mode: no special bytes, and an empty read means a hang-up, not a lack of data."""
    import termios

    attributes = termios.tcgetattr(fd)
    attributes[0] &= ~(termios.BRKINT | termios.IXON | termios.ICRNL | termios.ISTRIP | termios.PARMRK)
    control_characters = attributes[6]
    control_characters[termios.VMIN] = 1
    control_characters[termios.VTIME] = 0
    termios.tcsetattr(fd, termios.TCSANOW, attributes)


def _describe_open_error(path: str, baud_rate: int, error: Exception) -> str:
    code = getattr(error, "errno", None)
    for cause in (error, error.__context__):
        if code is None and cause is not None and type(cause).__module__ == "termios":
            code = cause.args[0]
    if code in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        return f"{path}: no such port; plug the device in, or name another port"
    if code in (errno.EACCES, errno.EPERM):
        return f"{path}: no permission to open the port; add yourself to its group (often 'dialout') and log in again"
    if code in (errno.EBUSY, errno.EAGAIN):
        return f"{path}: the port is in use by another process; stop that one first"
    if code == errno.EIO:
        return f"{path}: the twin behind this port has ended; start it again"
    if isinstance(error, ValueError):
        return f"{path}: cannot run at {baud_rate} baud ({error}); choose another baud rate"
    if code in (errno.ENOTTY, errno.EISDIR) or not code:
        return f"{path}: not a serial port; name another port"
    return f"{path}: cannot be opened ({os.strerror(code)})"
