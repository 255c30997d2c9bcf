"""Folders for tests' Unix sockets, and TCP ports."""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_folder() -> Iterator[Path]:
    """Create a folder for Unix sockets: their paths have at most 107 bytes, and temporary folders may be deeper."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/dev/shm") as folder:
        yield Path(folder)


def free_port() -> int:
    """Return an unused TCP port of loopback, outside the range from which Linux assigns ports to connections."""
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
