"""How late a loop took up each frame: after it was put on the line, by the clock of the host.

A twin that the machine keeps from running for a period or more lets its own time stand still meanwhile, because the
hardware it stands in for would not have been late.  So its frames do not tell when they were sent; its trace does.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.sim.twin.trace import TraceReader

_PAUSE: Final = 0.5
"""Of a period, by which a twin's frames are due later than by its own clock: it has paused."""

Array = NDArray[np.int64]


class Sendings(NamedTuple):
    """When frames were due on the line and when they were sent; host's monotonic clock, ns, shape (n,) each."""

    due_ns: Array
    sent_ns: Array
    unknown: int = 0
    """For how many of them that is not known exactly."""

    def part(self, first: int, end: int) -> Sendings:
        """Those of a stretch of the frames."""
        return Sendings(self.due_ns[first:end], self.sent_ns[first:end])

    def then(self, more: Sendings) -> Sendings:
        """These, and ``more`` behind them."""
        return Sendings(np.concatenate([self.due_ns, more.due_ns]), np.concatenate([self.sent_ns, more.sent_ns]))


def sendings(records: NDArray[np.void], trace: TraceReader | None) -> Sendings:
    """Find out for records (dtype ``RecordLayout.dtype``) when their frames were sent.

    Without a trace, of a device at a port, they are taken to have been sent as punctually as the loop itself makes out
    (``lateness_ns``, see ``onrig.hw.clock_sync``), which is counted from the most punctual ones.
    """
    guess = np.asarray(records["t_receive_ns"] - records["lateness_ns"], np.int64)
    if trace is None:
        return Sendings(guess, guess)
    known, due_ns, sent_ns = trace.times(records["frame"])
    unknown = int(np.count_nonzero(~known))
    return Sendings(np.where(known, due_ns, guess), np.where(known, sent_ns, guess), unknown)


def pauses(records: NDArray[np.void], due_ns: Array, period_ns: int) -> int:
    """How often the device's clock stood still between one of the records and the next."""
    behind = due_ns - 1000 * records["t_device_us"].astype(np.int64)
    return int(np.count_nonzero(np.diff(behind) > _PAUSE * period_ns))
