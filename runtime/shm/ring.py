"""Ring of step records: one writer (the loop), one reader (the replay process), non-blocking.

Each record has a sequence number and a CRC, so that the reader detects a torn write, caused by a killed writer or by
weakly ordered memory, and reads the record again.

Records outlive their reader.  Reading a record does not free its slot; the slot is freed once the results are durable,
so that a new reader can repeat the work of one that died.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from onrig.runtime.record import RecordLayout
from onrig.runtime.shm.segment import Segment

_HEAD, _TAIL, _DROPPED = 0, 8, 16  # in units of 8 bytes; on separate cache lines, each with a single writer
_CONTROL_BYTES: Final = 8 * 24
_MAX_TORN_READS: Final = 1000
"""Number of attempts to read a torn record before it is skipped: at least a second, although a write takes
microseconds."""


def ring_bytes(layout: RecordLayout, capacity: int) -> int:
    """Return the size of the body of a segment for ``capacity`` records."""
    return _CONTROL_BYTES + capacity * layout.size


class _Ring:
    def __init__(self, segment: Segment, layout: RecordLayout) -> None:
        self._layout = layout
        self._control = segment.body[:_CONTROL_BYTES].cast("Q")
        self._records = segment.body[_CONTROL_BYTES:]
        self.capacity = len(self._records) // layout.size

    @property
    def n_dropped(self) -> int:
        """Number of records dropped because the ring was full."""
        return self._control[_DROPPED]

    def __len__(self) -> int:
        return self._control[_HEAD] - self._control[_TAIL]

    @property
    def is_full(self) -> bool:
        """Whether the next push would be dropped (in lockstep the loop waits instead)."""
        return len(self) >= self.capacity

    def close(self) -> None:
        """Release the views, so that the segment can be unmapped."""
        self._control.release()
        self._records.release()


class RingWriter(_Ring):
    """Writer, used by the loop."""

    def push(self, fields: tuple[float, ...]) -> bool:
        """Append one record, given its fields in layout order without ``seq``; if the ring is full, count the record as
        dropped and return False."""
        control = self._control
        head = control[_HEAD]
        if head - control[_TAIL] >= self.capacity:
            control[_DROPPED] += 1
            return False
        layout = self._layout
        layout.pack_into(self._records, (head % self.capacity) * layout.size, head, fields)
        control[_HEAD] = head + 1
        return True


class RingReader(_Ring):
    """Reader, used by the replay process; ``n_damaged`` counts records skipped because they never became valid."""

    def __init__(self, segment: Segment, layout: RecordLayout) -> None:
        super().__init__(segment, layout)
        self.n_taken: int = self._control[_TAIL]
        """Number of the next record to read."""
        self.n_damaged = 0
        self._attempts = 0

    @property
    def tail(self) -> int:
        """Number of the oldest record still in the ring."""
        return self._control[_TAIL]

    @property
    def n_waiting(self) -> int:
        """Number of unread records."""
        return self._control[_HEAD] - self.n_taken

    def peek(self, limit: int = 4096) -> npt.NDArray[np.void]:
        """Copy up to ``limit`` records (dtype ``layout.dtype``), oldest first, without advancing; see ``take``."""
        n = min(self.n_waiting, limit)
        records = self._copy_untorn(self.n_taken, n)
        self._attempts = self._attempts + 1 if n and not len(records) else 0
        if self._attempts > _MAX_TORN_READS:
            self.n_damaged += 1
            self.take(1)
        return records

    def retained(self) -> npt.NDArray[np.void]:
        """Copy the records already read and still in the ring, oldest first."""
        return self._copy_untorn(self.tail, self.n_taken - self.tail)

    def _copy_untorn(self, first: int, n: int) -> npt.NDArray[np.void]:
        size = self._layout.size
        data = bytearray()
        for seq in range(first, first + n):
            start = (seq % self.capacity) * size
            raw = bytes(self._records[start : start + size])
            if not self._layout.has_valid_crc(memoryview(raw)) or int.from_bytes(raw[:8], "little") != seq:
                break  # not yet fully visible: read in the next call
            data += raw
        return np.frombuffer(bytes(data), dtype=self._layout.dtype)

    def take(self, n: int) -> None:
        """Advance by ``n`` records, which remain in the ring."""
        self.n_taken += n

    def release(self, end: int) -> None:
        """Free the records before number ``end``; all of them must be read and their results durable."""
        if end > self.n_taken:
            raise ValueError(f"records before {end} cannot be freed: records from {self.n_taken} on were not read")
        self._control[_TAIL] = max(end, self.tail)


class RingHistory(_Ring):
    """Passive reader of the loop's last records, whether the replay process has read them or not.

    A released record remains readable until the ring wraps around to its slot.
    """

    @property
    def n_written(self) -> int:
        """Number of records written since the run began."""
        return self._control[_HEAD]

    def records_since(self, seq: int, limit: int | None = None) -> npt.NDArray[np.void]:
        """Copy the available records from number ``seq`` on (at most ``limit``, the newest), oldest first."""
        head, size = self._control[_HEAD], self._layout.size
        first = max(seq, head - self.capacity, head - limit if limit is not None else 0, 0)
        data = bytearray()
        for number in range(first, head):
            start = (number % self.capacity) * size
            raw = bytes(self._records[start : start + size])
            if self._layout.has_valid_crc(memoryview(raw)) and int.from_bytes(raw[:8], "little") == number:
                data += raw
        return np.frombuffer(bytes(data), dtype=self._layout.dtype)
