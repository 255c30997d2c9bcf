"""One finding of the doctor's: what was found, whether that is well, and what to do about it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple


class Verdict(enum.Enum):
    """How it stands."""

    PASS = "PASS"
    WARN = "WARN"
    """The rig runs, but not as well as it could, or something will be in the way later."""
    FAIL = "FAIL"
    """What was asked for cannot work as it is."""


class Check(NamedTuple):
    """One line of the report."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""
    """A command to paste, or where to read on; empty for PASS."""
    figures: dict[str, float] | None = None
    """What was measured, for programs."""


def passed(name: str, found: str) -> Check:
    """All is well."""
    return Check(name, Verdict.PASS, found)


def warned(name: str, found: str, remedy: str) -> Check:
    """It could be better."""
    return Check(name, Verdict.WARN, found, remedy)


def failed(name: str, found: str, remedy: str) -> Check:
    """It cannot work."""
    return Check(name, Verdict.FAIL, found, remedy)


def exit_code(checks: Iterable[Check]) -> int:
    """3 (preflight) where anything failed, else 0."""
    return 3 if any(c.verdict is Verdict.FAIL for c in checks) else 0


def as_data(machine: dict[str, object], checks: Iterable[Check]) -> dict[str, object]:
    """Return the report as plain data: ``{machine, checks: [{name, verdict, found, remedy[, figures]}]}``."""
    rows = []
    for c in checks:
        row: dict[str, object] = {"name": c.name, "verdict": c.verdict.value, "found": c.found, "remedy": c.remedy}
        rows.append(row if c.figures is None else {**row, "figures": c.figures})
    return {"machine": machine, "checks": rows}
