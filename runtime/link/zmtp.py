"""Lengths of the frames in a ZMTP 3 stream, independent of their content, determined without I/O."""

from __future__ import annotations

from typing import Final

GREETING_BYTES: Final = 64
_SIGNATURE_BYTES: Final = 11
"""Ten bytes of signature, followed by the first byte of the version."""
_LONG_FRAME_FLAG: Final = 2
_RESERVED_FLAGS: Final = 0xF8
_MIN_VERSION: Final = 3


class ZmtpError(Exception):
    """Raised for bytes that are not ZMTP: no ZMTP 3 greeting, or an invalid or overlong frame."""


class FrameMeter:
    """Meter of the frames in a stream that arrives in chunks."""

    def __init__(self, max_frame_bytes: int) -> None:
        """``max_frame_bytes``: maximum size of a frame in bytes."""
        self._max_frame_bytes = max_frame_bytes
        self._header = bytearray()
        self._header_bytes = GREETING_BYTES
        self._is_in_greeting = True
        self._remaining_body_bytes = 0
        self.greeting_received = False
        """Whether the stream started with a ZMTP 3 greeting."""
        self.n_frames = 0
        """Number of frames started."""

    def feed(self, data: bytes) -> list[int]:
        """Process the next bytes; return the sizes (bytes) of the frames that start in them. Raises ZmtpError."""
        sizes: list[int] = []
        offset, end = 0, len(data)
        while offset < end:
            if self._remaining_body_bytes:
                step = min(self._remaining_body_bytes, end - offset)
                self._remaining_body_bytes -= step
                offset += step
                continue
            step = min(self._header_bytes - len(self._header), end - offset)
            self._header += data[offset : offset + step]
            offset += step
            if self._is_in_greeting and not self.greeting_received:
                self._check_signature()
            if len(self._header) < self._header_bytes:
                continue
            if self._is_in_greeting:
                self._is_in_greeting = False
            elif (size := self._parse_size()) is None:
                self._header_bytes = 9
                continue
            else:
                sizes.append(size)
                self._remaining_body_bytes = size
            self._header.clear()
            self._header_bytes = 2
        self.n_frames += len(sizes)
        return sizes

    def _check_signature(self) -> None:
        header = self._header
        if (
            header[0] != 0xFF
            or (len(header) > 9 and header[9] != 0x7F)
            or (len(header) > 10 and header[10] < _MIN_VERSION)
        ):
            raise ZmtpError("no ZMTP 3 greeting")
        self.greeting_received = len(header) >= _SIGNATURE_BYTES - 1

    def _parse_size(self) -> int | None:
        """Return the size of the frame whose header has arrived; None if the header is incomplete."""
        flags = self._header[0]
        if flags & _RESERVED_FLAGS:
            raise ZmtpError("a frame with invalid flags")
        if flags & _LONG_FRAME_FLAG and len(self._header) < 9:
            return None
        size = int.from_bytes(self._header[1:], "big")
        if size > self._max_frame_bytes:
            raise ZmtpError(f"a frame of {size} bytes")
        return size
