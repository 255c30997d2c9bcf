"""Files of a log: their names, and a file written in atomic chunks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_NAME_PATTERN: Final = re.compile(r"log(?:-(\d+))?\.mcap")


def log_files(folder: Path) -> list[Path]:
    """List the log files of a run in the order in which they were written."""
    matches = [(m, p) for p in folder.glob("log*.mcap") if (m := _NAME_PATTERN.fullmatch(p.name))]
    return [p for _, p in sorted(((int(m[1] or 1), p) for m, p in matches))]


def next_file(folder: Path, earlier_names: Iterable[str] = ()) -> Path:
    """Return the name of the next log file of a run; ``earlier_names``: names of earlier files, possibly deleted."""
    names = (*(path.name for path in log_files(folder)), *earlier_names)
    last_number = max((int(match[1] or 1) for name in names if (match := _NAME_PATTERN.fullmatch(name))), default=0)
    return folder / (f"log-{last_number + 1}.mcap" if last_number else "log.mcap")


class StagedFile:
    """File whose writes are staged until `put`; a partial write on a full disk is undone.

    The file therefore always ends after a complete chunk.
    """

    def __init__(self, path: Path) -> None:
        """Create the file; raises FileExistsError if it exists."""
        self._file = path.open("xb", buffering=0)
        self._staged_data = bytearray()
        self._n_written = 0

    def write(self, data: bytes) -> int:
        """Stage bytes, without I/O."""
        self._staged_data += data
        return len(data)

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._n_written + len(self._staged_data)

    def flush(self) -> None:
        """Do nothing: bytes remain staged until `put`."""

    @property
    def staged_bytes(self) -> int:
        """Number of staged bytes."""
        return len(self._staged_data)

    @property
    def written_bytes(self) -> int:
        """Number of bytes in the file."""
        return self._n_written

    def put(self) -> None:
        """Write the staged bytes; on OSError the file is unchanged."""
        remaining = memoryview(bytes(self._staged_data))
        try:
            while remaining:
                remaining = remaining[self._file.write(remaining) or 0 :]
        except OSError:
            os.ftruncate(self._file.fileno(), self._n_written)
            raise
        self._n_written += len(self._staged_data)
        self._staged_data.clear()

    def close(self) -> None:
        """Close the file; staged bytes are lost."""
        self._file.close()
