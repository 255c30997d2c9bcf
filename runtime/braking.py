"""Braking for the fallback and for resets: the command of one actuator, and detection of a brake that pushes the wrong
way."""

from __future__ import annotations

from typing import Final

from onrig.hw.rig import Actuator

DIVERGENCE_GROWTH: Final = 1.1
"""Ratio of the distance to its minimum, both under full effort, above which the state counts as diverging."""
RESET_DIVERGENCE_FRACTION: Final = 0.2
"""Duration of divergence after which a reset fails, as a fraction of an attempt's ``timeout_s``."""


class Brake:
    """Command of one actuator, ranging from its safe value (no effort) to either end of its range (full effort)."""

    def __init__(self, actuator: Actuator, effort: float = 1.0) -> None:
        self._safe_command = actuator.safe
        self._upward_range, self._downward_range = (
            effort * (end - actuator.safe) for end in (actuator.high, actuator.low)
        )

    def command(self, fraction: float) -> float:
        """Return the command (SI) at ``fraction`` of full effort: 1 is the high end of the range, -1 the low end."""
        return self._safe_command + (
            self._upward_range * min(fraction, 1.0) if fraction > 0 else -self._downward_range * max(fraction, -1.0)
        )


def braking_problem(actuator: Actuator, low: float, high: float) -> str:
    """Return why an actuator with the range [low, high] cannot brake in both directions; empty if it can."""
    half_count = 0.5 * actuator.resolution
    if low + half_count < actuator.safe < high - half_count:
        return ""
    return (
        f"'{actuator.name}' cannot brake in both directions: its safe output {actuator.safe:g} {actuator.unit} "
        f"is at an end of its range [{low:g}, {high:g}]"
    )


class DivergenceTimer:
    """Timer of divergence: how long the distance has been more than 10 % above its minimum under full effort."""

    def __init__(self, floor: float = 0.0) -> None:
        """``floor``: distance below which a state never counts as diverging."""
        self._floor = floor
        self.reset()

    def reset(self) -> None:
        """Restart the timer; call this whenever the controller is inactive or below full effort."""
        self._min_distance: float | None = None
        self._diverging_s = 0.0

    def update(self, distance: float, elapsed_s: float) -> float:
        """Add a distance at full effort, ``elapsed_s`` after the previous one; return how long it has diverged, in
        s."""
        minimum = self._min_distance = distance if self._min_distance is None else min(self._min_distance, distance)
        is_diverging = distance > DIVERGENCE_GROWTH * max(minimum, self._floor)
        self._diverging_s = self._diverging_s + elapsed_s if is_diverging else 0.0
        return self._diverging_s
