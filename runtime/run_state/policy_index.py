"""``policies/index.csv``: length and checksum of each stored policy of a run.

A policy's line is appended before its file is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from onrig.runtime.files import MAX_TABLE_BYTES, read_file
from onrig.runtime.run_state.checksums import FileChecksum, extent_of

INDEX_FILE: Final = "policies/index.csv"
"""Path in a run folder."""
_HEADER: Final = b"policy_id,bytes,crc32\n"


class PolicyIndex:
    """Reader and sole writer of the index; the last line of a policy counts."""

    def __init__(self, policies: Path) -> None:
        self._path = policies / Path(INDEX_FILE).name
        self._entries = read_index(self._path)

    def get(self, policy_id: int) -> FileChecksum | None:
        """Return the length and checksum of a policy; None if it is not stored."""
        return self._entries.get(policy_id)

    def add(self, policy_id: int, model: bytes) -> None:
        """Add a policy; the index is unchanged if this raises OSError."""
        extent = extent_of(model)
        if self._entries.get(policy_id) == extent:
            return
        line = b"%d,%d,%08x\n" % (policy_id, extent.bytes, extent.crc32)
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            data = line if size else _HEADER + line
            try:
                if (file.write(data) or 0) < len(data):
                    raise OSError(28, os.strerror(28), str(self._path))
            except OSError:
                file.truncate(size)
                raise
        self._entries[policy_id] = extent


def read_index(path: Path, n_bytes: int | None = None) -> dict[int, FileChecksum]:
    """Read the complete lines of an index, or of its first ``n_bytes`` bytes; return an empty one if it cannot be
    read."""
    try:
        data = read_file(path, MAX_TABLE_BYTES)[:n_bytes]
    except OSError:
        return {}
    entries: dict[int, FileChecksum] = {}
    for line in data[: data.rfind(b"\n") + 1].splitlines()[1:]:
        try:
            policy_id, size, crc = line.split(b",")
            entries[int(policy_id)] = FileChecksum(int(size), int(crc, 16))
        except ValueError:
            continue
    return entries


def truncate_index(policies: Path, n_bytes: int | None) -> None:
    """Truncate the index durably to its first ``n_bytes`` bytes, or after its last complete line if None; raises
    OSError."""
    path = policies / Path(INDEX_FILE).name
    if not path.is_file():
        return
    with path.open("r+b") as file:
        end = file.read().rfind(b"\n") + 1 if n_bytes is None else n_bytes
        if end < os.fstat(file.fileno()).st_size:
            file.truncate(end)
            os.fsync(file.fileno())
