"""A file that takes what is written to it in pieces, each whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


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
