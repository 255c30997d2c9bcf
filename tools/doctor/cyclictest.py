"""Command line and output parser of ``cyclictest`` from rt-tests, the standard test of wake-up latency."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

import numpy as np

from onrig.runtime.histogram import DurationHistogram

_MAX_LATENESS_US: Final = 20_000
_EXIT_TIMEOUT_S: Final = 20.0
_BIN_LINE: Final = re.compile(r"^(\d+)\s+(\d+)$")
_MAX_LATENCY_LINE: Final = re.compile(r"^# Max Latencies:\s*(\d+)")
_OVERFLOWS_LINE: Final = re.compile(r"^# Histogram Overflows:\s*(\d+)")


class CyclictestFailed(RuntimeError):
    """Raised if cyclictest could not run or printed no histogram."""


def find() -> str | None:
    """Return the path of the program, or None if rt-tests is not installed."""
    return shutil.which("cyclictest")


def command(program: str, *, cpu: int | None, priority: int, period_us: int, seconds: float) -> list[str]:
    """Return the command for one thread at the loop's priority, period and CPU.

    Its memory is locked, and its deadlines are absolute.
    """
    affinity = [] if cpu is None else ["-a", str(cpu)]
    options = ["-m", "-q", "-t", "1", "-p", str(priority), "-i", str(period_us)]
    return [program, *options, *affinity, "-D", f"{max(1, round(seconds))}s", "-h", str(_MAX_LATENESS_US)]


def run(arguments: Sequence[str], seconds: float) -> DurationHistogram:
    """Run the command. Raises CyclictestFailed."""
    try:
        result = subprocess.run(arguments, capture_output=True, text=True, timeout=seconds + _EXIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CyclictestFailed(str(error)) from None
    if result.returncode != 0:
        output = (result.stderr or result.stdout).strip().splitlines()
        raise CyclictestFailed(output[-1] if output else f"cyclictest ended with code {result.returncode}")
    return parse(result.stdout)


def parse(text: str) -> DurationHistogram:
    """Parse the histogram of one thread's latencies in whole microseconds.

    Latencies beyond the last bin are counted at the maximum. Raises CyclictestFailed if the text contains no histogram.
    """
    histogram = DurationHistogram()
    max_us = overflows = 0
    bins: list[tuple[int, int]] = []
    for line in text.splitlines():
        if match := _BIN_LINE.match(line):
            bins.append((int(match[1]), int(match[2])))
        elif match := _MAX_LATENCY_LINE.match(line):
            max_us = int(match[1])
        elif match := _OVERFLOWS_LINE.match(line):
            overflows = int(match[1])
    latencies_us, counts = np.array(bins, np.int64).reshape(-1, 2).T
    histogram.add(np.repeat(latencies_us * 1000, counts))
    histogram.add(np.full(overflows, max_us * 1000, np.int64))
    if not histogram.count:
        raise CyclictestFailed("cyclictest printed no histogram")
    return histogram
