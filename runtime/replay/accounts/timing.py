"""``timing.json``: where the time of all ticks of a run went, as histograms; for the report of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.histogram import COARSE_BINS, coarse_counts
from onrig.runtime.record import STAGES
from onrig.runtime.replaced_file import replace_own_file

FILE: Final = "timing.json"
_AT_ONCE: Final = 512
"""Records that are waited for: counting them costs the same for one as for many."""


class Timing(msgspec.Struct, frozen=True):
    """The file: one histogram each for a whole tick, its stages and (where time is real) the lateness of a sample.

    Bin b counts durations from 2^((first + b)/8) ns up to 2^((first + b + 1)/8) ns.
    """

    histograms: dict[str, Counts]


class Counts(msgspec.Struct, frozen=True):
    """Counts in bins of an eighth of an octave, beginning with bin ``first``."""

    first: int
    counts: tuple[int, ...]


class TimingFile:
    """Counts records in bounded memory, and writes the file at the end of the run."""

    def __init__(self, path: Path, *, lockstep: bool) -> None:
        self._path = path
        names = ("tick", *STAGES, *(() if lockstep else ("lateness",)))
        self._bins = {name: np.zeros(COARSE_BINS, np.int64) for name in names}
        self._waiting: list[NDArray[np.void]] = []
        self._n_waiting = 0

    def add(self, records: NDArray[np.void]) -> None:
        """Take the next records (dtype ``RecordLayout.dtype``)."""
        self._waiting.append(records)
        self._n_waiting += len(records)
        if self._n_waiting >= _AT_ONCE:
            self._count()

    def _count(self) -> None:
        if not self._waiting:
            return
        records = np.concatenate(self._waiting)
        self._waiting, self._n_waiting = [], 0
        # The record that closes an episode has made no command: its stages were never timed.
        timed = records[records["stage_ns"].any(axis=1)]
        self._bins["tick"] += coarse_counts(timed["tick_ns"])
        for i, stage in enumerate(STAGES):
            self._bins[stage] += coarse_counts(timed["stage_ns"][:, i])
        if "lateness" in self._bins:
            self._bins["lateness"] += coarse_counts(records["lateness_ns"])

    def write(self) -> None:
        """Write the file; raises OSError."""
        self._count()
        document = Timing({name: _trimmed(bins) for name, bins in self._bins.items() if bins.any()})
        replace_own_file(self._path, msgspec.json.encode(document) + b"\n")


def _trimmed(bins: NDArray[np.int64]) -> Counts:
    filled = np.flatnonzero(bins)
    first, last = int(filled[0]), int(filled[-1])
    return Counts(first, tuple(bins[first : last + 1].tolist()))
