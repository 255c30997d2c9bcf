"""Where tests put Unix sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_folder() -> Iterator[Path]:
    """Give a folder for Unix sockets: their paths are 107 bytes at most, and temporary folders may lie deeper."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/dev/shm") as folder:
        yield Path(folder)
