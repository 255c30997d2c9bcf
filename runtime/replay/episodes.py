"""Accounts of each episode, and the file they go to: ``episodes.csv``, one row per episode, written as it ends."""

from __future__ import annotations

import contextlib
import csv
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.record import Flag, Kind, Rule
from runtime.task import Task, normalized


class EpisodeRow(NamedTuple):
    """One row of ``episodes.csv``; rewards in the task's raw units, ``exploration`` the mean over its steps."""

    episode: int
    kind: str
    steps: int
    reward_sum: float
    mean_reward: float
    normalized: float
    exploration: float
    interventions: int
    missed_ticks: int
    policy_id: int
    t_mono_ns: int


COLUMNS: Final = ("episode", "kind", "steps", "return", *EpisodeRow._fields[4:])


class EpisodeAccounts:
    """Adds up records until an episode's last one."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._parts: list[NDArray[np.void]] = []

    def add(self, records: NDArray[np.void]) -> list[EpisodeRow]:
        """Take the next records; return the rows of the episodes they close."""
        rows = []
        start = 0
        for end in (np.flatnonzero(records["flags"] & Flag.NO_ACTION) + 1).tolist():
            rows.append(self._close(np.concatenate([*self._parts, records[start:end]])))
            self._parts = []
            start = end
        if start < len(records):
            self._parts.append(records[start:].copy())
        return rows

    def _close(self, records: NDArray[np.void]) -> EpisodeRow:
        last = records[-1]
        # An episode cut short by a fault may leave older records of itself behind: only this one's count.
        own = records[(records["episode"] == last["episode"]) & (records["kind"] == last["kind"])]
        steps = own[(own["flags"] & (Flag.NO_ACTION | Flag.INVALID)) == 0]
        n = len(steps)
        total = float(steps["reward"].sum())
        mean = total / n if n else float("nan")
        return EpisodeRow(
            episode=int(last["episode"]),
            kind="train" if last["kind"] == Kind.TRAIN else "eval",
            steps=n,
            reward_sum=total,
            mean_reward=mean,
            normalized=normalized(self._task, mean),
            exploration=float(steps["exploration"].mean(dtype=np.float64)) if n else 0.0,
            interventions=int(np.count_nonzero(own["rule"] != Rule.NONE)),
            missed_ticks=int(own["missed"].sum()),
            policy_id=int(own["policy_id"].max()),
            t_mono_ns=int(last["t_mono_ns"]),
        )


class EpisodeFile:
    """Appends rows to ``episodes.csv``; a reader always sees whole lines."""

    def __init__(self, path: Path) -> None:
        fresh = not path.exists() or path.stat().st_size == 0
        self._file = path.open("a", newline="", encoding="utf-8", buffering=1)
        self._writer = csv.writer(self._file, lineterminator="\n")
        if fresh:
            self._writer.writerow(COLUMNS)

    def append(self, row: EpisodeRow) -> None:
        """Write one row; floats with all their digits, so that equal runs give equal files.

        A full disk loses the row, and nothing else.
        """
        with contextlib.suppress(OSError):
            self._writer.writerow([repr(v) if isinstance(v, float) else v for v in row])

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()
