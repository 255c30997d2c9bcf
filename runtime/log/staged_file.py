"""The files of a log: their names, and how one takes what is written to it in pieces, each whole or not at all."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"log(?:-(\d+))?\.mcap")


def log_files(folder: Path) -> list[Path]:
    """List the log files of a run in the order in which they were written."""
    found = [(m, p) for p in folder.glob("log*.mcap") if (m := _NAME.fullmatch(p.name))]
    return [p for _, p in sorted(((int(m[1] or 1), p) for m, p in found))]


def next_file(folder: Path) -> Path:
    """Name the file that follows those of a run."""
    taken = log_files(folder)
    if not taken:
        return folder / "log.mcap"
    last = _NAME.fullmatch(taken[-1].name)
    return folder / f"log-{int(last[1] or 1) + 1 if last else 2}.mcap"


class StagedFile:
    """Collects what is written until `put`; whatever a full disk did not take whole is taken back.

    So a file ends behind a whole piece, whenever its writer was killed or its disk was full.
    """

    def __init__(self, path: Path) -> None:
        """Raises FileExistsError for a file that is there already: none is ever overwritten."""
        self._file = path.open("xb", buffering=0)
        self._staged = bytearray()
        self._written = 0

    def write(self, data: bytes) -> int:
        """Take some bytes; no I/O."""
        self._staged += data
        return len(data)

    def tell(self) -> int:
        """Where the next byte will stand."""
        return self._written + len(self._staged)

    def flush(self) -> None:
        """What is staged stays so until `put`."""

    @property
    def staged(self) -> int:
        """Bytes that wait for `put`."""
        return len(self._staged)

    @property
    def written(self) -> int:
        """Bytes in the file."""
        return self._written

    def put(self) -> None:
        """Write what was collected; raises OSError and leaves the file as it was where that does not work."""
        left = memoryview(bytes(self._staged))
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError:
            os.ftruncate(self._file.fileno(), self._written)
            raise
        self._written += len(self._staged)
        self._staged.clear()

    def close(self) -> None:
        """Close the file; what is still staged is lost."""
        self._file.close()
