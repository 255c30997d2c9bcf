"""The ring of step records: one writer (the loop), one reader (the replay process), nobody ever blocks.

The reader trusts nothing it reads: each record bears its sequence number and a CRC, so that a torn write, whether by
a killed writer or by a weakly ordered memory, is seen and read again instead of believed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.record import RecordLayout
from runtime.shm.segment import Segment

_HEAD, _TAIL, _DROPPED = 0, 8, 16  # in units of 8 bytes; a cache line apart, each with a single writer
_CONTROL_BYTES: Final = 8 * 24
_PATIENCE: Final = 1000
"""Looks at a torn record before it is given up: a second at least, where a write takes microseconds."""


def ring_bytes(layout: RecordLayout, capacity: int) -> int:
    """Size of the body of a segment for ``capacity`` records."""
    return _CONTROL_BYTES + capacity * layout.size


class _Ring:
    def __init__(self, segment: Segment, layout: RecordLayout) -> None:
        self._layout = layout
        self._control = segment.body[:_CONTROL_BYTES].cast("Q")
        self._records = segment.body[_CONTROL_BYTES:]
        self.capacity = len(self._records) // layout.size

    @property
    def dropped(self) -> int:
        """Records that found the ring full and were not written."""
        return self._control[_DROPPED]

    def __len__(self) -> int:
        return self._control[_HEAD] - self._control[_TAIL]

    def close(self) -> None:
        """Release the views, so that the segment can be unmapped."""
        self._control.release()
        self._records.release()


class RingWriter(_Ring):
    """The loop's end."""

    def push(self, fields: tuple[float, ...]) -> bool:
        """Append one record: its fields in layout order without ``seq``.  False (and counted) if the ring is full."""
        control = self._control
        head = control[_HEAD]
        if head - control[_TAIL] >= self.capacity:
            control[_DROPPED] += 1
            return False
        self._layout.pack_into(self._records, (head % self.capacity) * self._layout.size, (head, *fields))
        control[_HEAD] = head + 1
        return True

    @property
    def full(self) -> bool:
        """Whether the next push would be dropped (in lockstep the loop waits instead)."""
        return len(self) >= self.capacity


class RingReader(_Ring):
    """The replay process's end.  ``damaged`` counts records that never became whole and were passed over."""

    def __init__(self, segment: Segment, layout: RecordLayout) -> None:
        super().__init__(segment, layout)
        self.damaged = 0
        self._looks = 0

    def peek(self, limit: int = 4096) -> npt.NDArray[np.void]:
        """Copy out up to ``limit`` records (dtype ``layout.dtype``), oldest first; they stay until ``release``."""
        control, size = self._control, self._layout.size
        tail = control[_TAIL]
        n = min(control[_HEAD] - tail, limit)
        taken = bytearray()
        for seq in range(tail, tail + n):
            start = (seq % self.capacity) * size
            raw = bytes(self._records[start : start + size])
            if not self._layout.sealed(memoryview(raw)) or int.from_bytes(raw[:8], "little") != seq:
                break  # not visible whole yet: the next call sees it
            taken += raw
        self._looks = self._looks + 1 if n and not taken else 0
        if self._looks > _PATIENCE:
            self.damaged += 1
            self.release(1)
        return np.frombuffer(bytes(taken), dtype=self._layout.dtype)

    def release(self, n: int) -> None:
        """Free the oldest ``n`` records, once what they say has been taken in."""
        self._control[_TAIL] += n


class RingHistory(_Ring):
    """Looks at what the loop wrote last, whether the replay process has taken it or not; nobody knows of the look.

    A released record stays where it is until the ring comes round to its place.
    """

    @property
    def written(self) -> int:
        """Records written since the run began."""
        return self._control[_HEAD]

    def since(self, seq: int, limit: int | None = None) -> npt.NDArray[np.void]:
        """Copy the records from number ``seq`` on (at most ``limit``, the newest), oldest first, those still there."""
        head, size = self._control[_HEAD], self._layout.size
        first = max(seq, head - self.capacity, head - limit if limit is not None else 0, 0)
        taken = bytearray()
        for number in range(first, head):
            start = (number % self.capacity) * size
            raw = bytes(self._records[start : start + size])
            if self._layout.sealed(memoryview(raw)) and int.from_bytes(raw[:8], "little") == number:
                taken += raw
        return np.frombuffer(bytes(taken), dtype=self._layout.dtype)
