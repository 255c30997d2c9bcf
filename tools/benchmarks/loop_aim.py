"""Tells a sentinel when the loop rests, from the records of its ticks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

_REST: Final = 0.6
"""Of a period after a frame: the tick is over, and no rehearsal of the next one has begun."""
_TOLERATED: Final = 0.05
"""Of a period: by so much the device's clock may move against the host's before the sentinel is told again."""


class Aim:
    """Follows the phase of a device's frames, which changes where a twin pauses or a crystal drifts."""

    def __init__(self, period_ns: int, aim: Callable[[int, int], None]) -> None:
        self._period_ns, self._aim = period_ns, aim
        self._told_ns: int | None = None

    def add(self, records: NDArray[np.void]) -> None:
        """Take the next records of a loop in real time."""
        if not len(records):
            return
        anchor_ns = int(records["t_mono_ns"][-1]) + round(_REST * self._period_ns)
        if self._told_ns is not None:
            off_ns = (anchor_ns - self._told_ns) % self._period_ns
            if min(off_ns, self._period_ns - off_ns) <= _TOLERATED * self._period_ns:
                return
        self._told_ns = anchor_ns
        self._aim(anchor_ns, self._period_ns)
