"""When a process that ended by itself is started again: a pure decision over plain numbers."""

from __future__ import annotations

from math import ceil
from typing import Final

LONG_LIFE_S: Final = 30.0
"""Who lived so long before is not in a loop of crashes: its end is the first one again."""
MOST: Final = 5
"""Short lives in a row; the next end is for good."""
KILLED: Final = 0.25
"""What an end by SIGKILL counts: it came from outside, from a person or for want of memory."""


class Restarts:
    """The history of one process of a run."""

    def __init__(self) -> None:
        self._short_lives = 0.0

    def ended(self, lived_s: float, *, progressed: bool = False, killed: bool = False) -> float | None:
        """Return after how many seconds to start it again: at once the first time, then 1, 2, 4 ...; None: never.

        ``progressed``: the run came further in this life than in those before; so did no loop of crashes.
        """
        if lived_s >= LONG_LIFE_S or progressed:
            self._short_lives = 0.0
        self._short_lives += KILLED if killed else 1.0
        if self._short_lives > MOST:
            return None
        return 0.0 if self._short_lives <= 1.0 else 2.0 ** (ceil(self._short_lives) - 2)
