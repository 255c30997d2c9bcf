"""Shared-memory segment: a file in /dev/shm that one process owns and others map.

``multiprocessing.shared_memory`` is not used: on Python 3.11 any process that attaches to a segment deletes it when it
exits.  Here the owner creates and unlinks the file, and others check magic, version, schema and size when they attach.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Final

from onrig.runtime.files import try_lock

_MAGIC: Final = b"ONRIGSHM"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sII16sQ")
HEADER_BYTES: Final = 64
_PREFIX: Final = "onrig-"
_locks: Final[dict[Path, int]] = {}
"""Descriptors that lock this process's folders, because its pid is meaningless in a different PID namespace, such as a
container's."""


class SegmentError(RuntimeError):
    """Raised for a missing or truncated segment, a file that is not a segment, or a segment with a different layout."""


class SegmentMissing(SegmentError):
    """Raised for a missing segment, which means that its run is over."""


def _schema_hash(schema: str) -> bytes:
    return hashlib.blake2b(schema.encode(), digest_size=16).digest()


class Segment:
    """Mapped segment; ``body`` is everything after its header."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self._mapping = mapping
        self._view = memoryview(mapping)
        self.body = self._view[HEADER_BYTES:]

    @classmethod
    def create(cls, path: Path, body_bytes: int, schema: str) -> Segment:
        """Create a zeroed segment (mode 0600); raises OSError if the path exists or memory runs short."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            size = HEADER_BYTES + body_bytes
            # Unlike ftruncate, posix_fallocate fails now if memory is short, instead of causing SIGBUS during the run.
            os.posix_fallocate(fd, 0, size)
            mapping = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        mapping[: _HEADER.size] = _HEADER.pack(_MAGIC, _VERSION, os.getpid(), _schema_hash(schema), body_bytes)
        return cls(path, mapping)

    @classmethod
    def attach(cls, path: Path, schema: str) -> Segment:
        """Map an existing segment; raises SegmentMissing if it is missing, SegmentError unless it is a complete Onrig
        segment with this schema."""
        try:
            fd = os.open(path, os.O_RDWR)
        except FileNotFoundError as error:
            raise SegmentMissing(f"{path}: {error.strerror}") from None
        except OSError as error:
            raise SegmentError(f"{path}: {error.strerror}") from None
        try:
            size = os.fstat(fd).st_size
            if size < HEADER_BYTES:
                raise SegmentError(f"{path}: too short for a segment ({size} bytes)")
            mapping = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        magic, version, _, digest, body_bytes = _HEADER.unpack_from(mapping)
        if magic != _MAGIC or version != _VERSION:
            raise SegmentError(f"{path}: not an Onrig segment of version {_VERSION}")
        if digest != _schema_hash(schema):
            raise SegmentError(f"{path}: has the layout of another schema")
        if size != HEADER_BYTES + body_bytes:
            raise SegmentError(f"{path}: {size} bytes instead of {HEADER_BYTES + body_bytes}")
        return cls(path, mapping)

    def close(self) -> None:
        """Unmap the segment; the file is kept."""
        self.body.release()
        self._view.release()
        self._mapping.close()


def _boot_ticks(pid: int) -> str | None:
    """Return the start time of a process (field 22 of its stat file), which distinguishes a reused pid."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _base_folder() -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else Path(tempfile.gettempdir())


def create_folder() -> Path:
    """Create the folder (mode 0700) that holds the segments and the socket of one run, named after its owner."""
    pid = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{pid}-{_boot_ticks(pid) or 0}-", dir=_base_folder()))
    _locks[folder] = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try_lock(_locks[folder])
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a run's folder and its contents."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder in _locks:
        os.close(_locks.pop(folder))


def live_folders() -> list[tuple[int, Path]]:
    """Return the folders of this user's runs whose owner is alive, each with the owner's pid, oldest first."""
    folders = []
    for folder in _base_folder().glob(f"{_PREFIX}*-*-*"):
        with contextlib.suppress(ValueError, OSError):
            pid, ticks = folder.name.removeprefix(_PREFIX).split("-")[:2]
            status = folder.stat()
            if status.st_uid == os.getuid() and (_boot_ticks(int(pid)) or "0") == ticks:
                folders.append((status.st_mtime_ns, int(pid), folder))
    return [(pid, folder) for _, pid, folder in sorted(folders)]


def sweep_folders() -> list[Path]:
    """Remove the folders of runs whose owner is dead (killed before it could clean up); return the removed ones."""
    removed_folders = []
    for folder in _base_folder().glob(f"{_PREFIX}*-*-*"):
        with contextlib.suppress(ValueError, OSError):
            pid, ticks = folder.name.removeprefix(_PREFIX).split("-")[:2]
            if folder.stat().st_uid == os.getuid() and (_boot_ticks(int(pid)) or "0") != ticks and _is_free(folder):
                remove_folder(folder)
                removed_folders.append(folder)
    return removed_folders


def _is_free(folder: Path) -> bool:
    """Return whether no live process has locked a folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return try_lock(fd)
    finally:
        os.close(fd)
