"""Durations in logarithmic bins: bounded memory whatever the run's length, percentiles to about 1 %."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_BINS_PER_OCTAVE: Final = 64
_OCTAVES: Final = 40  # 1 ns to 18 minutes


class DurationHistogram:
    """Counts of durations in ns; negative ones (rounding of a clock estimate) count as zero."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS_PER_OCTAVE * _OCTAVES, np.int64)
        self._max_ns = 0

    def add(self, durations_ns: NDArray[np.integer]) -> None:
        """Count durations, shape (n,)."""
        if not len(durations_ns):
            return
        clipped = np.maximum(durations_ns.astype(np.float64), 1.0)
        bins = np.minimum((np.log2(clipped) * _BINS_PER_OCTAVE).astype(np.int64), len(self._counts) - 1)
        self._counts += np.bincount(bins, minlength=len(self._counts))
        self._max_ns = max(self._max_ns, int(durations_ns.max()))

    def percentile_us(self, q: float) -> float | None:
        """Upper edge in µs of the bin that holds the q-th percentile; None when nothing was counted."""
        total = int(self._counts.sum())
        if not total:
            return None
        at = int(np.searchsorted(np.cumsum(self._counts), max(1, np.ceil(q / 100 * total))))
        return float(min(2.0 ** ((at + 1) / _BINS_PER_OCTAVE), max(self._max_ns, 1)) / 1000)

    def summary_us(self) -> dict[str, float | None]:
        """The figures of ``summary.json``: p50, p99, p999, max."""
        return {
            "p50": self.percentile_us(50),
            "p99": self.percentile_us(99),
            "p999": self.percentile_us(99.9),
            "max": self._max_ns / 1000 if self._counts.any() else None,
        }
