"""The episodes of a run, as many as a picture has room for."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from typing import Final

LIMIT: Final = 2000
Row = list[float | int | None]
FIELDS: Final = ("episode", "eval", "steps", "normalized", "exploration", "interventions", "missed", "policy")
"""Columns of a row; of rows that were merged: the last one's number, the means of normalized and exploration, and the
sums of interventions and missed ticks."""
_EPISODE, _EVAL, _SCORE, _EXPLORATION, _INTERVENTIONS, _MISSED = 0, 1, 3, 4, 5, 6


class Curve:
    """Rows of ``episodes.csv`` as they come; beyond ``limit`` neighbours are merged, again and again."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._names: list[str] | None = None
        self.rows: list[Row] = []
        self.merged = 1
        """Episodes that a row stands for, at most."""

    def take(self, lines: Iterable[bytes]) -> list[Row] | None:
        """Take the next lines of the file; return the new rows, or None when all rows have changed."""
        fresh = []
        for line in lines:
            fields = next(csv.reader([line.decode("utf-8", "replace")]), [])
            if fields[:1] == ["episode"]:
                self._names = fields
            elif self._names is not None:
                row = _row(dict(zip(self._names, fields, strict=False)))
                if row is not None:
                    fresh.append(row)
        self.rows += fresh
        if len(self.rows) <= self._limit:
            return fresh
        while len(self.rows) > self._limit:
            self._merge()
        return None

    def _merge(self) -> None:
        self.merged *= 2
        merged: list[Row] = []
        for kind in (0, 1):
            rows = [r for r in self.rows if r[_EVAL] == kind]
            merged += [_both(a, b) for a, b in zip(rows[::2], rows[1::2], strict=False)]
            merged += rows[len(rows) & ~1 :]
        self.rows = sorted(merged, key=lambda r: (r[_EPISODE] or 0, r[_EVAL] or 0))


def _row(fields: dict[str, str]) -> Row | None:
    try:
        score = float(fields["normalized"])
        return [
            int(fields["episode"]),
            int(fields["kind"] == "eval"),
            int(fields["steps"]),
            round(score, 4) if math.isfinite(score) else None,
            round(float(fields["exploration"]), 4),
            int(fields["interventions"]),
            int(fields["missed_ticks"]),
            int(fields["policy_id"]),
        ]
    except (KeyError, ValueError):  # a line cut short by a full disk
        return None


def _both(a: Row, b: Row) -> Row:
    both = list(b)
    for i in (_SCORE, _EXPLORATION):
        known = [v for v in (a[i], b[i]) if v is not None]
        both[i] = round(sum(known) / len(known), 4) if known else None
    for i in (_INTERVENTIONS, _MISSED):
        both[i] = (a[i] or 0) + (b[i] or 0)
    return both
