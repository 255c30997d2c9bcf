"""A box: the newest version of something, in shared memory; one writer, any number of readers, nobody waits.

Two buffers alternate, so that the one being read is rarely the one being written; a CRC catches the rest.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

_META: Final = struct.Struct("<QQ")  # length, CRC-32
_HEAD_BYTES: Final = 8


def box_bytes(size: int) -> int:
    """Bytes of a box for contents of up to ``size`` bytes."""
    return _HEAD_BYTES + 2 * (_META.size + _padded(size))


def _padded(size: int) -> int:
    return (size + 7) // 8 * 8


class Box:
    """One box in ``room`` (``box_bytes(size)`` bytes, aligned to 8)."""

    def __init__(self, room: memoryview, size: int) -> None:
        self._room, self._size = room, size
        self._version = room[:_HEAD_BYTES].cast("Q")
        self._stride = _META.size + _padded(size)

    @property
    def version(self) -> int:
        """How often something was put in."""
        return self._version[0]

    def put(self, content: bytes) -> None:
        """Replace the content; raises ValueError when it is larger than the box."""
        if len(content) > self._size:
            raise ValueError(f"{len(content)} bytes do not fit into a box of {self._size}")
        version = self._version[0] + 1
        start = _HEAD_BYTES + (version & 1) * self._stride
        data = start + _META.size
        self._room[data : data + len(content)] = content
        _META.pack_into(self._room, start, len(content), zlib.crc32(content))
        self._version[0] = version

    def take(self) -> bytes | None:
        """Copy the content out; None before the first ``put``, and when it changed while it was read."""
        version = self._version[0]
        if not version:
            return None
        start = _HEAD_BYTES + (version & 1) * self._stride
        length, crc = _META.unpack_from(self._room, start)
        if length > self._size:
            return None
        data = start + _META.size
        content = bytes(self._room[data : data + length])
        return content if zlib.crc32(content) == crc else None

    def close(self) -> None:
        """Release the views, so that the segment can be unmapped."""
        self._version.release()
        self._room.release()
