"""A driver in this process, whose controller does what tests specify."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onrig.hw.clock import VirtualClock
from onrig.hw.device.driven import DrivenDevice, Driver, PythonDevice, SensorLost
from onrig.hw.rig import Rig


class Bench(PythonDevice, frozen=True, kw_only=True, tag="bench"):
    """Description of `BenchDriver`."""


class BenchDriver(Driver):
    """Driver that records its calls."""

    def __init__(self, rig: Rig) -> None:
        self.values: list[float] = [0.0] * len(rig.sensors)
        self.calls: list[str] = []
        self.output: list[float] | None = None
        """Values in force; None for the safe output."""
        self.pressed = self.lost = False
        self.during_sample: Callable[[], None] = lambda: None
        self.broken: set[str] = set()
        """Calls that raise."""

    def _note(self, call: str, words: str = "") -> None:
        self.calls.append(f"{call} {words}".strip())
        if call in self.broken:
            raise OSError(f"{call}: bus error")

    def sample(self) -> Sequence[float]:
        self._note("sample")
        self.during_sample()
        if self.lost:
            raise SensorLost
        return self.values

    def apply(self, command: Sequence[float]) -> None:
        self._note("apply", " ".join(f"{value:g}" for value in command))
        self.output = list(command)

    def safe(self) -> None:
        self._note("safe")
        self.output = None

    def estop(self) -> bool:
        if "estop" in self.broken:
            raise OSError("estop: bus error")
        return self.pressed

    def arm_watchdog(self, timeout_s: float) -> None:
        self._note("arm", f"{timeout_s:g}")

    def feed_watchdog(self) -> None:
        self._note("feed")

    def close(self) -> None:
        self._note("close")


def driven(
    rig: Rig, watchdog_s: float | None = 0.1, clock: VirtualClock | None = None
) -> tuple[DrivenDevice, BenchDriver]:
    """A device and its driver; by default in a time that does not advance."""
    driver, clock = BenchDriver(rig), clock or VirtualClock()
    return DrivenDevice(rig, Bench(watchdog_s=watchdog_s), driver, boot_id=7, clock=clock), driver
