"""Whether what can wait (a line of the journal, building a policy) may follow a tick."""

from __future__ import annotations

from typing import Final

_OF_PERIOD: Final = 2
_OF_USUAL: Final = 4
_REMEMBERS: Final = 64
"""Ticks."""


class Slack:
    """Not after a tick of more than half a period, nor of more than four times what ticks take.

    A machine that stretches a tick is about to stretch what follows it: slow ticks come in bursts, and a policy that
    was built after one of ten times its usual length cost a frame at 200 Hz.
    """

    def __init__(self, period_ns: int) -> None:
        self._longest_ns = period_ns / _OF_PERIOD
        self._usual_ns = 0.0

    def follows(self, work_ns: int) -> bool:
        """Note how long a tick's work took; whether there is time behind it."""
        usual_ns = self._usual_ns or float(work_ns)
        # A stall of a second is not to make the next stalls look usual.
        self._usual_ns = usual_ns + (min(work_ns, _OF_USUAL * usual_ns) - usual_ns) / _REMEMBERS
        return work_ns < min(self._longest_ns, _OF_USUAL * usual_ns)
