"""The keepsake: what the loop knows between two episodes that no record tells, for whoever must go on from there.

It lies behind the words of the board.  The loop writes it, the replay process reads it (and writes it once, before
there is a loop, in a run that is resumed).  Two buffers alternate, and a CRC tells what was written half.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from onrig.runtime.shm.segment import Segment

KEEPSAKE_BYTES: Final = 2 * 16384
_META: Final = struct.Struct("<QII")  # count, length, CRC-32
_BUFFER: Final = KEEPSAKE_BYTES // 2
_TRIES: Final = 8
"""A reader that is kept from running may find one buffer changed under it and then the other."""


class Keepsake:
    """One small message, replaced as a whole."""

    def __init__(self, segment: Segment) -> None:
        """Take the last bytes of the board's segment."""
        self._body = segment.body[-KEEPSAKE_BYTES:]

    def put(self, data: bytes) -> None:
        """Replace what is there; raises ValueError when it is longer than a buffer holds."""
        if len(data) > _BUFFER - _META.size:
            raise ValueError(f"keepsake of {len(data)} bytes; it holds {_BUFFER - _META.size}")
        number = max((found[0] for found in (self._read(0), self._read(1)) if found is not None), default=0) + 1
        start = (number & 1) * _BUFFER
        self._body[start + _META.size : start + _META.size + len(data)] = data
        _META.pack_into(self._body, start, number, len(data), zlib.crc32(data, number & 0xFFFFFFFF))

    def take(self) -> bytes | None:
        """Copy out what was put last; None before the first time."""
        for _ in range(_TRIES):
            found = [f for f in (self._read(0), self._read(1)) if f is not None]
            if found:
                return max(found)[1]
        return None

    def _read(self, side: int) -> tuple[int, bytes] | None:
        start = side * _BUFFER
        number, length, crc = _META.unpack_from(self._body, start)
        if not number or length > _BUFFER - _META.size:
            return None
        data = bytes(self._body[start + _META.size : start + _META.size + length])
        return (number, data) if zlib.crc32(data, number & 0xFFFFFFFF) == crc else None

    def close(self) -> None:
        """Release the view, so that the segment can be unmapped."""
        self._body.release()
