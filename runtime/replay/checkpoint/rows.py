"""Data that a checkpoint appends (new experiences, changes to the keeper's state), and the segments still needed.

Cyclic storage is written in order, so its segments expire by age.  Otherwise a segment may contain a current row for
ever; when the log is twice as long as the stored rows, a new generation of segments is therefore started.  Every write
copies a bounded number of slots from the old generation into the new one, until the old one is no longer needed.

Of a keeper's tables (one entry per slot), only the changed entries are appended.  They are found by comparison with a
copy of the previous table, which works whatever a keeper does to its entries (it may renumber them all).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.keepers.keeper import Arrays
from onrig.runtime.memory.layout import Slots
from onrig.runtime.memory.storage import Storage
from onrig.runtime.replay.checkpoint.blocks import Block, Kind
from onrig.runtime.replay.checkpoint.manifest import Manifest, SavedArray, Segment, Sweep

MIN_SEGMENT_ROWS: Final = 4096
"""Minimum number of rows in a segment before the next one is started, so that a small log has few files."""
N_SEGMENTS: Final = 4
"""Approximate number of segments of cyclic storage."""
_CARRIED_PER_ROW: Final = 4
_MIN_CARRIED: Final = 256
_MAX_CARRIED: Final = 8192
"""Maximum number of slots carried over in one write, which bounds its duration."""


class Append(NamedTuple):
    """Blocks to append to a segment."""

    segment: str
    blocks: tuple[Block, ...]


class RowLog:
    """Segments of one memory's rows, extended by the process that inserts the rows."""

    def __init__(self, new_name: Callable[[], str], checkpoint: Manifest | None = None) -> None:
        """Start empty, or continue after ``checkpoint``, in new segments."""
        self._new_name: Final = new_name
        self._segments: list[Segment] = list(checkpoint.rows) if checkpoint is not None else []
        self._sweep: Sweep | None = checkpoint.sweep if checkpoint is not None else None
        self._n_appended = checkpoint.counts["inserted"] if checkpoint is not None else 0
        self._is_open = False

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments needed after the last :meth:`advance`, without their lengths in bytes."""
        return tuple(self._segments)

    @property
    def sweep(self) -> Sweep | None:
        """Progress of the new generation, if one has been started."""
        return self._sweep

    def advance(self, storage: Storage) -> list[Append]:
        """Return the appends that bring the segments up to date with ``storage``."""
        new_rows = storage.changed_since(self._n_appended)
        if not len(new_rows):
            return []
        if storage.cyclic:
            oldest_number = storage.inserted - storage.capacity
            self._segments = [s for s in self._segments if s.through > oldest_number]
            if self._is_open and self._segments:
                self._is_open = self._segments[-1].entries < max(MIN_SEGMENT_ROWS, storage.capacity // N_SEGMENTS)
            carried_slots = new_rows[:0]
        else:
            entries = sum(s.entries for s in self._segments)
            if self._sweep is None and entries + len(new_rows) > 2 * max(storage.stored, MIN_SEGMENT_ROWS):
                self._open_segment()
                self._sweep = Sweep(self._n_appended, 0, self._segments[-1].name)
            carried_slots = self._carry_over(storage, len(new_rows))
        if not self._is_open or not self._segments:
            self._open_segment()
        last_segment = self._segments[-1]
        self._segments[-1] = msgspec.structs.replace(
            last_segment, entries=last_segment.entries + len(new_rows) + len(carried_slots), through=storage.inserted
        )
        self._n_appended = storage.inserted
        blocks = tuple(Block(Kind.ROWS, 0, len(s), (storage.rows(s),)) for s in (new_rows, carried_slots) if len(s))
        return [Append(last_segment.name, blocks)]

    def _carry_over(self, storage: Storage, n_new_rows: int) -> Slots:
        """Return the next slots to carry over from the old generation to the new one."""
        sweep = self._sweep
        if sweep is None:
            return np.zeros(0, np.int64)
        step = min(_CARRIED_PER_ROW * n_new_rows + _MIN_CARRIED, _MAX_CARRIED)
        end = min(sweep.cursor + step, storage.stored)
        slots = np.arange(sweep.cursor, end, dtype=np.int64)
        if end < storage.stored:
            self._sweep = msgspec.structs.replace(sweep, cursor=end)
        else:
            self._sweep = None
            names = [s.name for s in self._segments]
            self._segments = self._segments[names.index(sweep.first) :]
        carried_slots: Slots = slots[storage.number(slots) <= sweep.since]
        return carried_slots

    def _open_segment(self) -> None:
        self._segments.append(Segment(self._new_name()))
        self._is_open = True


MAX_SMALL_ARRAY_BYTES: Final = 4096
"""Size up to which an array is stored in the manifest itself."""


class TableLog:
    """Segments of one keeper's tables, extended by the process that owns the keeper."""

    def __init__(self, new_name: Callable[[], str], capacity: int) -> None:
        self._new_name: Final = new_name
        self._capacity: Final = capacity
        self._previous: dict[str, NDArray[np.generic]] = {}
        self._appended_bytes = 0
        self._segment: Segment | None = None

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segment needed after the last :meth:`advance`, without its length in bytes."""
        return () if self._segment is None else (self._segment,)

    def advance(self, state: Arrays) -> tuple[tuple[SavedArray, ...], list[Append]]:
        """Return the keeper's arrays for the manifest, and the blocks to append.

        Takes ownership of ``state``: its arrays are kept and must not be changed afterwards.
        """
        tables = {name: a for name, a in state.items() if self._is_table(a)}
        saved_arrays = tuple(_saved_array(name, a, is_complete=name not in tables) for name, a in state.items())
        previous, self._previous = self._previous, tables
        if not tables:
            self._segment = None
            return saved_arrays, []
        if self._segment is not None and list(previous) == list(tables):
            blocks = tuple(b for i, name in enumerate(tables) if (b := _changes(i, previous[name], tables[name])))
            extra_bytes = sum(a.nbytes for b in blocks for a in b.arrays)
            if self._appended_bytes + extra_bytes <= sum(a.nbytes for a in tables.values()):
                self._appended_bytes += extra_bytes
                return saved_arrays, [Append(self._segment.name, blocks)] if blocks else []
        self._segment, self._appended_bytes = Segment(self._new_name()), 0
        complete_blocks = tuple(Block(Kind.COMPLETE, i, len(a), (a,)) for i, a in enumerate(tables.values()))
        return saved_arrays, [Append(self._segment.name, complete_blocks)]

    def _is_table(self, array: NDArray[np.generic]) -> bool:
        return (
            array.nbytes > MAX_SMALL_ARRAY_BYTES and array.shape == (self._capacity,) and array.itemsize in (1, 2, 4, 8)
        )


def _saved_array(name: str, array: NDArray[np.generic], *, is_complete: bool) -> SavedArray:
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return SavedArray(name, little_endian.dtype.str, array.shape, little_endian.tobytes() if is_complete else None)


def _changes(table: int, previous: NDArray[np.generic], current: NDArray[np.generic]) -> Block | None:
    # Bitwise comparison: a NaN equals itself, and -0 differs from 0.
    bits = f"u{current.itemsize}"
    slots = np.flatnonzero(previous.view(bits) != current.view(bits))
    if not len(slots):
        return None
    return Block(Kind.CHANGED, table, len(slots), (slots.astype(np.uint32), current[slots]))
