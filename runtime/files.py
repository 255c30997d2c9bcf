"""Files that several processes look at: replaced so that they are whole, and followed as they grow."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file whole or not at all, by way of one beside it that nobody can have foreseen; raises OSError.

    A link that is the user's own is followed; somebody else's is refused, whatever it leads to.  What is no file (a
    terminal, a pipe, /dev/null) is written to.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        status = None
    if status is not None and stat.S_ISLNK(status.st_mode):
        if status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(1, "it is somebody else's link", str(path))
        path = path.resolve()
        status = path.stat() if path.exists() else None
    if status is not None and not stat.S_ISREG(status.st_mode):
        path.write_bytes(data)
        return
    fd, beside = tempfile.mkstemp(prefix=f".{path.name[:64]}-", dir=path.absolute().parent)
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
    """Replace a file in a folder that is ours alone (a run's), by way of one beside it.

    ``durable``: a power cut, too, leaves the old content or the new.  Raises OSError, and leaves nothing half-written.
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
    """See a file's content, or a folder's names, onto the disk; raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_AT_ONCE_BYTES: Final = 1 << 20
_LONGEST_BYTES: Final = 1 << 20
"""A line that is longer is none of ours."""


class LineTail:
    """Follows a file that other processes append to, and that may not be there yet."""

    def __init__(self, path: Path, *, from_end: bool = False, at_once_bytes: int = _AT_ONCE_BYTES) -> None:
        """``from_end``: leave out what is there now.  ``at_once_bytes``: read at one look, so that none takes long."""
        self._path, self._at_once_bytes = path, at_once_bytes
        self._at = path.stat().st_size if from_end and path.exists() else 0
        self._rest = b""

    def lines(self) -> list[bytes]:
        """Return the lines (without their ends) that have come since the last look; none where it cannot be read."""
        try:
            size = self._path.stat().st_size
            if size < self._at:  # another file of this name: a run folder that was begun anew
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
