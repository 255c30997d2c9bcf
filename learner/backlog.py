"""Backlog of a real-time learner's pending updates, and the number of them to run before the next pull."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PORTION_DURATION_S: Final = 0.05
"""Target duration of a portion of updates."""
_INITIAL_PORTION: Final = 10
"""Number of updates per portion before their duration is known."""


class Backlog:
    """Backlog of pending updates; ``warn`` is called the first time any are dropped."""

    def __init__(self, updates_per_transition: float, max_pending: int, warn: Callable[[str], object]) -> None:
        """``max_pending``: maximum number of experiences with pending updates."""
        self._updates_per_write, self._max_pending, self._warn = (
            updates_per_transition,
            updates_per_transition * max_pending,
            warn,
        )
        self._pending_updates = 0.0
        self.n_counted_writes = 0
        """Number of memory writes whose updates have been added."""
        self.n_dropped_updates = 0.0
        self._portion_size = _INITIAL_PORTION

    def add_writes(self, n_inserted: int) -> None:
        """Add the updates that the writes up to ``n_inserted`` call for, and drop any beyond the limit."""
        pending_updates = self._pending_updates + self._updates_per_write * max(0, n_inserted - self.n_counted_writes)
        self.n_counted_writes = n_inserted
        self._pending_updates = min(pending_updates, self._max_pending)
        self.drop(pending_updates - self._pending_updates)

    def drop(self, updates: float) -> None:
        if updates and not self.n_dropped_updates:
            self._warn("the learner cannot keep up: updates beyond learner.backlog are dropped")
        self.n_dropped_updates += updates

    @property
    def n_due(self) -> int:
        return self.portion_size(int(self._pending_updates))

    def portion_size(self, updates: int) -> int:
        """Return the number of updates, at most ``updates``, that should take about ``PORTION_DURATION_S``, judging by
        the last portion."""
        return min(updates, self._portion_size)

    def record_duration(self, updates: int, elapsed_s: float) -> None:
        self._portion_size = max(1, int(PORTION_DURATION_S * updates / max(elapsed_s, 1e-6)))

    def record_updates(self, updates: int) -> None:
        self._pending_updates -= updates
