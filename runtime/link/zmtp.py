"""Frame lengths in a ZMTP 3 stream, independent of the content. Pure."""

from __future__ import annotations

from typing import Final

GREETING_BYTES: Final = 64
_SIGNATURE: Final = 11
"""Ten bytes of signature and the first byte of the version."""
_LONG: Final = 2
_RESERVED: Final = 0xF8
_VERSION: Final = 3


class ZmtpError(Exception):
    """Bytes that are not ZMTP: no ZMTP 3 greeting, an invalid frame, or an overlong one."""


class FrameMeter:
    """Meter of the frames in a stream that arrives in chunks."""

    def __init__(self, longest: int) -> None:
        """``longest``: maximum size of a frame in bytes."""
        self._longest = longest
        self._head = bytearray()
        self._wanted = GREETING_BYTES
        self._greeting = True
        self._left = 0
        self.signed = False
        """Whether the stream started with a ZMTP 3 greeting."""
        self.frames = 0
        """Number of frames started."""

    def feed(self, data: bytes) -> list[int]:
        """Process the next bytes; return the sizes (bytes) of the frames that start in them. Raises ZmtpError."""
        sizes: list[int] = []
        offset, end = 0, len(data)
        while offset < end:
            if self._left:
                step = min(self._left, end - offset)
                self._left -= step
                offset += step
                continue
            step = min(self._wanted - len(self._head), end - offset)
            self._head += data[offset : offset + step]
            offset += step
            if self._greeting and not self.signed:
                self._check_signature()
            if len(self._head) < self._wanted:
                continue
            if self._greeting:
                self._greeting = False
            elif (size := self._size()) is None:
                self._wanted = 9
                continue
            else:
                sizes.append(size)
                self._left = size
            self._head.clear()
            self._wanted = 2
        self.frames += len(sizes)
        return sizes

    def _check_signature(self) -> None:
        head = self._head
        if head[0] != 0xFF or (len(head) > 9 and head[9] != 0x7F) or (len(head) > 10 and head[10] < _VERSION):
            raise ZmtpError("no ZMTP 3 greeting")
        self.signed = len(head) >= _SIGNATURE - 1

    def _size(self) -> int | None:
        """Return the size of the frame whose header has arrived; None if the header is incomplete."""
        flags = self._head[0]
        if flags & _RESERVED:
            raise ZmtpError("a frame with invalid flags")
        if flags & _LONG and len(self._head) < 9:
            return None
        size = int.from_bytes(self._head[1:], "big")
        if size > self._longest:
            raise ZmtpError(f"a frame of {size} bytes")
        return size
