"""When each frame of a twin was due on the line and when it was sent, for whoever measures the loop behind it.

A twin's own clock stands still while the machine keeps it from running, so its frames do not tell.  A ring in shared
memory: the twin writes, a benchmark reads what it has just seen frames of.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.shm.segment import Segment

NAME: Final = "sent"
"""Of the segment, in the run's folder."""
_SLOTS: Final = 1 << 14
"""Eight seconds at 2 kHz."""
_SCHEMA: Final = "frame u64, due_ns i64, sent_ns i64 of the host's monotonic clock; slot = frame mod 2^14"
_SLOT: Final = struct.Struct("=Qqq")


class TraceWriter:
    """The twin's end; a microsecond per frame."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where the memory is not there."""
        (folder / NAME).unlink(missing_ok=True)
        self._segment = Segment.create(folder / NAME, _SLOTS * _SLOT.size, _SCHEMA)

    def note(self, frame: int, due_ns: int, sent_ns: int) -> None:
        """A frame is about to be sent."""
        _SLOT.pack_into(self._segment.body, frame % _SLOTS * _SLOT.size, frame, due_ns, sent_ns)

    def close(self) -> None:
        """Let go of the memory."""
        self._segment.close()


class TraceReader:
    """The other end; raises SegmentError where there is no trace."""

    def __init__(self, folder: Path) -> None:
        self._segment = Segment.attach(folder / NAME, _SCHEMA)

    def times(self, frames: NDArray[np.integer]) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
        """Return, each of shape (n,), for which of the frames times are known, when they were due, and when sent; ns.

        A frame is known until 2^14 more have been sent.
        """
        slots = np.frombuffer(self._segment.body, np.int64).reshape(_SLOTS, 3)[frames.astype(np.int64) % _SLOTS]
        return slots[:, 0] == frames, slots[:, 1], slots[:, 2]

    def close(self) -> None:
        """Let go of the memory."""
        self._segment.close()
