"""Pace of the replay process: when it reads records, and when the loop waits for it.

In real time nothing waits: learning overlaps the next episode, records accumulate for a while before they are read, and
checkpoints are written in the background.  In lockstep the loop waits at a barrier after each training episode; the
barrier opens once all work for that episode is done.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from onrig.runtime.record import Kind
from onrig.runtime.replay.continuity import Continuity
from onrig.runtime.replay.learners.learner_requests import LearnerRequests
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.board import Board, Word
from onrig.runtime.shm.ring import RingReader

_MIN_PAUSE_MS: Final = 1
_MAX_PAUSE_MS: Final = 8
_READ_INTERVAL_S: Final = 0.02
"""Interval between reads.  Reading a batch costs hardly more than reading one record, whereas reading single records at
500 Hz keeps a core busy."""
_MAX_WAITING: Final = 64
"""Number of waiting records that triggers an immediate read."""


class Pace(Protocol):
    """Pace of the replay process; all times are in s on the same monotonic clock."""

    n_uncovered: int
    """Number of records that had to leave the ring before a checkpoint covered them (lockstep); they would be lost if
    the replay process died now."""
    concluded_s: float
    """Time at which the last episode was concluded (lockstep)."""

    def is_reading_due(self, waiting: int, now_s: float) -> bool:
        """Whether to read the ``waiting`` records now; polled, because the ring cannot wake a process."""

    def readable(self, records: NDArray[np.void]) -> int:
        """Return how many of the next ``records`` may be read now."""

    def note_read(self, now_s: float) -> None:
        """Record that records are being read."""

    def pause_ms(self, now_s: float) -> int:
        """Return how long to wait for a learner's request if there is nothing else to do."""

    def note_pause(self, *, is_requested: bool) -> None:
        """Record that a pause has ended; ``is_requested``: whether a request ended it."""

    def conclude(self, now_s: float) -> None:
        """Write a checkpoint if one is due, and let the loop continue if it is waiting."""

    def release(self, first_unsaved: int, first_unlogged: int | None) -> None:
        """Free the records that the ring no longer needs to keep; arguments as in `first_retained`."""

    @property
    def awaits_learner(self) -> bool:
        """Whether a run whose loop has ended still needs its learner."""


class RealTime:
    """Pace in real time: nothing waits.  Records kept for a successor take up at most half of the ring, so the loop can
    always write."""

    n_uncovered: int = 0
    concluded_s: float = 0.0
    awaits_learner: bool = False

    def __init__(self, ring: RingReader, continuity: Continuity) -> None:
        self._ring, self._continuity = ring, continuity
        self._next_s = 0.0

    def is_reading_due(self, waiting: int, now_s: float) -> bool:
        return waiting >= _MAX_WAITING or now_s >= self._next_s

    def readable(self, records: NDArray[np.void]) -> int:
        return len(records)

    def note_read(self, now_s: float) -> None:
        """Postpone the next read, so that records accumulate."""
        self._next_s = now_s + _READ_INTERVAL_S

    def pause_ms(self, now_s: float) -> int:
        """Return the time until the accumulated records are due to be read."""
        remaining_s = self._next_s - now_s
        return max(_MIN_PAUSE_MS, round(1e3 * (remaining_s if remaining_s > 0.0 else _READ_INTERVAL_S)))

    def note_pause(self, *, is_requested: bool) -> None:
        """Do nothing: pauses do not depend on requests."""

    def conclude(self, now_s: float) -> None:
        self._continuity.checkpoint_if_due(now_s)

    def release(self, first_unsaved: int, first_unlogged: int | None) -> None:
        self._ring.release(first_retained(self._ring, first_unsaved, first_unlogged, may_yield=True))


class Lockstep:
    """Pace in lockstep: the loop waits at the barrier, and the ring keeps records until a checkpoint covers them or it
    is full."""

    def __init__(
        self, config: RunConfig, ring: RingReader, continuity: Continuity, requests: LearnerRequests, board: Board
    ) -> None:
        self._ring, self._continuity, self._requests, self._board = ring, continuity, requests, board
        self._episodes = config.episodes
        self._has_learner = config.actor is UNSET
        self._pause_ms = _MIN_PAUSE_MS
        self._last_concluded = -1
        """Last training episode concluded by this process."""
        self.n_uncovered = 0
        self.concluded_s = 0.0

    @property
    def _last_done_episode(self) -> int:
        """Last training episode for which learning is complete; with a trainer, the last closed episode."""
        return self._requests.last_done_episode if self._has_learner else self._requests.feed.last_closed_episode

    def is_reading_due(self, waiting: int, now_s: float) -> bool:
        """Return True, because the loop waits until the records have been processed."""
        return True

    def readable(self, records: NDArray[np.void]) -> int:
        """Return the number of records before the end of the next episode to be concluded.

        An episode's transitions are inserted only once all work for the previous episode is done.  Since the loop waits
        at its barriers, records of later episodes occur only when records are read again after a restart.
        """
        return count_to_barrier(records, self._last_done_episode)

    def note_read(self, now_s: float) -> None:
        self._pause_ms = _MIN_PAUSE_MS

    def pause_ms(self, now_s: float) -> int:
        """Return the pause, doubled while nothing arrives."""
        return self._pause_ms

    def note_pause(self, *, is_requested: bool) -> None:
        self._pause_ms = _MIN_PAUSE_MS if is_requested else min(2 * self._pause_ms, _MAX_PAUSE_MS)

    def conclude(self, now_s: float) -> None:
        """Open the barrier after the last concluded episode, once its checkpoint is on disk."""
        board, requests, done = self._board, self._requests, self._last_done_episode
        board[Word.LEARNER_DONE] = done + 1
        if done <= self._last_concluded or done > board[Word.CLOSED]:
            return
        self.concluded_s = now_s
        # While an episode is being repeated, the loop is already past it, so its state does not match the checkpoint.
        if board[Word.BARRIER] <= done and requests.learner_state_saved and self._continuity.checkpoint_episode(done):
            requests.note_checkpoint(done)
        self._last_concluded = done
        board[Word.BARRIER] = max(board[Word.BARRIER], done + 1)

    def release(self, first_unsaved: int, first_unlogged: int | None) -> None:
        ring = self._ring
        may_yield = ring.is_full and ring.n_taken - ring.tail >= ring.capacity
        end = first_retained(ring, first_unsaved, first_unlogged, may_yield=may_yield)
        self.n_uncovered = max(0, end - first_unsaved)
        ring.release(end)

    @property
    def awaits_learner(self) -> bool:
        """Whether the learner has not yet concluded the last episode of a complete run."""
        return (
            self._board[Word.CLOSED] >= self._episodes
            and self._last_done_episode < self._requests.feed.last_closed_episode
        )


def make_pace(
    config: RunConfig, ring: RingReader, continuity: Continuity, requests: LearnerRequests, board: Board
) -> Pace:
    """Return the pace of a run."""
    if config.lockstep:
        return Lockstep(config, ring, continuity, requests, board)
    return RealTime(ring, continuity)


def count_to_barrier(records: NDArray[np.void], done: int) -> int:
    """Return how many of the next ``records`` belong to the episode after the last concluded one (``done``) or to
    earlier ones."""
    is_training = records["kind"] == Kind.TRAIN
    later_indices = np.flatnonzero(records["episode"] > np.where(is_training, done + 1, done))
    return int(later_indices[0]) if len(later_indices) else len(records)


def first_retained(ring: RingReader, first_unsaved: int, first_unlogged: int | None, *, may_yield: bool) -> int:
    """Return the number of the first record that the ring must keep.

    Records before ``first_unsaved`` are in a checkpoint; records before ``first_unlogged`` are in the log (None: no
    log).  If ``may_yield`` is true, the ring keeps at most half of its capacity.
    """
    first_kept = (
        min(first_unsaved, ring.n_taken) if first_unlogged is None else min(first_unsaved, ring.n_taken, first_unlogged)
    )
    if may_yield:
        first_kept = max(first_kept, ring.n_taken - ring.capacity // 2)
    return max(first_kept, ring.tail)
