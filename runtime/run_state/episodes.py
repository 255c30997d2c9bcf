"""Episode statistics and their file ``episodes.csv``: one row per episode, written at its end."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.runtime.files import MAX_TABLE_BYTES, open_file, read_file
from onrig.runtime.record import Flag, Kind, Rule
from onrig.runtime.scoring import compile_cut_off_reward, normalized
from onrig.runtime.task import Task, episode_steps


class EpisodeRow(NamedTuple):
    """One row of ``episodes.csv``; rewards are in the task's raw units, and ``exploration`` is the mean over the
    steps."""

    episode: int
    kind: str
    steps: int
    reward_sum: float
    mean_reward: float
    normalized: float | None
    """None for a task without references."""
    exploration: float
    interventions: int
    missed_ticks: int
    policy_id: int
    t_mono_ns: int

    @property
    def score(self) -> float:
        """Value of the task's measure (``onrig.runtime.scoring.measure_of``)."""
        return self.reward_sum if self.normalized is None else self.normalized


COLUMNS: Final = ("episode", "kind", "steps", "return", *EpisodeRow._fields[4:])


class EpisodeSums(msgspec.Struct):
    """Sums over the records of an open episode, or of an attempt interrupted by a fault."""

    episode: int
    kind: int
    steps: int = 0
    reward: float | None = 0.0
    """Sum over the steps; None stands for NaN, which JSON lacks."""
    exploration: float | None = 0.0
    interventions: int = 0
    missed: int = 0
    policy_id: int = 0
    """Id of the latest policy that acted."""
    passed: int = 0
    """Number of steps elapsed, valid or not; 0 in checkpoints written by earlier versions."""

    def add(self, records: NDArray[np.void]) -> None:
        """Add the next records, at least one."""
        counts = (records["flags"] & (Flag.NO_ACTION | Flag.INVALID)) == 0
        self.steps += int(np.count_nonzero(counts))
        self.passed += int(np.count_nonzero((records["flags"] & Flag.NO_ACTION) == 0))
        self.reward = _sum_in_order(self.reward, records["reward"][counts])
        self.exploration = _sum_in_order(self.exploration, records["exploration"][counts])
        self.interventions += int(np.count_nonzero(records["rule"] != Rule.NONE))
        self.missed += int(records["missed"].sum())
        self.policy_id = max(self.policy_id, int(records["policy_id"].max()))

    def row(self, task: Task, t_mono_ns: int, cut_off_steps: int = 0, cut_off_reward: float = 0.0) -> EpisodeRow:
        """Build the row of the episode, which ended at ``t_mono_ns``.

        ``cut_off_steps``: number of steps cut off by a termination, each of which counts as ``cut_off_reward``.
        """
        n, total, exploration = self.steps, _float(self.reward), _float(self.exploration)
        mean = total / n if n else math.nan
        return EpisodeRow(
            episode=self.episode,
            kind="train" if self.kind == Kind.TRAIN else "eval",
            steps=n,
            reward_sum=total,
            mean_reward=mean,
            normalized=normalized(task, total, n, cut_off_steps, cut_off_reward),
            exploration=exploration / n if n else 0.0,
            interventions=self.interventions,
            missed_ticks=self.missed,
            policy_id=self.policy_id,
            t_mono_ns=t_mono_ns,
        )


def _float(total: float | None) -> float:
    return math.nan if total is None else total


def _sum_in_order(total: float | None, values: NDArray[np.floating]) -> float | None:
    """Sum in the order of the records, so that the digits depend neither on batches nor on restarts."""
    new_total = float(np.cumsum(np.concatenate(([_float(total)], values)), dtype=np.float64)[-1])
    return None if math.isnan(new_total) else new_total


class EpisodeAccounts:
    """Sums over the records of the open episode, which may last for hours."""

    def __init__(self, task: Task, rate_hz: float, rig: Rig) -> None:
        self._task, self._n_steps = task, episode_steps(task, rate_hz)
        self._cut_off_reward = compile_cut_off_reward(task, rig)
        self._open_sums: list[EpisodeSums] = []
        """Sums of the open episode and of its interrupted attempts; the sums with the newest records come last."""

    @property
    def is_between_episodes(self) -> bool:
        """Whether no episode is open."""
        return not self._open_sums

    def add(self, records: NDArray[np.void]) -> list[EpisodeRow]:
        """Add the next records; return the rows of the episodes they close."""
        rows = []
        start = 0
        for end in (np.flatnonzero(records["flags"] & Flag.NO_ACTION) + 1).tolist():
            self._add_part(records[start:end])
            sums, last_record = self._open_sums[-1], records[end - 1]
            # Only a termination by the task cuts off steps, not a fault, a stop or a time-out.
            has_terminated = bool(last_record["flags"] & Flag.TERMINATED)
            cut_off_steps = max(0, self._n_steps - max(sums.passed, sums.steps)) if has_terminated else 0
            reward = self._cut_off_reward(last_record["observation"].tolist()) if cut_off_steps else 0.0
            rows.append(sums.row(self._task, int(last_record["t_mono_ns"]), cut_off_steps, reward))
            self._open_sums = []  # an attempt cut short by a fault is not counted
            start = end
        self._add_part(records[start:])
        return rows

    def _add_part(self, records: NDArray[np.void]) -> None:
        episode, kind = records["episode"], records["kind"]
        edges = np.flatnonzero((episode[1:] != episode[:-1]) | (kind[1:] != kind[:-1])) + 1
        for part in np.split(records, edges) if len(records) else ():
            key = int(part["episode"][0]), int(part["kind"][0])
            sums = next((s for s in self._open_sums if (s.episode, s.kind) == key), None) or EpisodeSums(*key)
            sums.add(part)
            self._open_sums = [*(s for s in self._open_sums if s is not sums), sums]

    def state(self) -> tuple[EpisodeSums, ...]:
        """Return the state of the open episode, for a checkpoint."""
        return tuple(msgspec.structs.replace(sums) for sums in self._open_sums)

    def restore(self, state: tuple[EpisodeSums, ...]) -> None:
        """Restore a state returned by ``state()``."""
        self._open_sums = list(state)


class StoredRows(NamedTuple):
    """Content of ``episodes.csv``."""

    rows: list[EpisodeRow]
    ends: list[int]
    """Byte offset of the end of each row."""
    n_partial_bytes: int
    """Number of bytes after the last complete line, left by a row that a power failure truncated."""


def read_rows(path: Path) -> StoredRows:
    """Read ``episodes.csv`` (empty if missing); raises ValueError for an invalid line between rows."""
    if not path.exists():
        return StoredRows([], [], 0)
    data = read_file(path, MAX_TABLE_BYTES)
    rows: list[EpisodeRow] = []
    ends: list[int] = []
    end = 0
    for number, line in enumerate(data.splitlines(keepends=True)):
        if not line.endswith(b"\n"):
            break
        if number:
            row = parse_row(line)
            if row is None and end + len(line) < len(data):
                raise ValueError(f"{path}:{number + 1}: invalid row; correct or delete the line")
            if row is None:
                break
            rows.append(row)
            ends.append(end + len(line))
        end += len(line)
    return StoredRows(rows, ends, len(data) - end)


def truncate_rows(path: Path, stored: StoredRows, count: int) -> None:
    """Truncate the file after its first ``count`` rows, durably; raises OSError."""
    if not path.exists():
        return
    with open_file(path, None) as file:
        header = file.readline(MAX_TABLE_BYTES)
    end = stored.ends[count - 1] if count else len(header) if header.endswith(b"\n") else 0
    if path.stat().st_size == end:
        return
    with path.open("r+b") as file:
        file.truncate(end)
        os.fsync(file.fileno())


def parse_row(line: bytes) -> EpisodeRow | None:
    """Parse one line of ``episodes.csv``; None if it is not a row."""
    try:
        values = next(csv.reader([line.decode()]))
        if len(values) != len(COLUMNS) or values[1] not in ("train", "eval"):
            return None
        episode, kind, steps, total, mean, normalized, exploration, interventions, missed, policy, t_mono_ns = values
        return EpisodeRow(
            int(episode),
            kind,
            int(steps),
            float(total),
            float(mean),
            float(normalized) if normalized else None,
            float(exploration),
            int(interventions),
            int(missed),
            int(policy),
            int(t_mono_ns),
        )
    except (ValueError, csv.Error, StopIteration):
        return None


class EpisodeFile:
    """Writer of ``episodes.csv``; readers always see complete lines. While the disk is full, rows wait in memory, in
    order."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        """Number of rows appended, including those not yet written."""
        self.last: EpisodeRow | None = None
        with contextlib.suppress(ValueError):  # edited by hand: keep the file and append to it
            stored = read_rows(path)
            self.count = len(stored.rows)
            self.last = stored.rows[-1] if stored.rows else None
            if stored.n_partial_bytes:  # its writer was killed
                truncate_rows(path, stored, self.count)
        self._file = path.open("ab", buffering=0)
        self._unwritten_data = bytearray() if self._file.tell() else bytearray(_format_line(COLUMNS))
        self._row_ends: deque[int] = deque()
        """End of each pending row in ``_unwritten_data``."""
        self.flush()

    @property
    def waiting(self) -> int:
        """Number of rows not yet written to disk."""
        return len(self._row_ends)

    def append(self, row: EpisodeRow) -> None:
        """Append one row, ignoring a row repeated by a restarted replay process that reads records again.

        Floats are written with all digits, so that equal runs give equal files; None is written as an empty field.
        """
        if self.last is not None and _sort_key(row) <= _sort_key(self.last):
            return
        line = _format_line([repr(v) if isinstance(v, float) else v for v in row])
        self._unwritten_data += line
        self._row_ends.append(len(self._unwritten_data))
        self.count, self.last = self.count + 1, row
        self.flush()

    def flush(self) -> bool:
        """Write the pending rows; return True if all have been written."""
        while self._unwritten_data:
            try:
                n_written = self._file.write(self._unwritten_data) or 0
            except OSError:
                return False
            del self._unwritten_data[:n_written]
            self._row_ends = deque(end - n_written for end in self._row_ends if end > n_written)
        self._row_ends.clear()
        return True

    def close(self) -> None:
        """Close the file."""
        self.flush()
        self._file.close()


def _sort_key(row: EpisodeRow) -> tuple[int, bool]:
    return row.episode, row.kind == "eval"


def _format_line(values: Iterable[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()
