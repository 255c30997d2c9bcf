"""Rate limit of admission: an allowance that accumulates with device time and decreases with each check.

Admission costs CPU time and a file, so its rate must not be left to a learner that offers policies constantly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from onrig.runtime.run_config import RunConfig

ADMISSIONS_PER_S: Final = 1.0
"""Default number of checks per second of device time; learners offer once per episode, which takes seconds."""


class AdmissionRate(Protocol):
    """Rate limit on checks of policies."""

    def on_ticks(self, ticks: int) -> None:
        """Count further step records."""

    def use_check(self, closed: int) -> bool:
        """Use up one check and return True, or return False if none is available.

        ``closed`` is the last completed training episode.
        """


class PerSecond:
    """Rate limit in checks per second of device time, measured in ticks, which are monotonic.

    Unused checks accumulate for up to a second (but always up to at least one check).  Before the first tick, while the
    loop waits for a policy, the host's clock (``clock_s``) replaces the device's.
    """

    def __init__(self, per_s: float, rate_hz: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._rate_hz, self._clock_s = per_s, rate_hz, clock_s
        self._limit = self._n_available = max(1.0, per_s)
        self._ticks = False
        self._filled_s = clock_s()

    def on_ticks(self, ticks: int) -> None:
        self._ticks = self._ticks or ticks > 0
        self._accumulate(ticks / self._rate_hz)

    def use_check(self, closed: int) -> bool:
        """Use up a check if one is available; ``closed`` is ignored."""
        if not self._ticks:
            now_s = self._clock_s()
            self._accumulate(now_s - self._filled_s)
            self._filled_s = now_s
        if self._n_available < 1.0:
            return False
        self._n_available -= 1.0
        return True

    def _accumulate(self, seconds: float) -> None:
        self._n_available = min(self._limit, self._n_available + seconds * self._per_s)


class PerBarrier:
    """Rate limit for lockstep, which uses no clock: one check per completed training episode, and one before the first.

    The number of earlier checks need not be restored after a restart, because admitted policies are recognised without
    a check.
    """

    def __init__(self) -> None:
        self._last_check = -1

    def on_ticks(self, ticks: int) -> None:
        """Do nothing: ticks do not count."""

    def use_check(self, closed: int) -> bool:
        if closed <= self._last_check:
            return False
        self._last_check = closed
        return True


def admissions_per_s(config: RunConfig) -> float:
    """Return the permitted number of checks per second of device time (not used in lockstep)."""
    configured_rate = config.link.admissions_per_s
    return ADMISSIONS_PER_S if isinstance(configured_rate, msgspec.UnsetType) else configured_rate


def admission_rate(config: RunConfig) -> AdmissionRate:
    """Return a run's rate limit, which starts with a full allowance."""
    return PerBarrier() if config.lockstep else PerSecond(admissions_per_s(config), config.rate_hz)
