"""Checksums of a run's files, which let a later reader detect changes.

Append-only files (rows, log, events) grow during the run: each checkpoint of the memory contains their checksums at
that time. Completed files are listed in ``checksums.json``, which is written when the run starts, is resumed and ends.
A CRC-32 continues where it left off, so that no file is read from its start twice.  As in the memory's segments, it
detects damage and careless edits, not forgery.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.files import MAX_JSON_BYTES, open_file, read_file, replace_own_file

CHECKSUM_FILE: Final = "checksums.json"
SUMMARY_FILE: Final = "summary.json"
_CHUNK_BYTES: Final = 1 << 20


class FileChecksum(msgspec.Struct, frozen=True, array_like=True):
    """Length and CRC-32 of a file or its beginning."""

    bytes: int = 0
    crc32: int = 0


EMPTY_CHECKSUM: Final = FileChecksum()


def extent_of(data: bytes | memoryview) -> FileChecksum:
    """Return the length and CRC-32 of a file with this content."""
    return FileChecksum(len(data), zlib.crc32(data))


def measure(
    path: Path, start: FileChecksum = EMPTY_CHECKSUM, end: int | None = None, *, whole_lines: bool = False
) -> FileChecksum:
    """Extend a checksum over the bytes of a file that follow ``start``, up to offset ``end`` (None: its end).

    ``whole_lines``: stop after the last line break, because the last line may be incomplete.  The result covers fewer
    bytes if the file ends before ``end``.  Raises OSError.
    """
    offset, crc = start.bytes, start.crc32
    with open_file(path, None) as file:
        while end is None or offset < end:
            file.seek(offset)
            piece = file.read(_CHUNK_BYTES if end is None else min(_CHUNK_BYTES, end - offset))
            if whole_lines:
                piece = piece[: piece.rfind(b"\n") + 1]
            if not piece:
                break
            offset, crc = offset + len(piece), zlib.crc32(piece, crc)
    return FileChecksum(offset, crc)


def difference(path: Path, expected: FileChecksum, *, may_be_longer: bool = False) -> str | None:
    """Describe how a file differs from ``expected``; return None if it does not. ``may_be_longer``: whether the file
    may be longer than expected."""
    if not path.exists():
        return "is missing"
    if not path.is_file():
        return "is not a regular file"
    try:
        size = path.stat().st_size
        if size < expected.bytes:
            return f"is truncated to {size} of {expected.bytes} bytes"
        if size > expected.bytes and not may_be_longer:
            return f"has {size - expected.bytes} bytes more than the run wrote"
        is_unchanged = measure(path, end=expected.bytes) == expected
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None if is_unchanged else "differs from what the run wrote: its checksum has changed"


class RunningChecksums:
    """Running checksums of a run's append-only files, each of which is read once. A missing or shortened file keeps its
    last checksum."""

    def __init__(self, folder: Path, extents: Mapping[str, FileChecksum]) -> None:
        self._folder, self._extents = folder, dict(extents)

    def advance(self, names: Iterable[str]) -> dict[str, FileChecksum]:
        """Extend the checksums of the named files to their current ends; return the extents of all files so far."""
        for name in names:
            with contextlib.suppress(OSError):
                extents = self._extents.get(name, EMPTY_CHECKSUM)
                self._extents[name] = measure(self._folder / name, extents, whole_lines=name.endswith(".jsonl"))
        return dict(self._extents)


class FileList(NamedTuple):
    """Content of ``checksums.json``."""

    files: Mapping[str, FileChecksum] = MappingProxyType({})
    """Completed files, keyed by their path in the folder."""
    damaged: tuple[str, ...] = ()
    """Files found damaged when the run was resumed, which therefore count as lost."""
    problem: str = ""
    """Problem with the list itself, in which case its files are unknown."""

    @property
    def is_final(self) -> bool:
        """Whether the list was written at the end of a run and contains all files."""
        return SUMMARY_FILE in self.files


class _Document(msgspec.Struct, frozen=True):
    files: dict[str, FileChecksum]
    damaged: tuple[str, ...]
    crc32: int
    """CRC-32 of the preceding fields as JSON."""


def read_list(folder: Path) -> FileList:
    """Read ``checksums.json``; an unusable file gives a list with a ``problem``."""
    path = folder / CHECKSUM_FILE
    if not path.exists():
        return FileList(problem="is missing")
    if not path.is_file():
        return FileList(problem="is not a regular file")
    try:
        document = msgspec.json.decode(read_file(path, MAX_JSON_BYTES), type=_Document)
    except (OSError, msgspec.DecodeError, RecursionError):
        return FileList(problem="cannot be read")
    if document.crc32 != _crc32(document.files, document.damaged):
        return FileList(problem="differs from what the run wrote: its checksum has changed")
    return FileList(document.files, document.damaged)


def write_list(folder: Path, files: Mapping[str, FileChecksum], damaged: Iterable[str] = ()) -> None:
    """Write ``checksums.json`` durably; raises OSError."""
    files, damaged = dict(sorted(files.items())), tuple(sorted(set(damaged)))
    document = _Document(files, damaged, _crc32(files, damaged))
    data = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    replace_own_file(folder / CHECKSUM_FILE, data, durable=True)


def _crc32(files: Mapping[str, FileChecksum], damaged: tuple[str, ...]) -> int:
    return zlib.crc32(msgspec.json.encode((files, damaged)))
