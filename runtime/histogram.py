"""Histograms of durations in bounded memory.

Fine histograms have log-linear bins like an HDR histogram: each octave is divided into 128 equal parts, so that a bin
is at most 1/128 of its lower edge wide, durations below 256 ns are exact, and percentiles are accurate to 0.8 %.
Coarse histograms, for files and displays, have bins of an eighth of an octave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_PARTS_PER_OCTAVE: Final = 128
_N_OCTAVES: Final = 40  # 1 ns to 18 minutes


class Bins(NamedTuple):
    """Bins from the first to the last non-empty one."""

    edges_us: NDArray[np.float64]
    """Shape (n + 1,), increasing."""
    counts: NDArray[np.int64]
    """Shape (n,)."""


class DurationHistogram:
    """Histogram of durations in ns; negative durations (caused by rounding of a clock estimate) count as zero."""

    def __init__(self) -> None:
        self._counts = np.zeros(_PARTS_PER_OCTAVE * _N_OCTAVES, np.int64)
        self._max_ns = 0

    def add(self, durations_ns: NDArray[np.integer]) -> None:
        """Add durations of shape (n,) to the histogram."""
        if not len(durations_ns):
            return
        # frexp is exact; a logarithm may round 2**k ns into the octave below.
        mantissa, exponent = np.frexp(np.maximum(durations_ns.astype(np.float64), 1.0))
        bins = (exponent.astype(np.int64) - 1) * _PARTS_PER_OCTAVE + (
            (mantissa - 0.5) * (2 * _PARTS_PER_OCTAVE)
        ).astype(np.int64)
        self._counts += np.bincount(np.minimum(bins, len(self._counts) - 1), minlength=len(self._counts))
        self._max_ns = max(self._max_ns, int(durations_ns.max()))

    def merge(self, other: DurationHistogram) -> None:
        """Add the counts of ``other``."""
        self._counts += other._counts
        self._max_ns = max(self._max_ns, other._max_ns)

    def state(self) -> tuple[int, list[tuple[int, int]]]:
        """Return the longest duration in ns, and a (bin, count) pair for each non-empty bin."""
        indices = np.flatnonzero(self._counts)
        return self._max_ns, list(zip(indices.tolist(), self._counts[indices].tolist(), strict=True))

    def restore(self, max_ns: int, bin_counts: Sequence[tuple[int, int]]) -> None:
        """Restore a state returned by ``state()``; raises IndexError if it is invalid."""
        self._max_ns = max_ns
        self._counts[:] = 0
        for index, count in bin_counts:
            self._counts[index] = count

    @property
    def count(self) -> int:
        """Number of durations counted."""
        return int(self._counts.sum())

    def percentile_us(self, q: float) -> float | None:
        """Return the upper edge, in µs, of the bin that contains the q-th percentile, or the longest duration if that
        is shorter; None if the histogram is empty."""
        index = _bin_of_percentile(self._counts, q)
        if index is None:
            return None
        return float(min(float(_edges_ns(index + 1, index + 1)[0]), max(self._max_ns, 1)) / 1000)

    def bins(self) -> Bins:
        """Return the bins from the first to the last non-empty one, for a plot."""
        indices = np.flatnonzero(self._counts)
        if not len(indices):
            return Bins(np.zeros(1), np.zeros(0, np.int64))
        first, last = int(indices[0]), int(indices[-1])
        return Bins(_edges_ns(first, last + 1) / 1000, self._counts[first : last + 1].copy())

    def summary_us(self) -> dict[str, float | None]:
        """Return percentiles and maximum in µs, as in ``summary.json``: p50, p99, p999, max."""
        return {
            "p50": self.percentile_us(50),
            "p99": self.percentile_us(99),
            "p999": self.percentile_us(99.9),
            "max": self._max_ns / 1000 if self._counts.any() else None,
        }


def _edges_ns(first: int, last: int) -> NDArray[np.float64]:
    """Return the lower edges of the bins ``first`` to ``last``, inclusive."""
    octave, part = np.divmod(np.arange(first, last + 1), _PARTS_PER_OCTAVE)
    return np.ldexp(1.0 + part / _PARTS_PER_OCTAVE, octave.astype(np.int32))


BINS_PER_OCTAVE: Final = 8
N_COARSE_BINS: Final = _N_OCTAVES * BINS_PER_OCTAVE
"""Number of coarse bins; bin b covers 2^(b/8) ns to 2^((b+1)/8) ns."""


def coarse_counts(durations_ns: NDArray[np.integer]) -> NDArray[np.int64]:
    """Count durations (n,) in coarse bins; durations below 1 ns fall into the first bin."""
    clipped_ns = np.maximum(durations_ns.astype(np.float64), 1.0)
    indices = np.minimum((np.log2(clipped_ns) * BINS_PER_OCTAVE).astype(np.int64), N_COARSE_BINS - 1)
    return np.bincount(indices, minlength=N_COARSE_BINS).astype(np.int64)


def coarse_edges_us() -> NDArray[np.float64]:
    """Return the edges of the coarse bins in us, shape (bins + 1,)."""
    edges: NDArray[np.float64] = 2.0 ** (np.arange(N_COARSE_BINS + 1) / BINS_PER_OCTAVE) / 1000
    return edges


class CoarseHistogram(NamedTuple):
    """Histogram of durations in coarse bins."""

    counts: NDArray[np.int64]
    max_ns: int

    def percentile_us(self, q: float) -> float | None:
        """Return the upper edge, in us, of the bin that contains the q-th percentile, or the longest duration if that
        is shorter; None if the histogram is empty."""
        index = _bin_of_percentile(self.counts, q)
        return None if index is None else float(min(2.0 ** ((index + 1) / BINS_PER_OCTAVE), max(self.max_ns, 1)) / 1000)


def _bin_of_percentile(counts: NDArray[np.int64], q: float) -> int | None:
    total = int(counts.sum())
    if not total:
        return None
    return int(np.searchsorted(np.cumsum(counts), max(1, np.ceil(q / 100 * total))))
