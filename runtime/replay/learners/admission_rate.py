"""How often a rig judges policies: an allowance that device time fills up and each judgement uses up.

Admission costs processor time and a file, so whoever offers without pause must not decide how often it happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from onrig.runtime.run_config import RunConfig

ADMISSIONS_PER_S: Final = 1.0
"""Of device time, where a configuration does not say: learners offer once per episode, which takes seconds."""


class AdmissionRate(Protocol):
    """Says whether a policy may be judged now."""

    def ticked(self, ticks: int) -> None:
        """Take note of so many more step records."""

    def take(self, closed: int) -> bool:
        """Use up one judgement if there is one; ``closed`` is the last training episode that is over."""


class PerSecond:
    """So many judgements per second of device time, saved up for a second; counted in ticks, which never go back.

    Before the first tick the loop waits for a policy, and the host's clock (``clock_s``) stands in for the device's.
    """

    def __init__(self, per_s: float, rate_hz: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._rate_hz, self._clock_s = per_s, rate_hz, clock_s
        self._most = self._left = max(1.0, per_s)
        self._ticks = False
        self._asked_s = clock_s()

    def ticked(self, ticks: int) -> None:
        """As AdmissionRate."""
        self._ticks = self._ticks or ticks > 0
        self._fill(ticks / self._rate_hz)

    def take(self, closed: int) -> bool:
        """As AdmissionRate; ``closed`` does not matter."""
        if not self._ticks:
            now_s = self._clock_s()
            self._fill(now_s - self._asked_s)
            self._asked_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def _fill(self, seconds: float) -> None:
        self._left = min(self._most, self._left + seconds * self._per_s)


class PerBarrier:
    """One judgement for each training episode that is over, and one before the first: lockstep, where no clock counts.

    A replay process that takes over knows nothing of judgements before it, and needs not: what was admitted then it
    recognises.
    """

    def __init__(self) -> None:
        self._judged_at = -1

    def ticked(self, ticks: int) -> None:
        """As AdmissionRate; ticks do not matter."""

    def take(self, closed: int) -> bool:
        """As AdmissionRate."""
        if closed <= self._judged_at:
            return False
        self._judged_at = closed
        return True


def admissions_per_s(config: RunConfig) -> float:
    """How many policies a run judges in a second of device time (not in lockstep)."""
    stated = config.link.admissions_per_s
    return ADMISSIONS_PER_S if isinstance(stated, msgspec.UnsetType) else stated


def admission_rate(config: RunConfig) -> AdmissionRate:
    """Return a run's allowance, full."""
    return PerBarrier() if config.lockstep else PerSecond(admissions_per_s(config), config.rate_hz)
