"""Access for viewers to the shared memory of a run in progress."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.histogram import CoarseHistogram
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.actuators import Actuators
from onrig.runtime.run_state.running import Running
from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.ring import RingHistory
from onrig.runtime.shm.segment import Segment
from onrig.runtime.shm.view_segment import (
    FIGURES,
    sample_dtype,
    view_parts,
    view_schema,
)


class Figures(NamedTuple):
    """Counts since the run began."""

    t_mono_ns: int
    """Time at which the replay process wrote the figures (host monotonic)."""
    ticks: int
    missed: tuple[int, ...]
    """Missed ticks by ``onrig.runtime.record.Miss``; the sum is their total number."""
    rules: tuple[int, ...]
    """Ticks by the shield's acting rule (``onrig.runtime.record.Rule``); the first counts ticks without one."""
    faults: int
    late_commands: int
    episode: int
    """Last training episode with a score."""
    stored: int
    capacity: int
    inserted: int
    offered: int
    dropped: int
    """Records dropped because the ring was full."""
    gaps: int
    updates: int
    updates_per_s: float
    """Update rate of the learner."""
    score_last20: float | None
    """Mean score of the last 20 training episodes (``onrig.runtime.scoring.measure_of``)."""
    policies_offered: int
    policies_admitted: int
    policies_refused: int
    tick: CoarseHistogram
    lateness: CoarseHistogram
    """Empty in lockstep."""


class ViewReader:
    """Reader of a run in progress; a context manager. Its methods do not block.

    >>> with ViewReader.attach(running) as view:   # running: onrig.runtime.run_state.running.Running
    ...     next_seq, records = view.records(first_seq=0, limit=500)
    ...     view.keep_sampling()
    """

    def __init__(self, shm: Path, config: RunConfig) -> None:
        """Raises SegmentError if the run has ended, or belongs to another version."""
        rig = config.rig
        self.config = config
        self.layout = record_layout(config)
        self._sample = sample_dtype(len(config.signals), len(rig.actuators))
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            board, ring, view = (
                stack.enter_context(contextlib.closing(Segment.attach(shm / name, schema)))
                for name, schema in (
                    ("board", BOARD_SCHEMA),
                    ("ring", self.layout.schema),
                    ("view", view_schema(self.layout)),
                )
            )
            self._board = stack.enter_context(contextlib.closing(Board(board)))
            self._ring = stack.enter_context(contextlib.closing(RingHistory(ring, self.layout)))
            self._view_parts = stack.enter_context(contextlib.closing(view_parts(view, self.layout)))
            self._stack = stack.pop_all()

    @classmethod
    def attach(cls, running: Running) -> ViewReader:
        """Attach to a run of this user; raises SegmentError, or ConfigError if its folder is damaged."""
        return cls(running.shm, load_resolved(running.folder / "config.yaml"))

    def __enter__(self) -> ViewReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def word(self, word: Word) -> int:
        """Return a word of the board: state, tick, policy, ..."""
        return self._board[word]

    @property
    def actuators(self) -> Actuators:
        """State of the actuators as reported by the device."""
        return Actuators.read(self._board)

    def records(self, first_seq: int, limit: int) -> tuple[int, NDArray[np.void]]:
        """Return the number for the next call, and the step records from number ``first_seq`` on, in ascending order.

        At most the newest ``limit`` records are returned (dtype ``layout.dtype``, SI units); the ring has at least the
        last 8192.
        """
        records = self._ring.records_since(first_seq, limit)
        return (int(records[-1]["seq"]) + 1 if len(records) else first_seq), records

    def figures(self) -> Figures | None:
        """Return the newest figures, about 0.25 s old; None before the first."""
        raw = self._view_parts.figures.take()
        if raw is None or len(raw) != FIGURES.itemsize:
            return None
        row = np.frombuffer(raw, FIGURES)[0]
        last20 = float(row["score_last20"])
        return Figures(
            t_mono_ns=int(row["t_mono_ns"]),
            ticks=int(row["ticks"]),
            missed=tuple(row["missed"].tolist()),
            rules=tuple(row["rules"].tolist()),
            faults=int(row["faults"]),
            late_commands=int(row["late_commands"]),
            episode=int(row["episode"]),
            stored=int(row["stored"]),
            capacity=int(row["capacity"]),
            inserted=int(row["inserted"]),
            offered=int(row["offered"]),
            dropped=int(row["dropped"]),
            gaps=int(row["gaps"]),
            updates=int(row["updates"]),
            updates_per_s=float(row["updates_per_s"]),
            score_last20=None if np.isnan(last20) else last20,
            policies_offered=int(row["policies_offered"]),
            policies_admitted=int(row["policies_admitted"]),
            policies_refused=int(row["policies_refused"]),
            tick=CoarseHistogram(row["tick_bins"].copy(), int(row["tick_max_ns"])),
            lateness=CoarseHistogram(row["lateness_bins"].copy(), int(row["lateness_max_ns"])),
        )

    @property
    def sample_version(self) -> int:
        """Number of samples of the memory taken so far; it does not change without new records."""
        return self._view_parts.sample.version

    def sample(self) -> NDArray[np.void] | None:
        """Return the newest sample of the memory (dtype ``onrig.runtime.shm.view_segment.sample_dtype``), spread over
        its slots.

        It is renewed about once a second, and only while a viewer calls ``keep_sampling``.
        """
        raw = self._view_parts.sample.take()
        if raw is None or len(raw) % self._sample.itemsize:
            return None
        return np.frombuffer(raw, self._sample)

    def keep_sampling(self) -> None:
        """Signal that a viewer is watching; the call must be repeated every second or two."""
        self._view_parts.watched[0] = time.monotonic_ns()

    def close(self) -> None:
        """Unmap the run's shared memory."""
        self._stack.close()
