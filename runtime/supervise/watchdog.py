"""Whether a process still makes progress; pure judges that are told the time."""

from __future__ import annotations

import enum
from typing import Final

NOTICE_S: Final = 1.0
_NOTICE_PERIODS: Final = 20
GIVE_UP_S: Final = 15.0
"""A loop that hangs for so long is ended; its device fell safe a lease after its last command."""
_LONGEST_LOOK_S: Final = 0.25
"""A longer time between two looks means that we slept ourselves (a suspended machine): it does not count."""


class Stillness:
    """For how long a sign of progress has stood still, as far as somebody looked."""

    def __init__(self) -> None:
        self._sign: int | None = None
        self._looked_s: float | None = None
        self.seconds = 0.0

    def look(self, now_s: float, sign: int) -> float:
        """Take a look at ``now_s``; returns the seconds for which ``sign`` has been the same."""
        passed = 0.0 if self._looked_s is None else min(now_s - self._looked_s, _LONGEST_LOOK_S)
        self._looked_s = now_s
        self.seconds = self.seconds + passed if sign == self._sign else 0.0
        self._sign = sign
        return self.seconds


class Verdict(enum.Enum):
    """What a look found."""

    FINE = "fine"
    HANGS = "hangs"
    """Found now; the looks after it are FINE until it is BACK or GONE."""
    BACK = "back"
    GONE = "gone"


class Watchdog:
    """Watches the count of ticks while the loop is supposed to make some."""

    def __init__(self, wall_period_s: float, notice_s: float = NOTICE_S) -> None:
        """``notice_s``: how long it may stand still, at least, before that is told of."""
        self._notice_s = max(notice_s, _NOTICE_PERIODS * wall_period_s)
        self._still = Stillness()
        self._idle = 0
        self._hangs = False

    @property
    def hangs(self) -> bool:
        """Whether the loop was found hanging and has not come back."""
        return self._hangs

    def look(self, now_s: float, ticks: int, *, moving: bool) -> Verdict:
        """Judge; ``moving``: whether the loop's state is one in which it makes ticks."""
        if not moving:
            self._idle -= 1  # as if a tick had been made
        still_s = self._still.look(now_s, ticks if moving else self._idle)
        if still_s == 0.0:
            was, self._hangs = self._hangs, False
            return Verdict.BACK if was else Verdict.FINE
        if still_s >= self._notice_s + GIVE_UP_S:
            return Verdict.GONE
        if still_s >= self._notice_s and not self._hangs:
            self._hangs = True
            return Verdict.HANGS
        return Verdict.FINE
