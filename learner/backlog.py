"""Pending updates of a real-time learner, and how many of them to run before the next pull."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LEARN_S: Final = 0.05
"""Target duration of consecutive updates."""
_INITIAL_PORTION: Final = 10
"""Number of updates per portion before their duration is known."""


class Backlog:
    """Pending updates; ``warn`` is called when the first ones are dropped."""

    def __init__(self, updates_per_transition: float, max_pending: int, warn: Callable[[str], object]) -> None:
        """``max_pending``: maximum number of experiences with pending updates."""
        self._updates_per_write, self._max_pending, self._warn = (
            updates_per_transition,
            updates_per_transition * max_pending,
            warn,
        )
        self._pending_updates = 0.0
        self.counted = 0
        """Number of writes to the memory whose updates have been added."""
        self.dropped = 0.0
        self._portion = _INITIAL_PORTION

    def take(self, inserted: int) -> None:
        """Add updates for the writes up to ``inserted``; drop those beyond the limit."""
        pending = self._pending_updates + self._updates_per_write * max(0, inserted - self.counted)
        self.counted = inserted
        self._pending_updates = min(pending, self._max_pending)
        self.drop(pending - self._pending_updates)

    def drop(self, updates: float) -> None:
        if updates and not self.dropped:
            self._warn("the learner cannot keep up: updates beyond learner.backlog are dropped")
        self.dropped += updates

    @property
    def due(self) -> int:
        return self.portion(int(self._pending_updates))

    def portion(self, updates: int) -> int:
        """Number of updates that take about ``LEARN_S``, estimated from the duration of the last ones; at least one."""
        return min(updates, self._portion)

    def record_duration(self, updates: int, elapsed_s: float) -> None:
        self._portion = max(1, int(LEARN_S * updates / max(elapsed_s, 1e-6)))

    def record_updates(self, updates: int) -> None:
        self._pending_updates -= updates
