"""Measure the control loop's timing on this board at 50 to 2000 Hz, compared with cyclictest.

Starts the complete rig (onrig run: supervisor, twin, control, replay, learner) at each rate, along with a process that
keeps the other CPUs busy, and reads every step record. Slices of the rig alternate with slices of cyclictest on the
same CPU, with the same priority and interval; sentinels with a higher priority than both record machine stalls.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from onrig.tools.options import Config, File, Folder, Overrides, Port, Seconds, Trust, Value


@dataclass(frozen=True)
class Options:
    """Arguments of the benchmark."""

    config: Config | None = None
    """Path or shipped name of a configuration (default: pendulum-hardware with all options that add work to a tick)."""
    _: KW_ONLY
    json: File | None = None
    """Also write the results to FILE, as JSON."""
    rate: Annotated[tuple[float, ...], Value("HZ")] = ()
    """Sampling rate; may be repeated (default: 200, 500, 1000)."""
    seconds: Seconds = 60.0
    """Seconds for the rig, and as many again for cyclictest, at each rate."""
    slice: Seconds = 30.0
    """Seconds per slice."""
    set: Overrides = ()
    trust: Trust = False
    without: Annotated[str, Value("PART,...")] = ""
    """Omit these parts in all slices: burner, cyclictest, learner, log, sentinel, web."""
    compare: tuple[Literal["learner", "log", "web"], ...] = ()
    """Compare slices with and without a part; may be repeated."""
    against: Annotated[tuple[str, ...], Value("a.b=c")] = ()
    """Compare with slices that have a different value of a setting; may be repeated."""
    swaps: Annotated[float, Value("S", implied_value=1.0)] | None = None
    """Send a new policy every S seconds (default: 1) instead of running a learner."""
    device: Port | None = None
    """Use the device on this serial port instead of the twin."""
    plot: File | None = None
    """Draw the histograms (PNG, PDF or SVG)."""
    keep: Folder | None = None
    """Keep the run folders in DIR."""


def main(options: Options) -> int:
    """Measure, print the tables and the checks, and return the exit code, which is 0 whether or not the checks hold."""
    from onrig.tools.bench.loop.benchmark import benchmark
    from onrig.tools.bench.loop.plan import Request
    from onrig.tools.terminal import warn_missing_library

    warn_missing_library("bench")
    return benchmark(Request(**vars(options)))
