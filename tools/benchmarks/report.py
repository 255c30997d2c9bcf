"""The outcome of a benchmark, in the shape of INTERFACE.md ("Benchmark output")."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from onrig.runtime.replaced_file import replace_file
from onrig.tools.benchmarks.timing import clock_cost_us

Fact = str | int | float | dict[str, str] | dict[str, float] | list[float]
"""What the report says about the machine."""


class Row(msgspec.Struct, frozen=True):
    """What one subject needed for one case."""

    case: str
    subject: str
    """``onrig`` or a peer's package name."""
    unit: str
    p50: float
    p99: float
    p999: float
    max: float


class Check(msgspec.Struct, frozen=True):
    """A figure, and the bound it is held against; the name says which side of the bound is meant."""

    name: str
    value: float
    bound: float
    holds: bool


class Report(msgspec.Struct, frozen=True):
    """Everything a benchmark found."""

    machine: dict[str, Fact]
    stall_floor_us: float
    """p99.99 of the spans of a busy loop of clock reads, each as long as what is measured takes at its median."""
    rows: list[Row]
    checks: list[Check]


def at_most(name: str, value: float, bound: float) -> Check:
    """Hold ``value`` against an upper bound."""
    return Check(name, round(value, 4), round(bound, 4), value <= bound)


def at_least(name: str, value: float, bound: float) -> Check:
    """Hold ``value`` against a lower bound."""
    return Check(name, round(value, 4), round(bound, 4), value >= bound)


def write_json(report: Report, path: Path) -> None:
    """Write ``report`` as JSON."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


_CPU_FILE: Final = Path("/proc/cpuinfo")


def describe_machine() -> dict[str, Fact]:
    """Say what was measured on: processor, cores to be had, system, Python, numpy, load, cost of a clock read."""
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
        "clock_read_us": round(clock_cost_us(), 4),
    }
    if hasattr(os, "getloadavg"):
        facts["load"] = [round(x, 2) for x in os.getloadavg()]
    return facts
