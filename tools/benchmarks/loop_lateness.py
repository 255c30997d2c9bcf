"""How late a loop took up each frame: against the most punctual one, as long as the device's clock went on.

A twin that the machine keeps from running for a period or more lets its own time stand still meanwhile, because the
hardware it stands in for would not have been late.  From then on all of its frames come later by that much, by its
clock; so lateness is counted anew after each such pause.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_REACH: Final = 256
_LEAST: Final = 32
"""So many frames in a row, or up to the end, are not all late by accident."""
_PAUSE: Final = 0.9
"""Of a period."""

Times = NDArray[np.int64]


def arrivals_ns(records: NDArray[np.void], *, twin: bool) -> Times:
    """By how much the receipt of each record's frame lies behind its device's clock, up to a constant; ns, (n,).

    A twin's clock is the host's, so the two are compared as they are; a crystal's drift has been taken out by the loop
    (``lateness_ns``, see ``hw.clock_sync``).
    """
    if twin:
        return np.asarray(records["t_receive_ns"] - 1000 * records["t_device_us"].astype(np.int64), np.int64)
    return records["lateness_ns"].astype(np.int64)


def pauses(arrivals: Times, period_ns: int) -> NDArray[np.intp]:
    """Find the frames (indices > 0) from which on all come later by a period or more."""
    n = len(arrivals)
    if n < 2 * _LEAST:
        return np.zeros(0, np.intp)
    reach = min(_REACH, n)
    padded = np.concatenate([arrivals, np.full(reach - 1, np.iinfo(np.int64).max)])
    soonest = np.lib.stride_tricks.sliding_window_view(padded, reach).min(axis=1)
    soonest[n - _LEAST + 1 :] = soonest[n - _LEAST]
    return np.flatnonzero(np.diff(soonest) >= _PAUSE * period_ns) + 1


def lateness_ns(arrivals: Times, starts: NDArray[np.intp]) -> Times:
    """Lateness of each frame, 0 for the most punctual one between any two of the ``starts`` (from `pauses`)."""
    if not len(arrivals):
        return arrivals
    first = np.concatenate([[0], starts])
    soonest = np.minimum.reduceat(arrivals, first)
    return np.asarray(arrivals - np.repeat(soonest, np.diff(np.append(first, len(arrivals)))), np.int64)
