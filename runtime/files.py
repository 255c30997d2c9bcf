"""Files shared between processes: atomic replacement, JSON objects, and the tail of a growing file."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Final


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file atomically, by way of a temporary file with an unpredictable name; raises OSError.

    A link of the user's own is followed, a link of another user is refused.  What is not a regular file (a terminal, a
    pipe, /dev/null) is written to directly.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        status = None
    if status is not None and stat.S_ISLNK(status.st_mode):
        if status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(1, "a link of another user", str(path))
        path = path.resolve()
        status = path.stat() if path.exists() else None
    if status is not None and not stat.S_ISREG(status.st_mode):
        path.write_bytes(data)
        return
    try:
        fd, beside = tempfile.mkstemp(prefix=f".{path.name[:64]}-", dir=path.absolute().parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with open(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, mode if status is None else stat.S_IMODE(status.st_mode))
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def replace_own_file(path: Path, data: bytes | memoryview, *, durable: bool = False) -> None:
    """Replace a file in a folder that only this user can write to (a run's), by way of a temporary file beside it.

    ``durable``: even a power failure leaves the old content or the new.  Raises OSError without a partial file.
    """
    fresh = path.with_name(f"{path.name}.tmp")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk; raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_fields(path: Path) -> dict[str, object]:
    """Read a JSON object, such as a run's ``summary.json`` or ``meta.json``; empty if missing or invalid."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_bytes())  # the doctor imports this, and must outlive a broken msgspec
        return found if isinstance(found, dict) else {}
    return {}


_AT_ONCE_BYTES: Final = 1 << 20
_LONGEST_BYTES: Final = 1 << 20
"""Longest line accepted."""


def append_lines(path: Path, lines: bytes) -> None:
    """Append whole lines, durably, behind a line that a power cut may have left broken; raises OSError."""
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            lines = b"\n" + lines
        while lines:
            lines = lines[file.write(lines) or 0 :]
        os.fsync(file.fileno())


class LineTail:
    """Tail of a file that other processes append to, and that may not exist yet."""

    def __init__(self, path: Path, *, from_end: bool = False, at_once_bytes: int = _AT_ONCE_BYTES) -> None:
        """``from_end``: skip the present content.  ``at_once_bytes``: maximum read per call."""
        self._path, self._at_once_bytes = path, at_once_bytes
        self._at = path.stat().st_size if from_end and path.exists() else 0
        self._rest = b""

    def lines(self) -> list[bytes]:
        """Return the new lines since the last call, without line ends; none if the file cannot be read."""
        try:
            size = self._path.stat().st_size
            if self._at - len(self._rest) <= size < self._at:  # a piece of a line that its writer took back
                self._rest = self._rest[: len(self._rest) - (self._at - size)]
                self._at = size
            elif size < self._at:  # a new file of the same name, in a recreated run folder
                self._at, self._rest = 0, b""
            if size == self._at:
                return []
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(self._at_once_bytes)
        except OSError:
            return []
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_BYTES:
            self._rest = b""
        return lines
