"""``cyclictest`` of rt-tests, at the same priority in the same seconds: what this machine itself can do."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final, NamedTuple

_BINS_US: Final = 50_000
_PERCENTS: Final = (50.0, 99.0, 99.9)


class Latency(NamedTuple):
    """In microseconds; what lies above the histogram counts as its upper end."""

    p50: float
    p99: float
    p999: float
    max: float


def command(period_us: float, seconds: float, priority: int, cpu: int | None) -> list[str] | None:
    """Return how to run it; None where it is not installed."""
    found = shutil.which("cyclictest")
    if found is None:
        return None
    loops = max(1, round(seconds * 1e6 / period_us))
    where = ["-a", str(cpu)] if cpu is not None else ["-a"]
    how = ["-m", "-t", "1", "-p", str(priority), "-i", str(round(period_us)), "-l", str(loops), "-h", str(_BINS_US)]
    return [found, "-q", *how, *where]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    """Start it."""
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def latency_of(output: str) -> Latency | None:
    """Read the histogram that ``-q -h`` prints: lines of ``MICROSECONDS COUNT``; None where there is none."""
    counts: dict[int, int] = {}
    largest = 0.0
    for line in output.splitlines():
        words = line.split()
        if line.startswith("# Max Latencies:"):
            largest = float(words[-1])
        elif line.startswith("# Histogram Overflows:"):
            counts[_BINS_US] = counts.get(_BINS_US, 0) + int(words[-1])
        elif len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            counts[int(words[0])] = counts.get(int(words[0]), 0) + int(words[1])
    total = sum(counts.values())
    if not total:
        return None
    p50, p99, p999 = (_percentile(counts, total, percent) for percent in _PERCENTS)
    return Latency(p50, p99, p999, max(largest, max(us for us, n in counts.items() if n)))


def _percentile(counts: dict[int, int], total: int, percent: float) -> float:
    passed = 0
    for us in sorted(counts):
        passed += counts[us]
        if passed >= total * percent / 100:
            return float(us)
    return float(max(counts))
