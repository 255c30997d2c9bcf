"""The ring of step records: one writer (the loop), one reader (the replay process), nobody ever blocks.

The reader trusts nothing it reads: each record bears its sequence number and a CRC, so that a torn write, whether by
a killed writer or by a weakly ordered memory, is seen and read again instead of believed.

Records outlive their reader.  Taking a record in does not free its place: that happens once what was made of it is
durable, so that the next reader takes in again what died with the one before it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from onrig.runtime.record import RecordLayout
from onrig.runtime.shm.segment import Segment

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

    @property
    def full(self) -> bool:
        """Whether the next push would be dropped (in lockstep the loop waits instead)."""
        return len(self) >= self.capacity

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


class RingReader(_Ring):
    """The replay process's end.  ``damaged`` counts records that never became whole and were passed over."""

    def __init__(self, segment: Segment, layout: RecordLayout) -> None:
        super().__init__(segment, layout)
        self.taken: int = self._control[_TAIL]
        """Number of the next record to take in."""
        self.damaged = 0
        self._looks = 0

    @property
    def tail(self) -> int:
        """Number of the oldest record that is still there."""
        return self._control[_TAIL]

    @property
    def waiting(self) -> int:
        """Records that were written and not taken in."""
        return self._control[_HEAD] - self.taken

    def peek(self, limit: int = 4096) -> npt.NDArray[np.void]:
        """Copy out up to ``limit`` records (dtype ``layout.dtype``), oldest first; they wait until ``take``."""
        n = min(self.waiting, limit)
        found = self._whole(self.taken, n)
        self._looks = self._looks + 1 if n and not len(found) else 0
        if self._looks > _PATIENCE:
            self.damaged += 1
            self.take(1)
        return found

    def kept(self) -> npt.NDArray[np.void]:
        """Copy out the records that were taken in and are still there, oldest first."""
        return self._whole(self.tail, self.taken - self.tail)

    def _whole(self, first: int, n: int) -> npt.NDArray[np.void]:
        size = self._layout.size
        found = bytearray()
        for seq in range(first, first + n):
            start = (seq % self.capacity) * size
            raw = bytes(self._records[start : start + size])
            if not self._layout.sealed(memoryview(raw)) or int.from_bytes(raw[:8], "little") != seq:
                break  # not visible whole yet: the next call sees it
            found += raw
        return np.frombuffer(bytes(found), dtype=self._layout.dtype)

    def take(self, n: int) -> None:
        """Go on behind the next ``n`` records; they stay where they are."""
        self.taken += n

    def release(self, upto: int) -> None:
        """Free the records before number ``upto``, all of them taken in: what came of them is durable."""
        if upto > self.taken:
            raise ValueError(f"records before {upto} cannot be freed: those from {self.taken} on were not taken in")
        self._control[_TAIL] = max(upto, self.tail)


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
