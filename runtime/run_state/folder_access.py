"""Whether a folder is ours alone to write to: nobody else can make our files lead somewhere else.

A name in a folder that others may write to can be a link that they put there; whoever writes to it writes wherever they
like.  A run therefore writes only to a folder that belongs to its user, into which nobody else may write, and in which
no link and nobody else's file has a name that the run may want.  Links on the way there count if they are the user's
own or root's: `runs` on another disk is fine.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.05
_DEPTH: Final = 3
"""Levels below a run folder that hold anything."""


class NotOurs(OSError):
    """A folder that others could turn against us; ``strerror`` says why, and what to do."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(0, f"{path} {why}")


def check_way(folder: Path) -> None:
    """Raise NotOurs for a folder, there or not, to which the way leads through what others can exchange."""
    for path in reversed((folder.absolute(), *folder.absolute().parents)):
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in _trusted():
            raise NotOurs(path, f"is a link of {_who(status.st_uid)}; name the folder that is meant")
        if _open_to_all(status.st_mode) and not status.st_mode & stat.S_ISVTX:
            raise NotOurs(path, "may be changed by anybody on this machine; take another folder, or chmod o-w it")


def check_folder(folder: Path) -> None:
    """Raise NotOurs unless a folder that is there, and what lies in it, is ours alone; no link among it."""
    check_way(folder)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise NotOurs(folder, f"belongs to {_who(status.st_uid)}; take another folder, or run as that user")
    if _open_to_all(status.st_mode):
        raise NotOurs(folder, "may be written to by anybody on this machine; take another folder, or chmod o-w it")
    for entry in _entries(folder, _DEPTH):
        if entry.is_symlink():
            raise NotOurs(Path(entry.path), "is a link, and would be written through; take it away")
        owner = entry.stat(follow_symlinks=False).st_uid
        if owner != os.geteuid():
            raise NotOurs(Path(entry.path), f"belongs to {_who(owner)}; take it away, or run as that user")


class FolderBusy(Exception):
    """Processes of a run that ended a moment ago still write to its folder."""


def claim(folder: Path, patience_s: float) -> int:
    """Wait until nobody writes to the memory and the files of a run; whoever holds the descriptor returned may.

    The kernel gives the claim back when the process ends, however it ends.  Raises FolderBusy after ``patience_s``.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    limit = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                os.close(fd)
                raise FolderBusy(f"{folder}: another process still writes to it") from None
            time.sleep(_LOOK_S)
        except OSError:  # a file system that knows no locks: the check for a running supervisor has to do
            return fd
        else:
            return fd


def hold(folder: Path) -> int:
    """Keep every other `onrig run` from going on in this folder, for as long as the descriptor returned is open.

    Raises FolderBusy where another one does already, OSError where the folder cannot be written to, or not by us alone.
    """
    check_folder(folder)
    # A file that is never replaced.
    fd = os.open(folder / "stderr.log", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise FolderBusy(f"{folder}: another `onrig run` is at work in it") from None
    except OSError:  # as in claim
        return fd
    return fd


def _entries(folder: Path, depth: int) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if depth > 1 and entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path), depth - 1)


def _trusted() -> tuple[int, int]:
    return os.geteuid(), 0


def _open_to_all(mode: int) -> bool:
    return stat.S_ISDIR(mode) and bool(mode & stat.S_IWOTH)


def _who(uid: int) -> str:
    import pwd

    try:
        return f"user '{pwd.getpwuid(uid).pw_name}'"
    except KeyError:
        return f"user {uid}"
