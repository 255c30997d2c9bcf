"""Episode statistics and their file ``episodes.csv``: one row per episode, written as it ends."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.recfunctions import repack_fields
from numpy.typing import NDArray

from onrig.runtime.record import Flag, Kind, Rule
from onrig.runtime.task import Task, normalized


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


_USED: Final = (
    "seq",
    "episode",
    "kind",
    "flags",
    "reward",
    "exploration",
    "rule",
    "missed",
    "policy_id",
    "t_mono_ns",
)
"""Fields of a record that a row is made of."""
COLUMNS: Final = ("episode", "kind", "steps", "return", *EpisodeRow._fields[4:])


class EpisodeAccounts:
    """Sums over the records of an episode."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._parts: list[NDArray[np.void]] = []

    @property
    def whole(self) -> bool:
        """Whether no episode is open."""
        return not self._parts

    @property
    def first_seq(self) -> int | None:
        """Number of the first record of the open episode; None if none is open."""
        return int(self._parts[0]["seq"][0]) if self._parts else None

    def add(self, records: NDArray[np.void]) -> list[EpisodeRow]:
        """Take the next records; return the rows of the episodes they close."""
        rows = []
        start = 0
        records = repack_fields(records[list(_USED)])  # a fifth of a record: an episode may last for hours
        for end in (np.flatnonzero(records["flags"] & Flag.NO_ACTION) + 1).tolist():
            rows.append(self._close(np.concatenate([*self._parts, records[start:end]])))
            self._parts = []
            start = end
        if start < len(records):
            self._parts.append(records[start:])
        return rows

    def _close(self, records: NDArray[np.void]) -> EpisodeRow:
        last = records[-1]
        # An earlier attempt at this episode, cut short by a fault, may have left records: leave them out.
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


class FiledRows(NamedTuple):
    """Content of ``episodes.csv``."""

    rows: list[EpisodeRow]
    ends: list[int]
    """Byte offset of the end of each row."""
    broken: int
    """Bytes after the last whole line: a row cut off by a power failure."""


def read_rows(path: Path) -> FiledRows:
    """Read ``episodes.csv`` (empty if missing); ValueError for an invalid line between rows."""
    if not path.exists():
        return FiledRows([], [], 0)
    data = path.read_bytes()
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
    return FiledRows(rows, ends, len(data) - end)


def keep_rows(path: Path, filed: FiledRows, count: int) -> None:
    """Truncate the file after its first ``count`` rows, durably; raises OSError."""
    if not path.exists():
        return
    head = path.read_bytes().find(b"\n") + 1
    end = filed.ends[count - 1] if count else head
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
        episode, kind, steps, total, mean, normal, exploration, interventions, missed, policy, t_mono_ns = values
        return EpisodeRow(
            int(episode),
            kind,
            int(steps),
            float(total),
            float(mean),
            float(normal),
            float(exploration),
            int(interventions),
            int(missed),
            int(policy),
            int(t_mono_ns),
        )
    except (ValueError, csv.Error, StopIteration):
        return None


class EpisodeFile:
    """Writer of ``episodes.csv``; a reader always sees whole lines.

    On a full disk, rows wait in memory, in order, until there is room.
    """

    def __init__(self, path: Path) -> None:
        self.count = 0
        """Rows appended, waiting ones included."""
        self.last: EpisodeRow | None = None
        with contextlib.suppress(ValueError):  # edited by hand: leave it as it is and append
            filed = read_rows(path)
            self.count = len(filed.rows)
            self.last = filed.rows[-1] if filed.rows else None
            if filed.broken:  # its writer was killed
                keep_rows(path, filed, self.count)
        self._file = path.open("ab", buffering=0)
        self._waiting = bytearray() if self._file.tell() else bytearray(_line(COLUMNS))
        self._unwritten: deque[int] = deque()
        """End of each waiting row in ``_waiting``."""
        self.flush()

    @property
    def waiting(self) -> int:
        """Rows not yet written to disk."""
        return len(self._unwritten)

    def append(self, row: EpisodeRow) -> None:
        """Write one row; floats with all their digits, so that equal runs give equal files.

        A second row of the same episode, from a restarted replay process that reads records again, is left out.
        """
        if self.last is not None and _order(row) <= _order(self.last):
            return
        line = _line([repr(v) if isinstance(v, float) else v for v in row])
        self._waiting += line
        self._unwritten.append(len(self._waiting))
        self.count, self.last = self.count + 1, row
        self.flush()

    def flush(self) -> bool:
        """Write the waiting rows; True if none is left."""
        while self._waiting:
            try:
                taken = self._file.write(self._waiting) or 0
            except OSError:
                return False
            del self._waiting[:taken]
            self._unwritten = deque(end - taken for end in self._unwritten if end > taken)
        self._unwritten.clear()
        return True

    def close(self) -> None:
        """Close the file."""
        self.flush()
        self._file.close()


def _order(row: EpisodeRow) -> tuple[int, bool]:
    return row.episode, row.kind == "eval"


def _line(values: Iterable[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()
