"""Frames on the wire: ``0x00 | COBS(body | CRC-32 of body) | 0x00`` (``hw/PROTOCOL.md``, *Framing*).

COBS (Cheshire & Baker, "Consistent Overhead Byte Stuffing", IEEE/ACM ToN 7(2), 1999) removes every zero byte, so that
a zero is always a boundary.  Deviation: frames are too short to need the paper's block 0xFF (254 bytes without a zero),
so the encoder and the decoder are each one short loop.

The C library is used if it is loaded.  The Python implementation is its reference and reports what is wrong with a
frame.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from onrig.hw.native import builtin

MAX_BODY_BYTES: Final = 249
"""Largest body (type byte included): 253 bytes with its CRC, the COBS maximum without a block 0xFF."""
MAX_CHUNK_BYTES: Final = MAX_BODY_BYTES + 5
"""Largest run of bytes between two delimiters: body, CRC and the first block code."""
MIN_CHUNK_BYTES: Final = 6
"""Block code, type byte and CRC."""


class FrameError(ValueError):
    """Invalid frame between two delimiters."""


class CobsError(FrameError):
    """Frame whose COBS block lengths do not match its length."""


class CrcError(FrameError):
    """Frame with a wrong CRC, or too short to contain one."""


class FrameTooLongError(FrameError):
    """A frame longer than the maximum."""


@dataclass
class FrameCounters:
    """Counts of discarded frames and bytes."""

    bad_crc: int = 0
    bad_cobs: int = 0
    oversize: int = 0
    bytes_dropped: int = 0


def encode_frame(body: bytes) -> bytes:
    """Wrap a body (type byte and payload, 1 to 249 bytes) for the wire, with a delimiter on either side.

    The leading delimiter ends any preceding noise or truncated frame, so that this frame is not lost with it.  Raises
    FrameError if the body is empty, FrameTooLongError if it is too long.
    """
    return (_native_encode(body) if _native_encode is not None else b"") or encode_in_python(body)


def decode_frame(chunk: bytes) -> bytes:
    """Decode the bytes between two delimiters to a body.  Raises FrameError with the reason."""
    return (_native_decode(chunk) if _native_decode is not None else b"") or decode_in_python(chunk)


def encode_in_python(body: bytes) -> bytes:
    """Encode like ``encode_frame``, in pure Python."""
    if not 0 < len(body) <= MAX_BODY_BYTES:
        if not body:
            raise FrameError("a frame needs a body")
        raise FrameTooLongError(f"body of {len(body)} bytes; at most {MAX_BODY_BYTES} fit into a frame")
    checked_body = b"%b%b" % (body, zlib.crc32(body).to_bytes(4, "little"))
    wire = bytearray(b"\0\0%b\0" % checked_body)
    index = 1
    for run in checked_body.split(b"\0"):
        code = len(run) + 1
        wire[index] = code
        index += code
    return bytes(wire)


def decode_in_python(chunk: bytes) -> bytes:
    """Decode like ``decode_frame``, in pure Python."""
    size = len(chunk)
    if size > MAX_CHUNK_BYTES:
        raise FrameTooLongError(f"{size} bytes without a delimiter; a frame has at most {MAX_CHUNK_BYTES}")
    decoded = bytearray(chunk)
    index = 0
    while index < size:
        code = decoded[index]
        if not code:
            raise CobsError("zero byte inside a frame")
        decoded[index] = 0
        index += code
    if index != size:
        raise CobsError("block lengths run past the end of the frame")
    if size < MIN_CHUNK_BYTES:
        raise CrcError(f"{size} bytes are too few for a type byte and a CRC")
    body = bytes(decoded[1:-4])
    if zlib.crc32(body) != int.from_bytes(decoded[-4:], "little"):
        raise CrcError("CRC does not match")
    return body


_native_encode: Final = builtin("frame_encode")
_native_decode: Final = builtin("frame_decode")


class FrameReader:
    """Decoder of a byte stream, received in chunks of any size, into frame bodies.

    It holds at most one frame's bytes between calls, and garbage costs it at most the frame in progress.
    """

    def __init__(self, counters: FrameCounters | None = None) -> None:
        self.counters = counters if counters is not None else FrameCounters()
        self._partial = b""
        self._is_discarding = False

    def feed(self, data: bytes) -> list[bytes]:
        """Process received bytes (any number) and return the completed bodies, oldest first."""
        end = len(data) - 1
        if end > 0 and not data[0] and data.find(0, 1) == end and not (self._partial or self._is_discarding):
            chunks = [data[1:end]]
        else:
            chunks = self._split(data)
        bodies = []
        for chunk in chunks:
            if chunk:
                try:
                    bodies.append(decode_frame(chunk))
                except FrameError as error:
                    self._count(error, len(chunk))
        return bodies

    def reset(self) -> None:
        """Discard the frame in progress (after the port was closed or reopened); the counters are kept."""
        self._partial = b""
        self._is_discarding = False

    def _split(self, data: bytes) -> list[bytes]:
        chunks = data.split(b"\0")
        if self._is_discarding:
            self.counters.bytes_dropped += len(chunks[0])
            if len(chunks) == 1:
                return []
            self._is_discarding = False
            del chunks[0]
        else:
            chunks[0] = self._partial + chunks[0]
        self._partial = chunks.pop()
        if len(self._partial) > MAX_CHUNK_BYTES:
            self.counters.oversize += 1
            self.counters.bytes_dropped += len(self._partial)
            self._partial = b""
            self._is_discarding = True
        return chunks

    def _count(self, error: FrameError, size: int) -> None:
        counters = self.counters
        counters.bytes_dropped += size
        if isinstance(error, CrcError):
            counters.bad_crc += 1
        elif isinstance(error, CobsError):
            counters.bad_cobs += 1
        else:
            counters.oversize += 1
