"""Whether the loop still makes ticks; a pure judge that is told the time."""

from __future__ import annotations

import enum
from typing import Final

_NOTICE_S: Final = 1.0
_NOTICE_PERIODS: Final = 20
GIVE_UP_S: Final = 15.0
"""A loop that hangs for so long is ended; its device fell safe a lease after its last command."""
_LONGEST_LOOK_S: Final = 0.25
"""A longer time between two looks means that we slept ourselves (a suspended machine): it does not count."""


class Verdict(enum.Enum):
    """What a look found."""

    FINE = "fine"
    HANGS = "hangs"
    """Found now; the looks after it are FINE until it is BACK or GONE."""
    BACK = "back"
    GONE = "gone"


class Watchdog:
    """Watches the count of ticks while the loop is supposed to make some."""

    def __init__(self, wall_period_s: float) -> None:
        self._notice_s = max(_NOTICE_S, _NOTICE_PERIODS * wall_period_s)
        self._ticks = -1
        self._still_s = 0.0
        self._looked_s: float | None = None
        self._hangs = False

    @property
    def hangs(self) -> bool:
        """Whether the loop was found hanging and has not come back."""
        return self._hangs

    def look(self, now_s: float, ticks: int, *, moving: bool) -> Verdict:
        """Judge; ``moving``: whether the loop's state is one in which it makes ticks."""
        passed = 0.0 if self._looked_s is None else min(now_s - self._looked_s, _LONGEST_LOOK_S)
        self._looked_s = now_s
        if ticks != self._ticks or not moving:
            self._ticks, self._still_s = ticks, 0.0
            was, self._hangs = self._hangs, False
            return Verdict.BACK if was else Verdict.FINE
        self._still_s += passed
        if self._still_s >= self._notice_s + GIVE_UP_S:
            return Verdict.GONE
        if self._still_s >= self._notice_s and not self._hangs:
            self._hangs = True
            return Verdict.HANGS
        return Verdict.FINE
