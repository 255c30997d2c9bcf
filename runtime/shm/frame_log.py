"""Log of the last frames on the device's link, for the post-mortem of a fault.

The control process writes frames, overwriting the oldest; any process that may map the segment can read it, even after
the writer was killed.  Neither side waits: an overtaken reader skips the overwritten frames.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.shm.segment import Segment, SegmentError

FRAME_LOG_SCHEMA: Final = "frames-2"
RETENTION_S: Final = 4.0
"""Seconds of device time kept: twice the length shown in a post-mortem, because the post-mortem is taken slightly
later."""
_MIN_FRAMES: Final = 2048
_BODY_BYTES: Final = 249
"""Maximum body of a frame in bytes (``hw/PROTOCOL.md``)."""
_HEAD: Final = struct.Struct("<QqHI")  # number, host time, length, CRC-32 over number and body
_SLOT_BYTES: Final = 272
_CONTROL_BYTES: Final = 64


class LoggedFrame(NamedTuple):
    """One frame on the wire, without framing and CRC; its first byte gives its type and direction."""

    t_ns: int
    """Host time (monotonic) at which it was read or written."""
    body: bytes


def frame_log_bytes(rate_hz: float) -> int:
    """Return the size of a segment's body that holds ``RETENTION_S`` of frames at this rate of state frames."""
    frames = max(_MIN_FRAMES, round(2 * RETENTION_S * rate_hz))
    return _CONTROL_BYTES + frames * _SLOT_BYTES


class _FrameLog:
    def __init__(self, segment: Segment) -> None:
        self._count = segment.body[:8].cast("Q")
        self._slots = segment.body[_CONTROL_BYTES:]
        self.capacity: Final = len(self._slots) // _SLOT_BYTES

    @property
    def n_written(self) -> int:
        """Number of frames written since the run began."""
        return self._count[0]

    def close(self) -> None:
        """Release the views, so that the segment can be unmapped."""
        self._count.release()
        self._slots.release()


class FrameLogWriter(_FrameLog):
    """Writer, used by the control process."""

    def write(self, t_ns: int, body: bytes) -> None:
        """Overwrite the oldest frame with one of at most 249 bytes, in about a microsecond."""
        count = self._count[0]
        index = (count % self.capacity) * _SLOT_BYTES
        length = len(body)
        # The number is written first, so that a concurrent reader of this slot detects that its frame is being
        # overwritten.
        _HEAD.pack_into(self._slots, index, count, t_ns, length, zlib.crc32(body, count & 0xFFFFFFFF))
        index += _HEAD.size
        self._slots[index : index + length] = body
        self._count[0] = count + 1


def frame_tap(shm: Path) -> Callable[[int, bytes], None] | None:
    """Return a callback that stores a device session's frames in a run's frame log; None if the run has no frame
    log."""
    try:
        return FrameLogWriter(Segment.attach(shm / "frames", FRAME_LOG_SCHEMA)).write
    except SegmentError:
        return None


class FrameLogReader(_FrameLog):
    """Reader, independent of the writer."""

    def frames_since(self, t_ns: int, limit: int | None = None) -> list[LoggedFrame]:
        """Copy the available frames from ``t_ns`` on (at most ``limit``, the newest), oldest first."""
        frames: list[LoggedFrame] = []
        n_frames = self._count[0]
        n_available = self.capacity if limit is None else min(limit, self.capacity)
        for number in range(n_frames - 1, max(n_frames - n_available, 0) - 1, -1):
            offset = (number % self.capacity) * _SLOT_BYTES
            head: tuple[int, int, int, int] = _HEAD.unpack_from(self._slots, offset)
            if head[0] != number or head[2] > _BODY_BYTES or head[1] < t_ns:
                break
            start = offset + _HEAD.size
            body = bytes(self._slots[start : start + head[2]])
            if _HEAD.unpack_from(self._slots, offset) != head:
                break  # just overwritten, as are all older frames
            if zlib.crc32(body, number & 0xFFFFFFFF) != head[3]:
                continue  # on weakly ordered memory the head may be visible before the body
            frames.append(LoggedFrame(head[1], body))
        frames.reverse()
        return frames
