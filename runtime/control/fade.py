"""Fading the command out: what the first Ctrl-C does."""

from __future__ import annotations

from collections.abc import Sequence


class Fade:
    """A ramp from the command to the safe output in a fixed number of ticks; not begun until ``begin``."""

    def __init__(self, fade_s: float, rate_hz: float, safe: tuple[float, ...]) -> None:
        self._ticks = round(fade_s * rate_hz)
        self._safe = safe
        self._done = -1

    @property
    def under_way(self) -> bool:
        """Whether it has begun."""
        return self._done >= 0

    @property
    def over(self) -> bool:
        """Whether the next command would be the safe output."""
        return self._done >= self._ticks

    def begin(self) -> None:
        """Start the ramp with the next command."""
        if not self.under_way:
            self._done = 0

    def next(self, action: Sequence[float]) -> tuple[float, ...]:
        """Return the action (SI) at its share, one tick further down; what is no number stays none."""
        self._done += 1
        share = 1.0 - self._done / (self._ticks + 1)
        return tuple([safe + share * (value - safe) for value, safe in zip(action, self._safe, strict=True)])
