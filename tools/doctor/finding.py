"""One finding of the doctor: observation, verdict and remedy."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple


class Verdict(enum.Enum):
    """Verdict of a check."""

    PASS = "PASS"
    WARN = "WARN"
    """The rig works, but not as well as it could, or it may have a problem later."""
    FAIL = "FAIL"
    """The requested run cannot work."""


class Check(NamedTuple):
    """One line of the report."""

    name: str
    verdict: Verdict
    finding: str
    remedy: str = ""
    """Command to paste or page to read; empty for PASS."""
    figures: dict[str, float] | None = None
    """Measured values, for the JSON."""


def report_pass(name: str, finding: str) -> Check:
    """Return a PASS finding."""
    return Check(name, Verdict.PASS, finding)


def report_warning(name: str, finding: str, remedy: str) -> Check:
    """Return a WARN finding."""
    return Check(name, Verdict.WARN, finding, remedy)


def report_failure(name: str, finding: str, remedy: str) -> Check:
    """Return a FAIL finding."""
    return Check(name, Verdict.FAIL, finding, remedy)


def exit_code(checks: Iterable[Check]) -> int:
    """Return 3 (preflight) if any check failed, else 0."""
    return 3 if any(check.verdict is Verdict.FAIL for check in checks) else 0


def report_data(machine: dict[str, object], checks: Iterable[Check]) -> dict[str, object]:
    """Return the report as plain data: ``{machine, checks: [{name, verdict, found, remedy[, figures]}]}``."""
    rows = []
    for check in checks:
        row: dict[str, object] = {
            "name": check.name,
            "verdict": check.verdict.value,
            "found": check.finding,
            "remedy": check.remedy,
        }
        rows.append(row if check.figures is None else {**row, "figures": check.figures})
    return {"machine": machine, "checks": rows}


REAL_TIME_PAGE: Final = str(Path(__file__).parents[2] / "docs" / "real-time.md")
"""Documentation page that remedies refer to, which is installed with the package."""


class Needs(NamedTuple):
    """Requirements of the configured run; the defaults describe a generic rig."""

    config: str | None = None
    """Name of the configuration as given; None for a general examination."""
    realtime: bool = True
    """Whether the run has deadlines; false in lockstep."""
    rate_hz: float = 200.0
    """Ticks per second of wall-clock time."""
    priority: int = 50
    cpu: int | Literal["auto"] | None = "auto"
    lock_memory: bool = True
    port: str | None = None
    listens: bool = False
    """Whether learners on other machines may connect."""
    keys: Path | None = None
    learner: bool | None = None
    """Whether a local learner runs; None if unknown."""
    folder: Path = Path("runs")
    """Parent of the run folder."""
    disk_bytes: int = 0
    shm_bytes: int = 4 << 20
    memory_bytes: int = 300 << 20

    @property
    def period_us(self) -> float:
        """Period of a tick on the wall clock."""
        return 1e6 / self.rate_hz

    def timing_finding(self, name: str, finding: str, remedy: str) -> Check:
        """Return a finding on timing, which is FAIL if a configured run needs real time and WARN otherwise."""
        return (
            report_failure(name, finding, remedy)
            if self.config is not None and self.realtime
            else report_warning(name, finding, remedy)
        )
