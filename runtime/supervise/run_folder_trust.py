"""Whether a folder is ours alone to write to: nobody else can make our files lead somewhere else.

A name in a folder that others may write to can be a link that they put there; whoever writes to it writes wherever they
like.  A run therefore writes only to a folder that belongs to its user, into which nobody else may write, and in which
no link and nobody else's file has a name that the run may want.  Links on the way there count if they are the user's
own or root's: `runs` on another disk is fine.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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
