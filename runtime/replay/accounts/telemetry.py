"""Telemetry for viewers, written by the replay process into the segment ``view`` at a bounded cost per poll.

The loop is not involved.  The figures are written four times a second; a sample of the memory is written once a second,
but only while there is a viewer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.histogram import coarse_counts
from onrig.runtime.memory.layout import FLAG_MASK, POLICY_SHIFT, Slots
from onrig.runtime.memory.storage import Storage
from onrig.runtime.record import Flag, Miss, RecordLayout, Rule
from onrig.runtime.shm.segment import Segment, SegmentError
from onrig.runtime.shm.view_segment import FIGURES, SAMPLE_POINTS, sample_dtype, view_parts, view_schema

_FIGURES_INTERVAL_S: Final = 0.25
_SAMPLE_INTERVAL_S: Final = 1.0
_VIEWER_TIMEOUT_NS: Final = 5_000_000_000
"""Time without a viewer's request after which no more samples of the memory are written."""
_STRIDE_GROWTH: Final = 3
"""Factor by which the stride grows, so that every 3^k-th slot is sampled.  A power of two would divide the length of
many episodes, and show the same steps of each.  Because the factor is fixed, values recorded for a slot remain valid
when the stride grows."""
_TALLY_RECORDS: Final = 2048


def copy_experiences(storage: Storage, slots: Slots) -> NDArray[np.void]:
    """Copy experiences for viewers (dtype ``onrig.runtime.shm.view_segment.sample_dtype``), with ``abs_td`` unknown."""
    rows = np.zeros(len(slots), sample_dtype(storage.layout.n_obs, storage.layout.n_act))
    meta = storage.meta[slots]
    rows["number"] = storage.number(slots)
    rows["observation"] = storage.observation[slots]
    rows["action"] = storage.action[slots]
    rows["reward"] = storage.reward[slots]
    rows["exploration"] = storage.exploration[slots]
    rows["abs_td"] = np.nan
    rows["policy_id"] = meta >> np.uint32(POLICY_SHIFT)
    rows["flags"] = meta & np.uint32(FLAG_MASK)
    return rows


class ProcessFigures(NamedTuple):
    """Figures that other parts of the replay process provide; unknown floats are NaN."""

    episode: int
    offered: int
    dropped: int
    gaps: int
    updates: int
    updates_per_s: float
    score_last20: float
    """Mean of ``EpisodeRow.score``."""
    policies_offered: int
    policies_admitted: int
    policies_refused: int


class TdErrorSample:
    """Latest |TD error| of the sampled slots, in an array of fixed size."""

    def __init__(self) -> None:
        self.stride = 1
        self._abs_td = np.full(SAMPLE_POINTS, np.nan, np.float32)
        self._generation = np.zeros(SAMPLE_POINTS, np.uint16)

    def record(self, slots: Slots, generations: NDArray[np.uint32], abs_td: NDArray[np.float32]) -> None:
        """Record TD errors of current experiences, in order; the latest one for a slot counts."""
        position = np.flatnonzero(slots % self.stride == 0) if self.stride > 1 else slice(None)
        index = slots[position] // self.stride
        is_sampled = index < SAMPLE_POINTS
        self._abs_td[index[is_sampled]] = abs_td[position][is_sampled]
        self._generation[index[is_sampled]] = generations[position][is_sampled]

    def select_slots(self, n_stored: int) -> Slots:
        """Return the slots to sample among the first ``n_stored``, at most SAMPLE_POINTS, increasing the stride if
        necessary."""
        while (n_stored + self.stride - 1) // self.stride > SAMPLE_POINTS:
            n_kept = len(self._abs_td[::_STRIDE_GROWTH])
            self._abs_td[:n_kept] = self._abs_td[::_STRIDE_GROWTH].copy()
            self._generation[:n_kept] = self._generation[::_STRIDE_GROWTH].copy()
            self._abs_td[n_kept:] = np.nan
            self.stride *= _STRIDE_GROWTH
        return np.arange(0, n_stored, self.stride, dtype=np.int64)

    def sampled_abs_td(self, generations: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Return |TD error| of the sampled slots; NaN where the current experience has not been replayed yet."""
        n = len(generations)
        return np.where(self._generation[:n] == generations, self._abs_td[:n], np.float32(np.nan))


class Telemetry:
    """Writer of the segment ``view``, which viewers read."""

    def __init__(
        self,
        segment: Segment,
        layout: RecordLayout,
        storage: Storage,
        process_figures: Callable[[], ProcessFigures],
        *,
        lockstep: bool,
    ) -> None:
        self._segment, self._storage, self._process_figures, self._lockstep = (
            segment,
            storage,
            process_figures,
            lockstep,
        )
        self._parts = view_parts(segment, layout)
        self._td_errors = TdErrorSample()
        self._figures = self._previous_figures()
        self._pending_records: list[NDArray[np.void]] = []
        self._n_pending = 0
        self._figures_written_s = self._sampled_s = 0.0

    def _previous_figures(self) -> NDArray[np.void]:
        """Return the counts of the previous replay process, to continue from; zeros if there was none."""
        previous = self._parts.figures.take()
        if previous is not None and len(previous) == FIGURES.itemsize:
            return np.frombuffer(previous, FIGURES).copy()
        return np.zeros(1, FIGURES)

    def add(self, records: NDArray[np.void]) -> None:
        """Process the next records of the ring (dtype ``RecordLayout.dtype``)."""
        self._pending_records.append(records)
        self._n_pending += len(records)
        if self._n_pending >= _TALLY_RECORDS:
            self._tally()

    def on_replay(self, slots: Slots, generations: NDArray[np.uint32], abs_td: NDArray[np.float32]) -> None:
        """Record the |TD errors| of current experiences."""
        self._td_errors.record(slots, generations, abs_td)

    def poll(self, now_s: float) -> None:
        """Write whatever is due at ``now_s`` on the host's monotonic clock."""
        if now_s - self._figures_written_s >= _FIGURES_INTERVAL_S:
            self._figures_written_s = now_s
            self._write_figures(now_s)
        if now_s - self._sampled_s >= _SAMPLE_INTERVAL_S and self._is_watched(now_s):
            self._sampled_s = now_s
            self._parts.sample.put(self._sample())

    def _is_watched(self, now_s: float) -> bool:
        return int(now_s * 1e9) - self._parts.watched[0] < _VIEWER_TIMEOUT_NS

    def _tally(self) -> None:
        if not self._pending_records:
            return
        records = np.concatenate(self._pending_records)
        self._pending_records, self._n_pending = [], 0
        row = self._figures
        row["ticks"] += len(records)
        missed = np.bincount(np.minimum(records["miss"], len(Miss) - 1), weights=records["missed"], minlength=len(Miss))
        row["missed"] += missed.astype(np.int64)
        row["rules"] += np.bincount(np.minimum(records["rule"], len(Rule) - 1), minlength=len(Rule))
        row["faults"] += np.count_nonzero(records["fault"])
        row["late_commands"] += np.count_nonzero(records["flags"] & Flag.LATE)
        ticks = records["tick_ns"]
        row["tick_bins"] += coarse_counts(ticks)
        row["tick_max_ns"] = max(int(row["tick_max_ns"][0]), int(ticks.max()))
        if not self._lockstep:
            lateness_ns = records["lateness_ns"]
            row["lateness_bins"] += coarse_counts(lateness_ns)
            row["lateness_max_ns"] = max(int(row["lateness_max_ns"][0]), int(lateness_ns.max()))

    def _write_figures(self, now_s: float) -> None:
        self._tally()
        row, storage = self._figures, self._storage
        row["t_mono_ns"] = int(now_s * 1e9)
        row["stored"], row["capacity"], row["inserted"] = storage.stored, storage.capacity, storage.inserted
        process_figures = self._process_figures()
        for name, value in zip(ProcessFigures._fields, process_figures, strict=True):
            row[name] = value
        self._parts.figures.put(row.tobytes())

    def _sample(self) -> bytes:
        slots = self._td_errors.select_slots(self._storage.stored)
        rows = copy_experiences(self._storage, slots)
        rows["abs_td"] = self._td_errors.sampled_abs_td(self._storage.generation(slots))
        return rows.tobytes()

    def close(self) -> None:
        """Write the last figures, and unmap the segment."""
        self._write_figures(time.monotonic())
        self._parts.close()
        self._segment.close()


def open_telemetry(
    shm: Path, layout: RecordLayout, storage: Storage, process_figures: Callable[[], ProcessFigures], *, lockstep: bool
) -> Telemetry | None:
    """Attach to the run's segment ``view``; return None if it does not exist, because viewing is optional."""
    try:
        segment = Segment.attach(shm / "view", view_schema(layout))
    except SegmentError:
        return None
    return Telemetry(segment, layout, storage, process_figures, lockstep=lockstep)
