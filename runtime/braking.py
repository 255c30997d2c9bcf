"""Braking, of the fallback and of resets: the command of one actuator, and a watch on a brake that makes it worse."""

from __future__ import annotations

from typing import Final

from onrig.hw.rig import Actuator

GROWTH: Final = 1.1
"""Growth of a distance, since full effort began, from which the state counts as leaving."""
RESET_SHARE: Final = 0.2
"""Time of leaving that is a fault of a reset, as a share of the ``timeout_s`` of an attempt."""


class Brake:
    """Command of one actuator from its safe value, its point of rest, towards either end of its range."""

    def __init__(self, actuator: Actuator, effort: float = 1.0) -> None:
        self._rest = actuator.safe
        self._up, self._down = (effort * (end - actuator.safe) for end in (actuator.high, actuator.low))

    def at(self, share: float) -> float:
        """Return the command (SI) at ``share`` of the effort: 1 towards the high end, -1 towards the low one."""
        return self._rest + (self._up * min(share, 1.0) if share > 0 else -self._down * max(share, -1.0))


def one_sided(actuator: Actuator, low: float, high: float) -> str:
    """Why an actuator with a range of [low, high] cannot brake both directions; empty if it can."""
    half_count = 0.5 * actuator.resolution
    if low + half_count < actuator.safe < high - half_count:
        return ""
    return (
        f"'{actuator.name}' cannot brake both directions: its safe output {actuator.safe:g} {actuator.unit}, from "
        f"which it brakes, is an end of its range [{low:g}, {high:g}]"
    )


class Leaving:
    """Time for which the distance has exceeded its least value since full effort began, by a tenth at least."""

    def __init__(self, floor: float = 0.0) -> None:
        """``floor``: distance that is not left, however small the least one was."""
        self._floor = floor
        self.reset()

    def reset(self) -> None:
        """Start anew: the controller does not act, or not with full effort."""
        self._least: float | None = None
        self._since = 0.0

    def take(self, distance: float, passed: float) -> float:
        """Take the distance at full effort, ``passed`` after the one before; returns the time of leaving."""
        least = self._least = distance if self._least is None else min(self._least, distance)
        self._since = self._since + passed if distance > GROWTH * max(least, self._floor) else 0.0
        return self._since
