"""Report of a benchmark: percentiles, checks and facts about the machine, as tables and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.native import executor
from onrig.runtime.files import replace_file
from onrig.tools.bench.timing import clock_cost_us, quantiles_us
from onrig.tools.terminal import align

Fact = str | int | float | dict[str, str] | dict[str, float] | list[float]
"""Value of a fact about the machine."""


class Row(msgspec.Struct, frozen=True):
    """Percentiles of one subject in one case."""

    case: str
    subject: str
    """``onrig`` or a peer's package name."""
    unit: str
    p50: float
    p99: float
    p999: float
    max: float


def percentiles(case: str, subject: str, unit: str, values: Sequence[float] | NDArray[np.float64]) -> Row:
    """Return the percentiles of ``values`` as a row."""
    return Row(case, subject, unit, *np.quantile(values, [0.5, 0.99, 0.999, 1.0]).round(3).tolist())


class Check(msgspec.Struct, frozen=True):
    """Figure and its bound; the name states whether the bound is an upper or a lower one."""

    name: str
    value: float
    bound: float
    holds: bool


class Report(msgspec.Struct, frozen=True):
    """Results of a benchmark."""

    machine: dict[str, Fact]
    stall_floor_us: float
    """p99.99 duration of a loop that reads the clock for as long as the median call, which shows the machine's own
    stalls; in ``bench loop``, p99.99 lateness of the sentinels' wake-ups."""
    rows: list[Row]
    checks: list[Check]


def check_at_most(name: str, value: float, bound: float) -> Check:
    """Check ``value`` against an upper bound."""
    return Check(name, round(value, 4), round(bound, 4), value <= bound)


def check_at_least(name: str, value: float, bound: float) -> Check:
    """Check ``value`` against a lower bound."""
    return Check(name, round(value, 4), round(bound, 4), value >= bound)


def conclude(report: Report, parts: Iterable[str], json: Path | None) -> None:
    """Print tables and notes, and write the JSON if requested."""
    print("\n\n".join(parts))
    if json is not None:
        replace_file(json, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def installed_version(package: str) -> str | None:
    """Return the version of a library, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


_CPU_FILE: Final = Path("/proc/cpuinfo")


def describe_machine() -> dict[str, Fact]:
    """Describe the machine: processor, cores, system, Python, numpy, executor, load and cost of a clock read."""
    model = platform.processor() or platform.machine()
    if _CPU_FILE.is_file():
        names = [line.split(":", 1)[1].strip() for line in _CPU_FILE.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    facts: dict[str, Fact] = {
        "cpu": model,
        "cores": cores,
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "executor": str(executor()),
        "clock_read_us": round(clock_cost_us(), 4),
    }
    if hasattr(os, "getloadavg"):
        facts["load"] = [round(x, 2) for x in os.getloadavg()]
    return facts


def describe_subjects(
    versions: Mapping[str, str], spans_ns: Sequence[int], unavailable_reasons: Mapping[tuple[str, str], str]
) -> tuple[dict[str, Fact], float]:
    """Return facts about the machine and the libraries, and the stall floor (µs, 0 if it was not measured)."""
    machine = describe_machine() | {"packages": dict(versions)}
    floor_us = 0.0
    if spans_ns:
        q = quantiles_us(spans_ns)
        floor_us = q.p9999
        machine["stalls_us"] = {name: round(value, 3) for name, value in q._asdict().items()}
    if unavailable_reasons:
        machine["unavailable"] = {
            f"{package} {kind}".strip(): reason for (package, kind), reason in unavailable_reasons.items()
        }
    return machine, round(floor_us, 3)


def skipped_lines(unavailable_reasons: Mapping[tuple[str, str], str]) -> list[str]:
    """List the libraries or kinds of memory that could not be measured, one line each."""
    return [f"{package} {kind}: skipped, {reason}" for (package, kind), reason in unavailable_reasons.items()]


def format_number(value: float) -> str:
    """Format ``value`` with about three significant digits."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def checks_table(checks: Iterable[Check]) -> str:
    """Return a table of the checks in which failed ones are marked."""
    rows = [["check", "value", "bound", ""]]
    rows += [[c.name, format_number(c.value), format_number(c.bound), "holds" if c.holds else "FAILED"] for c in checks]
    return align(rows)


_UNITS: Final = {"us": "µs"}
"""Usual notation of the units in ``Row``."""


def rows_table(rows: Iterable[Row]) -> str:
    """Return a table of the percentiles."""
    head = ["case", "subject", "unit", "p50", "p99", "p99.9", "max"]
    cells = [
        [r.case, r.subject, _UNITS.get(r.unit, r.unit), *(format_number(v) for v in (r.p50, r.p99, r.p999, r.max))]
        for r in rows
    ]
    return align([head, *cells])
