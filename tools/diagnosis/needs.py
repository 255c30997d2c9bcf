"""What a run asks of the machine it is to run on."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, NamedTuple

from onrig.tools.diagnosis.check import Check, failed, warned

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
