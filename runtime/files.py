"""Files shared with other users or processes: bounded reads, atomic replacement, and the tail of a growing file."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

MAX_JSON_BYTES: Final = 64 << 20
"""Size limit of a JSON file of a run or an experiment."""
MAX_TABLE_BYTES: Final = 256 << 20
"""Size limit of a file of rows (CSV, JSON lines), enough for more than a million episodes."""
_IRREGULAR_KINDS: Final[tuple[tuple[Callable[[int], bool], str], ...]] = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)


_READ_FLAGS: Final = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY")
)
"""Flags for opening a file for reading, omitting those that the system lacks."""


class NotRegularFile(OSError):
    """Error raised for a directory, FIFO, socket or device in place of a regular file."""


def open_file(path: Path, max_bytes: int | None) -> io.BufferedReader:
    """Open a regular file of at most ``max_bytes`` for reading.

    Anything else is rejected: a FIFO blocks until a writer opens it, a device may never end, and opening a serial port
    can reset its board.  ``max_bytes`` is None for a file that the caller reads in chunks.

    Raises:
        NotRegularFile: if it is a directory, FIFO, socket or device.
        OSError: if it is missing, unreadable or too large; ``strerror`` holds the reason.
    """
    try:
        _check_regular(os.stat(path), path)
        fd = os.open(path, _READ_FLAGS)
    except ValueError:
        raise OSError(errno.EINVAL, "a name with a NUL byte", str(path)) from None
    try:
        status = os.fstat(fd)
        _check_regular(status, path)  # checked again, because the path may have been replaced
        if max_bytes is not None and status.st_size > max_bytes:
            raise _size_error(path, max_bytes)
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a regular file of at most ``max_bytes``; raises OSError like `open_file`."""
    with open_file(path, max_bytes) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:  # the file has grown, or its file system reports no sizes
        raise _size_error(path, max_bytes)
    return data


def _check_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in _IRREGULAR_KINDS if is_kind(status.st_mode)), "a device")
        raise NotRegularFile(errno.EINVAL, f"{kind}, not a regular file", str(path))


def _size_error(path: Path, max_bytes: int) -> OSError:
    limit = f"{max_bytes >> 20} MiB" if max_bytes >= 1 << 20 else f"{max_bytes} bytes"
    return OSError(errno.EFBIG, f"larger than {limit}", str(path))


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file atomically through a temporary file with an unpredictable name; raises OSError.

    A symbolic link is followed if it belongs to this user or to root, and rejected otherwise. A terminal, pipe or
    device is written to directly.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        status = None
    if status is not None and stat.S_ISLNK(status.st_mode):
        if status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(1, "a link owned by another user", str(path))
        path = path.resolve()
        status = path.stat() if path.exists() else None
    if status is not None and not stat.S_ISREG(status.st_mode):
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)  # a FIFO without a reader raises
        os.set_blocking(fd, True)
        with open(fd, "wb") as file:
            file.write(data)
        return
    try:
        fd, temporary_path = tempfile.mkstemp(prefix=f".{path.name[:64]}-", dir=path.absolute().parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with open(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, mode if status is None else stat.S_IMODE(status.st_mode))
        os.replace(temporary_path, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary_path)
        raise


def replace_own_file(path: Path, data: bytes | memoryview, *, durable: bool = False) -> None:
    """Replace a file in a folder that only this user can write to (such as a run folder), via a temporary file there.

    ``durable``: guarantee that after a power failure the file has either its old or its new content.  Raises OSError
    without leaving a partial file.
    """
    temporary_path = path.with_name(f"{path.name}.tmp")
    try:
        with temporary_path.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary_path.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary_path.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk; raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def try_lock(fd: int) -> bool:
    """Lock an open file or folder against other processes without waiting; return False if another process holds the
    lock.

    The kernel releases the lock when the descriptor is closed.  Where the file system or the machine has no such locks,
    the file counts as free.
    """
    try:
        import fcntl  # imported here, because reports and checks work on systems without it

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


def read_fields(path: Path) -> dict[str, object]:
    """Read a JSON object, such as a run's ``summary.json`` or ``meta.json``; return an empty one if it is missing or
    invalid."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        # Not msgspec: the doctor imports this and must work with a broken msgspec.
        content = json.loads(read_file(path, MAX_JSON_BYTES))
        return content if isinstance(content, dict) else {}
    return {}


_MAX_READ_BYTES: Final = 1 << 20
_MAX_LINE_BYTES: Final = 1 << 20
"""Maximum length of a line."""


class LineTail:
    """Tail of a file to which other processes append; the file may not exist yet."""

    def __init__(self, path: Path, *, from_end: bool = False, read_bytes: int = _MAX_READ_BYTES) -> None:
        """``from_end``: skip the current content.  ``read_bytes``: maximum read per call."""
        self._path, self._max_read_bytes = path, read_bytes
        self._offset = path.stat().st_size if from_end and path.exists() else 0
        self._partial_line = b""

    def lines(self) -> list[bytes]:
        """Return the lines added since the last call, without line endings; an empty list if the file cannot be
        read."""
        try:
            size = self._path.stat().st_size
            if self._offset - len(self._partial_line) <= size < self._offset:  # the file was truncated within a line
                self._partial_line = self._partial_line[: len(self._partial_line) - (self._offset - size)]
                self._offset = size
            elif size < self._offset:  # a new file of the same name, in a recreated run folder
                self._offset, self._partial_line = 0, b""
            if size == self._offset:
                return []
            with open_file(self._path, None) as file:
                file.seek(self._offset)
                data = file.read(self._max_read_bytes)
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        if len(self._partial_line) > _MAX_LINE_BYTES:
            self._partial_line = b""
        return lines
