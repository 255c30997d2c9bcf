"""``cyclictest`` of rt-tests, the standard test of wake-up latency: command line and output parser."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

import numpy as np

from onrig.runtime.histogram import DurationHistogram

_MAX_LATENESS_US: Final = 20_000
_GRACE_S: Final = 20.0
_BIN: Final = re.compile(r"^(\d+)\s+(\d+)$")
_LATEST: Final = re.compile(r"^# Max Latencies:\s*(\d+)")
_OVER: Final = re.compile(r"^# Histogram Overflows:\s*(\d+)")


class CyclictestFailed(RuntimeError):
    """Failure of cyclictest: it could not run, or printed no histogram."""


def find() -> str | None:
    """Path of the program; None if rt-tests is not installed."""
    return shutil.which("cyclictest")


def command(program: str, *, cpu: int | None, priority: int, period_us: int, seconds: float) -> list[str]:
    """Command line: one thread at the loop's priority, period and CPU, memory locked, absolute deadlines."""
    where = [] if cpu is None else ["-a", str(cpu)]
    how = ["-m", "-q", "-t", "1", "-p", str(priority), "-i", str(period_us)]
    return [program, *how, *where, "-D", f"{max(1, round(seconds))}s", "-h", str(_MAX_LATENESS_US)]


def run(arguments: Sequence[str], seconds: float) -> DurationHistogram:
    """Run the command; raises CyclictestFailed."""
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=seconds + _GRACE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CyclictestFailed(str(error)) from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CyclictestFailed(said[-1] if said else f"it ended with code {done.returncode}")
    return parse(done.stdout)


def parse(text: str) -> DurationHistogram:
    """Parse the histogram of one thread: latencies in whole microseconds.

    Those beyond its end are counted at the maximum. Raises CyclictestFailed without a histogram.
    """
    histogram = DurationHistogram()
    latest_us = beyond = 0
    bins: list[tuple[int, int]] = []
    for line in text.splitlines():
        if found := _BIN.match(line):
            bins.append((int(found[1]), int(found[2])))
        elif found := _LATEST.match(line):
            latest_us = int(found[1])
        elif found := _OVER.match(line):
            beyond = int(found[1])
    us, counts = np.array(bins, np.int64).reshape(-1, 2).T
    histogram.add(np.repeat(us * 1000, counts))
    histogram.add(np.full(beyond, latest_us * 1000, np.int64))
    if not histogram.count:
        raise CyclictestFailed("it printed no histogram")
    return histogram
