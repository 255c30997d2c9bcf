"""One finding of the doctor's: what was found, whether that is well, and what to do about it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple


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


PAGE: Final = str(Path(__file__).parents[2] / "docs" / "real-time.md")
"""Where the checks send their reader; installed beside the package."""


class Needs(NamedTuple):
    """Of the configured run; the defaults are those of a rig in general."""

    config: str | None = None
    """The configuration's name as given; None for a general look."""
    realtime: bool = True
    """Whether anything can be late: not in lockstep."""
    rate_hz: float = 200.0
    """Ticks per second of the wall clock."""
    priority: int = 50
    cpu: int | Literal["auto"] | None = "auto"
    lock_memory: bool = True
    port: str | None = None
    listens: bool = False
    """Whether learners on other machines are to connect."""
    keys: Path | None = None
    learner: bool | None = None
    """Whether a learner runs beside the loop; None where that is not known."""
    folder: Path = Path("runs")
    """Where the run folder will lie."""
    disk_bytes: int = 0
    shm_bytes: int = 4 << 20
    memory_bytes: int = 300 << 20

    @property
    def period_us(self) -> float:
        """Of a tick, by the wall clock."""
        return 1e6 / self.rate_hz

    def punctuality(self, name: str, found: str, remedy: str) -> Check:
        """Judge what spoils real time: a failure where a configured run asks for it, otherwise a warning."""
        return failed(name, found, remedy) if self.config is not None and self.realtime else warned(name, found, remedy)
