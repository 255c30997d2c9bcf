"""What can be told of a serial port without opening it, which may reset the board behind it."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

_LINK_FILE_BYTES: Final = 4096


def no_port(path: Path) -> str | None:
    """What to do about a path that is there and is no port; None for a port, and where nothing is there (yet)."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    if stat.S_ISCHR(mode) or stat.S_ISSOCK(mode):
        return None
    if stat.S_ISREG(mode):
        try:
            with path.open(errors="replace") as file:
                inside = file.read(_LINK_FILE_BYTES).strip()
        except OSError:
            inside = ""
        if inside.startswith("/dev/"):
            return f"it names a port: use --device {inside}"
    return "name the port itself"


def missing_port(path: Path) -> str | None:
    """Why nothing can be opened there at this moment; None where something is."""
    try:
        path.stat()
    except OSError as error:
        return f"there is no such port ({error.strerror}); plug the device in, or start `onrig twin`"
    return None
