"""What a page that opens late needs of a run's past: its episodes, events and policies, each bounded."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from onrig.runtime.run_state.episodes import EpisodeRow
from onrig.runtime.view.sentences import VERDICTS, Event, counted, reason_of, sentence

LIMIT: Final = 2000
Row = list[float | int | None]
Item = dict[str, object]
FIELDS: Final = ("episode", "eval", "steps", "normalized", "exploration", "interventions", "missed", "policy")
"""Columns of a row; of rows that were merged: the last one's number, the means of normalized and exploration, and the
sums of interventions and missed ticks."""
_EPISODE, _EVAL, _SCORE, _EXPLORATION, _INTERVENTIONS, _MISSED = 0, 1, 3, 4, 5, 6
_ITEMS: Final = 200
_POLICIES: Final = 4000


class Curve:
    """Episodes as rows; beyond ``limit`` neighbours are merged, again and again."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self.rows: list[Row] = []
        self.merged = 1
        """Episodes that a row stands for, at most."""

    def take(self, episodes: Iterable[EpisodeRow]) -> list[Row] | None:
        """Take the next episodes; return the new rows, or None when all rows have changed."""
        fresh = [_row(e) for e in episodes]
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


class Story:
    """Events in words and verdicts on policies; the newest are kept."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        """``what``, ``level``, ``text``, ``t`` (Unix time in s)."""
        self.policies: list[list[object]] = []
        """[id, verdict, reason] as they came; many admissions, few of the others."""

    def take(self, events: Iterable[Event]) -> tuple[list[Item], list[list[object]]]:
        """Take the next events; return the new items and policies."""
        items: list[Item] = []
        policies: list[list[object]] = []
        for event in events:
            if event.kind in VERDICTS:
                policies.append([event.fields.get("policy"), VERDICTS[event.kind], reason_of(event)])
            said = sentence(event)
            if said is not None:
                text = counted(event, said.text)
                items.append({"t": event.t_unix_s, "what": said.what, "level": said.level, "text": text})
        self.items = [*self.items, *items][-_ITEMS:]
        self.policies = [*self.policies, *policies][-_POLICIES:]
        return items[-_ITEMS:], policies[-_POLICIES:]


def _row(e: EpisodeRow) -> Row:
    score = round(e.normalized, 4) if math.isfinite(e.normalized) else None
    return [
        e.episode,
        int(e.kind == "eval"),
        e.steps,
        score,
        round(e.exploration, 4),
        e.interventions,
        e.missed_ticks,
        e.policy_id,
    ]


def _both(a: Row, b: Row) -> Row:
    both = list(b)
    for i in (_SCORE, _EXPLORATION):
        known = [v for v in (a[i], b[i]) if v is not None]
        both[i] = round(sum(known) / len(known), 4) if known else None
    for i in (_INTERVENTIONS, _MISSED):
        both[i] = (a[i] or 0) + (b[i] or 0)
    return both
