"""Figures of a run, accumulated from its step records; events of ticks; histograms for ``timing.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.files import MAX_JSON_BYTES, read_file, replace_own_file
from onrig.runtime.histogram import N_COARSE_BINS, DurationHistogram, coarse_counts
from onrig.runtime.record import STAGES, Flag, Miss, Rule
from onrig.runtime.run_state.episodes import EpisodeRow

_SCORED_EPISODES: Final = 20
_COUNTS: Final = ("ticks", "missed", "interventions", "faults")


NonEmptyBins = tuple[int, list[tuple[int, int]]]
"""Non-empty part of a histogram: longest duration in ns, and (bin, count) pairs."""


class Durations(msgspec.Struct, frozen=True):
    """Histograms of durations that a checkpoint stores in addition to the counts."""

    tick: NonEmptyBins
    lateness: NonEmptyBins
    stage_ns: tuple[int, ...]


class RunFigures:
    """Figures of the loop for ``summary.json`` and the progress line; they include lateness only in real time."""

    def __init__(self, *, lockstep: bool, trainer: bool = False) -> None:
        self._lockstep = lockstep
        self._tick_us, self._lateness_us = DurationHistogram(), DurationHistogram()
        self._stage_ns = np.zeros(len(STAGES), np.int64)
        self._last_rows: list[EpisodeRow] = []
        self.ticks = self.missed = self.interventions = self.faults = 0
        self.n_held: int | None = 0 if trainer else None
        """Ticks in which a trainer sent no action in time; None if policies act."""

    def add(self, records: NDArray[np.void]) -> None:
        """Process the next records (dtype ``RecordLayout.dtype``)."""
        self.ticks += len(records)
        self.missed += int(records["missed"].sum())
        self.interventions += int(np.count_nonzero(records["rule"]))
        self.faults += int(np.count_nonzero(records["fault"]))
        if self.n_held is not None:
            self.n_held += int(np.count_nonzero(records["flags"] & Flag.HELD))
        self._tick_us.add(records["tick_ns"])
        if not self._lockstep:
            self._lateness_us.add(records["lateness_ns"])
        self._stage_ns += records["stage_ns"].sum(axis=0, dtype=np.int64)

    def add_training(self, row: EpisodeRow) -> None:
        """Add a training episode; one without a step (after a fault) has no score."""
        if row.steps:
            self._last_rows = [*self._last_rows[1 - _SCORED_EPISODES :], row]

    def counts(self) -> dict[str, int]:
        """Return the counts for a checkpoint."""
        held = {} if self.n_held is None else {"held": self.n_held}
        return {name: getattr(self, name) for name in _COUNTS} | held

    def resume(self, counts: Mapping[str, int]) -> None:
        """Continue from a checkpoint's counts."""
        for name in _COUNTS:
            setattr(self, name, counts[name])
        if self.n_held is not None:
            self.n_held = counts.get("held", 0)

    def durations(self) -> Durations:
        """Return the histograms for a checkpoint."""
        return Durations(self._tick_us.state(), self._lateness_us.state(), tuple(self._stage_ns.tolist()))

    def restore_durations(self, durations: Durations) -> None:
        """Continue from a checkpoint's histograms; raises ValueError or IndexError if another version wrote them."""
        self._tick_us.restore(*durations.tick)
        self._lateness_us.restore(*durations.lateness)
        self._stage_ns[:] = durations.stage_ns

    def add_earlier_rows(
        self, rows: Sequence[EpisodeRow], unrecorded_rows: Sequence[EpisodeRow] = (), n_counted: int = 0
    ) -> None:
        """Continue after the ``rows`` of earlier episodes.

        ``unrecorded_rows``: rows of episodes whose records were lost; ``n_counted``: number of those episodes' records
        that the counts already include.
        """
        for row in rows:
            if row.kind == "train":
                self.add_training(row)
        self.ticks -= n_counted
        for row in unrecorded_rows:
            self.ticks += row.steps + 1
            self.missed += row.missed_ticks
            self.interventions += row.interventions

    @property
    def normalized_last20(self) -> float | None:
        """Mean normalised performance of the last 20 training episodes; None before the first, or if the task has no
        references."""
        values = [r.normalized for r in self._last_rows if r.normalized is not None]
        return float(np.mean(values)) if values else None

    @property
    def return_last20(self) -> float | None:
        """Mean return of the last 20 training episodes, raw units; None before the first."""
        return float(np.mean([r.reward_sum for r in self._last_rows])) if self._last_rows else None

    @property
    def episode(self) -> int:
        """Last scored training episode."""
        return self._last_rows[-1].episode if self._last_rows else 0

    def summary(self) -> dict[str, object]:
        """Return the loop's part of ``summary.json``."""
        return {
            "ticks": self.ticks,
            "missed_ticks": self.missed,
            "lateness_us": self._lateness_us.summary_us(),
            "tick_us": self._tick_us.summary_us(),
            "stage_us_mean": {
                name: round(float(ns) / max(self.ticks, 1) / 1000, 2)
                for name, ns in zip(STAGES, self._stage_ns, strict=True)
            },
            "interventions": self.interventions,
            **({} if self.n_held is None else {"held_actions": self.n_held}),
            "faults": self.faults,
            "normalized_last20": self.normalized_last20,
            "return_last20": self.return_last20,
        }


class TickEvents:
    """Writes an event when a rule of the shield begins to act, when ticks are missed, and for each fault."""

    def __init__(self, event: Callable[..., None]) -> None:
        self._event = event
        self._last_rule = int(Rule.NONE)

    def add(self, records: NDArray[np.void]) -> None:
        """Process the next records (dtype ``RecordLayout.dtype``, at least one)."""
        rules = records["rule"]
        previous = np.concatenate([[self._last_rule], rules[:-1]])
        self._last_rule = int(rules[-1])
        has_begun = (rules != previous) & (rules != Rule.NONE) & (rules != Rule.FALLBACK)
        for index in np.flatnonzero(has_begun | (records["missed"] > 0) | (records["fault"] > 0)).tolist():
            r = records[index]
            self._event(
                "tick",
                episode=int(r["episode"]),
                tick=int(r["tick"]),
                rule=Rule(r["rule"]).name.lower(),
                amount=round(float(r["amount"]), 6),
                missed=int(r["missed"]),
                cause=Miss(r["miss"]).name.lower(),
                fault=int(r["fault"]),
                policy=int(r["policy_id"]),
            )


FILE: Final = "timing.json"
_BATCH_RECORDS: Final = 512
"""Number of records counted together, because counting many costs the same as counting one."""


class Timing(msgspec.Struct, frozen=True):
    """Content of ``timing.json``: histograms of the entire tick, its stages and (in real time) the lateness of samples.

    Bin b counts durations from 2^((first + b)/8) ns up to 2^((first + b + 1)/8) ns.
    """

    histograms: dict[str, Counts]


class Counts(msgspec.Struct, frozen=True):
    """Counts in bins of an eighth of an octave, starting with bin ``first``."""

    first: int
    counts: tuple[int, ...]


class TimingFile:
    """Accumulates ``timing.json`` in bounded memory, and writes it at the end of the run.

    A resumed run adds to the existing content; in lockstep this counts the ticks that it repeats once more.  Ticks of a
    process that crashed are missing.
    """

    def __init__(self, path: Path, *, lockstep: bool) -> None:
        self._path = path
        names = ("tick", *STAGES, *(() if lockstep else ("lateness",)))
        self._bins = {name: np.zeros(N_COARSE_BINS, np.int64) for name in names}
        for name, (first, counts) in _earlier_histograms(path).items():
            if name in self._bins and first >= 0 and first + len(counts) <= N_COARSE_BINS:
                self._bins[name][first : first + len(counts)] = counts
        self._pending_records: list[NDArray[np.void]] = []
        self._n_pending = 0

    def add(self, records: NDArray[np.void]) -> None:
        """Process the next records (dtype ``RecordLayout.dtype``)."""
        self._pending_records.append(records)
        self._n_pending += len(records)
        if self._n_pending >= _BATCH_RECORDS:
            self._count()

    def _count(self) -> None:
        if not self._pending_records:
            return
        records = np.concatenate(self._pending_records)
        self._pending_records, self._n_pending = [], 0
        # The last record of an episode has no command, so its stages are not timed.
        timed_records = records[records["stage_ns"].any(axis=1)]
        self._bins["tick"] += coarse_counts(timed_records["tick_ns"])
        for i, stage in enumerate(STAGES):
            self._bins[stage] += coarse_counts(timed_records["stage_ns"][:, i])
        if "lateness" in self._bins:
            self._bins["lateness"] += coarse_counts(records["lateness_ns"])

    def write(self) -> None:
        """Write the file; raises OSError."""
        self._count()
        document = Timing({name: _non_empty_bins(bins) for name, bins in self._bins.items() if bins.any()})
        replace_own_file(self._path, msgspec.json.encode(document) + b"\n")


def _earlier_histograms(path: Path) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return the histograms of the existing file; empty if it is missing or damaged."""
    try:
        content = msgspec.json.decode(read_file(path, MAX_JSON_BYTES), type=Timing).histograms
    except (OSError, msgspec.DecodeError):
        return {}
    return {name: (histogram.first, histogram.counts) for name, histogram in content.items()}


def _non_empty_bins(bins: NDArray[np.int64]) -> Counts:
    indices = np.flatnonzero(bins)
    first, last = int(indices[0]), int(indices[-1])
    return Counts(first, tuple(bins[first : last + 1].tolist()))
