"""The host's clock, passed in wherever time matters so that tests and lockstep run in virtual time.

The standard module ``time`` is a Clock as it stands.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Source of monotonic time."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds since an arbitrary origin; never runs backwards."""


class VirtualClock:
    """Time that passes only when it is told to."""

    def __init__(self, start_ns: int = 0) -> None:
        self.now_ns = start_ns

    def monotonic_ns(self) -> int:
        """Return the present virtual time in ns."""
        return self.now_ns

    def advance(self, duration_ns: int) -> None:
        """Let time pass; raises ValueError for a negative duration."""
        if duration_ns < 0:
            raise ValueError(f"time cannot run back by {-duration_ns} ns")
        self.now_ns += duration_ns
