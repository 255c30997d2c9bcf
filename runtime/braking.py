"""Braking for the fallback and for resets: command of one actuator, and detection of a brake that pushes the wrong
way."""

from __future__ import annotations

from typing import Final

from onrig.hw.rig import Actuator

GROWTH: Final = 1.1
"""Relative growth of the distance under full effort above which the state counts as diverging."""
RESET_SHARE: Final = 0.2
"""Diverging time after which a reset fails, as a share of an attempt's ``timeout_s``."""


class Brake:
    """Command of one actuator from its safe value (no effort) to either end of its range (full effort)."""

    def __init__(self, actuator: Actuator, effort: float = 1.0) -> None:
        self._rest = actuator.safe
        self._up, self._down = (effort * (end - actuator.safe) for end in (actuator.high, actuator.low))

    def command(self, share: float) -> float:
        """Return the command (SI) at ``share`` of full effort: 1 is the high end of the range, -1 the low end."""
        return self._rest + (self._up * min(share, 1.0) if share > 0 else -self._down * max(share, -1.0))


def one_sided(actuator: Actuator, low: float, high: float) -> str:
    """Return why an actuator with the range [low, high] cannot brake in both directions; empty if it can."""
    half_count = 0.5 * actuator.resolution
    if low + half_count < actuator.safe < high - half_count:
        return ""
    return (
        f"'{actuator.name}' cannot brake in both directions: its safe output {actuator.safe:g} {actuator.unit}, from "
        f"which it brakes, is an end of its range [{low:g}, {high:g}]"
    )


class Divergence:
    """Timer of divergence: how long the distance has exceeded its minimum under full effort by at least a tenth."""

    def __init__(self, floor: float = 0.0) -> None:
        """``floor``: distance below which a state never counts as diverging."""
        self._floor = floor
        self.reset()

    def reset(self) -> None:
        """Restart: the controller is inactive, or below full effort."""
        self._least: float | None = None
        self._since = 0.0

    def update(self, distance: float, passed: float) -> float:
        """Add the distance at full effort, ``passed`` after the previous one; return the diverging time."""
        minimum = self._least = distance if self._least is None else min(self._least, distance)
        self._since = self._since + passed if distance > GROWTH * max(minimum, self._floor) else 0.0
        return self._since
