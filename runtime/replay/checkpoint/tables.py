"""What a checkpoint appends of a keeper's state: tables of one entry per slot by their changes, all else whole.

A changed entry is found by comparing with a copy of the table as it was: the one way that holds whatever a keeper does
to its entries (it may number them anew).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.replay.checkpoint.blocks import Block, Kind
from onrig.runtime.replay.checkpoint.manifest import Saved, Segment
from onrig.runtime.replay.checkpoint.rows import Append
from onrig.runtime.replay.memory.keepers.keeper import Arrays

SMALL_BYTES: Final = 4096
"""Arrays up to this size stand in the manifest."""


class TableLog:
    """The segments of one keeper's tables, seen from the process that inserts."""

    def __init__(self, new_name: Callable[[], str], capacity: int) -> None:
        self._new_name: Final = new_name
        self._capacity: Final = capacity
        self._before: dict[str, NDArray[np.generic]] = {}
        self._appended_bytes = 0
        self._segment: Segment | None = None

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segment that holds everything up to the last :meth:`advance`."""
        return () if self._segment is None else (self._segment,)

    def advance(self, state: Arrays) -> tuple[tuple[Saved, ...], list[Append]]:
        """Return (the keeper's arrays for the manifest, what to append).

        ``state`` must be the caller's to give away: its arrays are kept, and are not to change.
        """
        tables = {name: a for name, a in state.items() if self._is_table(a)}
        saved = tuple(_saved(name, a, whole=name not in tables) for name, a in state.items())
        before, self._before = self._before, tables
        if not tables:
            self._segment = None
            return saved, []
        if self._segment is not None and list(before) == list(tables):
            blocks = tuple(b for i, name in enumerate(tables) if (b := _changes(i, before[name], tables[name])))
            more_bytes = sum(a.nbytes for b in blocks for a in b.arrays)
            if self._appended_bytes + more_bytes <= sum(a.nbytes for a in tables.values()):
                self._appended_bytes += more_bytes
                return saved, [Append(self._segment.name, blocks)] if blocks else []
        self._segment, self._appended_bytes = Segment(self._new_name()), 0
        whole = tuple(Block(Kind.WHOLE, i, len(a), (a,)) for i, a in enumerate(tables.values()))
        return saved, [Append(self._segment.name, whole)]

    def _is_table(self, array: NDArray[np.generic]) -> bool:
        return array.nbytes > SMALL_BYTES and array.shape == (self._capacity,) and array.itemsize in (1, 2, 4, 8)


def _saved(name: str, array: NDArray[np.generic], *, whole: bool) -> Saved:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return Saved(name, little.dtype.str, array.shape, little.tobytes() if whole else None)


def _changes(table: int, before: NDArray[np.generic], now: NDArray[np.generic]) -> Block | None:
    # Compared as bits: a NaN is equal to itself, and -0 is not 0.
    bits = f"u{now.itemsize}"
    slots = np.flatnonzero(before.view(bits) != now.view(bits))
    if not len(slots):
        return None
    return Block(Kind.CHANGED, table, len(slots), (slots.astype(np.uint32), now[slots]))
