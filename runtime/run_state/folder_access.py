"""Check that only the user of the run can write to a folder, so that no other user can redirect its files.

In a folder that others can write to, any name may be a symbolic link. A run therefore writes only to a folder of its
user that no one else can write to and that contains only the user's own files and folders, and no links. Links on the
path to the folder are accepted if they belong to the user or root, so that `runs` may be on another disk.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from onrig.runtime.files import try_lock

_POLL_INTERVAL_S: Final = 0.05
_RUN_FOLDER_DEPTH: Final = 3
"""Number of levels in a run folder."""


class UnsafeFolder(OSError):
    """Raised for a folder that other users could redirect; ``strerror`` gives the reason and the remedy."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(0, f"{path} {reason}")


def check_path(folder: Path) -> None:
    """Raise UnsafeFolder if others can replace part of the path to a folder; the folder need not exist."""
    for path in reversed((folder.absolute(), *folder.absolute().parents)):
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in _trusted_owners():
            raise UnsafeFolder(path, f"is a link owned by {_user_name(status.st_uid)}; name its target instead")
        if _is_world_writable(status.st_mode) and not status.st_mode & stat.S_ISVTX:
            raise UnsafeFolder(path, "is writable by every user of this machine; use another folder, or chmod o-w it")


def check_folder(folder: Path) -> None:
    """Raise UnsafeFolder unless an existing folder belongs to this user and contains only this user's files and
    folders."""
    check_path(folder)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise UnsafeFolder(folder, f"belongs to {_user_name(status.st_uid)}; use another folder, or run as that user")
    if _is_world_writable(status.st_mode):
        raise UnsafeFolder(folder, "is writable by every user of this machine; use another folder, or chmod o-w it")
    for entry in _entries(folder, _RUN_FOLDER_DEPTH):
        if entry.is_symlink():
            raise UnsafeFolder(Path(entry.path), "is a link; remove it")
        if not entry.is_file() and not entry.is_dir():  # opening a FIFO for appending would block until it has a reader
            raise UnsafeFolder(Path(entry.path), "is neither a file nor a folder; remove it")
        owner = entry.stat(follow_symlinks=False).st_uid
        if owner != os.geteuid():
            raise UnsafeFolder(Path(entry.path), f"belongs to {_user_name(owner)}; remove it, or run as that user")


class FolderBusy(Exception):
    """Raised if another process still writes to the folder, e.g. a process of a run that has just ended."""


def claim(folder: Path, timeout_s: float) -> int:
    """Wait for the write lock on a run's memory and files; return the descriptor that holds it.

    The kernel releases the lock when the process ends.  Raises FolderBusy after ``timeout_s``.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    limit = time.monotonic() + timeout_s
    while not try_lock(fd):
        if time.monotonic() > limit:
            os.close(fd)
            raise FolderBusy(f"{folder}: another process is still writing to this folder")
        time.sleep(_POLL_INTERVAL_S)
    return fd


def lock_folder(folder: Path) -> int:
    """Lock a folder against every other `onrig run`, for as long as the returned descriptor is open.

    Raises FolderBusy if another process holds the lock, OSError if others can write to the folder or to its path.
    """
    check_folder(folder)
    # The lock is held on a file that is never replaced.
    fd = os.open(folder / "stderr.log", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    if not try_lock(fd):
        os.close(fd)
        raise FolderBusy(f"{folder}: another `onrig run` is using it")
    return fd


def _entries(folder: Path, depth: int) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if depth > 1 and entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path), depth - 1)


def _trusted_owners() -> tuple[int, int]:
    return os.geteuid(), 0


def _is_world_writable(mode: int) -> bool:
    return stat.S_ISDIR(mode) and bool(mode & stat.S_IWOTH)


def _user_name(uid: int) -> str:
    import pwd

    try:
        return f"user '{pwd.getpwuid(uid).pw_name}'"
    except KeyError:
        return f"user {uid}"
