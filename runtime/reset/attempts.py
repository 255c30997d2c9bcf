"""One reset of a rig: a limited number of attempts, each with a timeout, separated by rests.

The logic uses no clock but device time, so it behaves identically in tests, in lockstep and on a rig.  A reset ends
within ``attempts * (timeout_s + rest_s)``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from onrig.hw.rig import Rig
from onrig.runtime import registry
from onrig.runtime.braking import RESET_DIVERGENCE_FRACTION, DivergenceTimer
from onrig.runtime.guard import MAX_BUDGET_NS, Guard
from onrig.runtime.reset.schema import Reset


class Progress(enum.Enum):
    """State of a reset."""

    DRIVING = "going"
    REACHED = "there"
    GAVE_UP = "gave up"
    """All attempts have failed."""
    OUT_OF_LIMITS = "beyond"
    """The rig has left the limits of the reset."""
    DIVERGES = "diverges"
    """The quantity that the controller opposes grows despite its full effort."""
    FAILED = "failed"
    """The controller's code failed."""


class Decision(NamedTuple):
    """Action to pass to the shield, and state of the reset."""

    action: tuple[float, ...]
    progress: Progress


class EpisodeReset:
    """Reset of a rig to ``start``; ``detail`` is a short description of the result."""

    def __init__(
        self, reset: Reset, start: Mapping[str, float], rig: Rig, clock: Callable[[], int] | None = None
    ) -> None:
        """``clock`` (ns) limits the duration of a third-party controller; None disables the check."""
        self._reset, self._rig = reset, rig
        names = [o.name for o in rig.observations]
        self._limits = tuple((names.index(n), n, *bounds) for n, bounds in reset.limits.items())
        self._wrapped_indices = {i for i, o in enumerate(rig.observations) if rig.wraps(o.name)}
        self._safe_action = tuple(a.safe for a in rig.actuators)
        self._guard = Guard(self._record_driver_failure, MAX_BUDGET_NS, clock)
        self._failure = ""
        self._divergence_timer = DivergenceTimer()
        self._start: Mapping[str, float] | None = None
        self.set_start(start)
        self.begin()

    def set_start(self, start: Mapping[str, float]) -> None:
        """Set the start for the resets that follow."""
        if start == self._start:
            return
        self._start, reset = start, self._reset
        names = [o.name for o in self._rig.observations]
        self._tolerances = tuple((names.index(n), n, start[n], d) for n, d in reset.within.items())
        self._driver = reset.driver(start, self._rig)
        drive = self._driver.drive
        self._drive = (
            self._guard.wrap("the reset", _check_actions(drive, len(self._safe_action)), self._safe_action)
            if registry.is_third_party(reset)
            else drive
        )

    def begin(self) -> None:
        """Start a reset with its first attempt."""
        self.attempt = 0
        self.detail = self._failure = ""
        self.progress = Progress.DRIVING
        self._last_us = 0
        self._next_attempt()

    def _next_attempt(self) -> None:
        self.attempt += 1
        self._elapsed_s = self._held_s = self._rested_s = 0.0
        self._is_resting = False
        self._divergence_timer.reset()
        self._driver.begin(self.attempt)

    def action(self, observation: Sequence[float], t_us: int) -> tuple[float, ...]:
        """Return the action for a frame at device time ``t_us``, and update ``progress``."""
        elapsed_s = (t_us - self._last_us) * 1e-6 if self._last_us else 0.0
        self._last_us = t_us
        action, self.progress = self.decide(observation, elapsed_s)
        return action

    def decide(self, observation: Sequence[float], elapsed_s: float) -> Decision:
        """Return the decision for a frame, ``elapsed_s`` (device time) after the previous one; 0 for the first
        frame."""
        reset = self._reset
        for index, name, low, high in self._limits:
            if not low <= observation[index] <= high:
                self.detail = f"{name} at {observation[index]:g}, outside [{low:g}, {high:g}]"
                return Decision(self._safe_action, Progress.OUT_OF_LIMITS)
        if self._is_resting:
            self._rested_s += elapsed_s
            if self._rested_s < reset.rest_s:
                return Decision(self._safe_action, Progress.DRIVING)
            self._next_attempt()
        else:
            self._elapsed_s += elapsed_s
        deviation = self._deviation(observation)
        if deviation is None:
            self._divergence_timer.reset()
            self._held_s += elapsed_s
            if self._held_s >= reset.hold_s:
                self.detail = f"attempt {self.attempt}, {self._elapsed_s:.1f} s"
                return Decision(self._safe_action, Progress.REACHED)
            return Decision(self._safe_action, Progress.DRIVING)
        self._held_s = 0.0
        if self._elapsed_s >= reset.timeout_s:
            self.detail = f"{self.attempt} attempts of {reset.timeout_s:g} s; at the end {deviation}"
            if self.attempt >= reset.attempts:
                return Decision(self._safe_action, Progress.GAVE_UP)
            self._is_resting = True
            return Decision(self._safe_action, Progress.DRIVING)
        action = self._drive(observation, self._elapsed_s)
        if self._failure:
            self.detail = self._failure
            return Decision(self._safe_action, Progress.FAILED)
        opposed = self._driver.opposed
        if opposed is None:
            self._divergence_timer.reset()
        elif self._divergence_timer.update(opposed, elapsed_s) >= RESET_DIVERGENCE_FRACTION * reset.timeout_s:
            self.detail = f"for {RESET_DIVERGENCE_FRACTION * reset.timeout_s:.2g} s at full effort; {deviation}"
            return Decision(self._safe_action, Progress.DIVERGES)
        return Decision(action if all(map(isfinite, action)) else self._safe_action, Progress.DRIVING)

    def _record_driver_failure(self, detail: str) -> None:
        self._failure = self._failure or detail

    def _deviation(self, observation: Sequence[float]) -> str | None:
        for index, name, start, distance in self._tolerances:
            error = observation[index] - start
            if index in self._wrapped_indices:
                error = (error + 3.141592653589793) % 6.283185307179586 - 3.141592653589793
            if not abs(error) <= distance:
                return f"{name} was {observation[index]:g}, expected {start:g} +- {distance:g}"
        return None


_Drive = Callable[[Sequence[float], float], tuple[float, ...]]


def _check_actions(drive: _Drive, m: int) -> _Drive:
    def checked_drive(observation: Sequence[float], elapsed_s: float) -> tuple[float, ...]:
        action = drive(observation, elapsed_s)
        if len(action) != m or not all(map(isfinite, action)):
            raise ValueError(f"invalid action {tuple(action)} for the observation {tuple(observation)}")
        return action

    return checked_drive
