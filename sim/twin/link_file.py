"""Link file of a twin, which holds the path of its port while it serves."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from onrig.runtime.files import read_file, replace_file

_MAX_LINK_BYTES: Final = 4096
_LINK_CONTENT: Final = re.compile(rb"/dev/[^\0\n]+\n|/[^\0\n]+/device\n")


def link_problem(link: Path) -> str | None:
    """Return why a link file cannot be written (the path holds a file that no twin wrote); None if it can."""
    if not os.path.lexists(link):
        return None
    with contextlib.suppress(OSError):
        if not link.is_symlink() and _LINK_CONTENT.fullmatch(read_file(link, _MAX_LINK_BYTES)):
            return None  # left by a killed twin
    return f"'{link}' exists and is not a twin's link file; choose another path, or remove it"


@contextlib.contextmanager
def keep_link_file(link: Path, path: str) -> Iterator[None]:
    """Keep a file with the ``path`` of a port during this context, and then delete it unless another twin replaced it.

    Raises OSError, also if `link_problem` finds a problem.
    """
    content = f"{path}\n".encode()
    if problem := link_problem(link):
        raise FileExistsError(errno.EEXIST, problem, str(link))
    replace_file(link, content)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if not link.is_symlink() and read_file(link, _MAX_LINK_BYTES) == content:
                link.unlink()
