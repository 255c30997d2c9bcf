"""Watch on the shield's promise: whether the rig's measured steps agree with the plants that the promise covers.

In each episode, the watch measures the fraction of steps whose next measurement none of these plants explains.  The
promise is withdrawn when ``MIN_EXCEEDING_EPISODES`` of the last ``WINDOW`` episodes exceed the claimed fraction.  If an
episode of a covered plant exceeds it with probability p, a window leads to a withdrawal by chance with a probability of
at most ``WINDOW`` p / ``MIN_EXCEEDING_EPISODES`` (by Markov's inequality, however the episodes depend on each other).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.record import Flag, Kind
from onrig.runtime.registry import describe_exception
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.promise import Basis, Promise, promise_of
from onrig.runtime.shm.board import Board
from onrig.runtime.shm.board import Word as BoardWord

WINDOW: Final = 10
MIN_EXCEEDING_EPISODES: Final = 3
MIN_CLAIMED_FRACTION: Final = 0.02
"""Minimum claimed fraction, so that one or two sensor glitches in an episode do not withdraw the promise."""
MIN_STEPS: Final = 20
"""Minimum number of steps for an episode to count, both here and in the test of a table."""
_CHUNK_RECORDS: Final = 256
"""Number of records compared together."""


class StepCheck(Protocol):
    """Comparison of measured steps with the plants of a promise (``onrig.sim.barrier.one_step``)."""

    def count(self, records: NDArray[np.void]) -> tuple[int, int]:
        """Return the number of unexplained steps, and of all steps, in consecutive records of an episode.

        Records have dtype ``RecordLayout.dtype``; a step is unexplained if no plant of the box reproduces it.
        """


class SlidingWindowTest:
    """Sequential test over the latest episodes."""

    def __init__(self, claimed: float) -> None:
        self.claimed: Final = max(claimed, MIN_CLAIMED_FRACTION)
        self._exceeds: deque[bool] = deque(maxlen=WINDOW)

    @property
    def n_exceeding(self) -> int:
        """Number of episodes in the window that exceed the claimed fraction."""
        return sum(self._exceeds)

    def add(self, n_unexplained: int, n_steps: int) -> bool:
        """Add an episode; return whether the claim is contradicted."""
        if n_steps >= MIN_STEPS:
            self._exceeds.append(n_unexplained > self.claimed * n_steps)
        return self.n_exceeding >= MIN_EXCEEDING_EPISODES

    @property
    def state(self) -> int:
        """Window as a binary number for a checkpoint: a leading 1, then one bit per episode, oldest first."""
        return int("1" + "".join("01"[n_exceeding] for n_exceeding in self._exceeds), 2)

    def restore(self, state: int) -> None:
        """Continue from a checkpoint's ``state``."""
        self._exceeds.extend(bit == "1" for bit in f"{state:b}"[1:])


def false_alarm_rate(rate: float) -> float:
    """Return an upper bound on the fraction of windows with a false alarm.

    ``rate``: fraction of episodes that exceed the claim.
    """
    return min(1.0, WINDOW * rate / MIN_EXCEEDING_EPISODES)


class PromiseWatch:
    """Compares the records with the promise; withdraws the promise once, with an event and a call to ``withdraw``."""

    def __init__(
        self,
        promise: Promise,
        claimed: float,
        check: StepCheck,
        event: Callable[..., None],
        withdraw: Callable[[], None],
        *,
        withdrawn: bool = False,
    ) -> None:
        """``claimed``: permitted share of unexplained steps in an episode; ``withdrawn``: whether the
        promise has been withdrawn before."""
        self._basis, self._check, self._event, self._withdraw = promise.basis, check, event, withdraw
        self._test = SlidingWindowTest(claimed)
        self._pending_records: list[NDArray[np.void]] = []
        self._n_pending = self._n_unexplained = self._n_steps = 0
        self.withdrawn = withdrawn
        """Whether the promise no longer holds."""
        self.has_check_failed = False
        """Whether the plant's code has failed, which ends the comparison."""

    def counts(self) -> dict[str, int]:
        """Return the state of the test between episodes, for a checkpoint."""
        return {"promise_window": self._test.state, "promise_withdrawn": int(self.withdrawn)}

    def resume(self, counts: Mapping[str, int]) -> None:
        """Continue from a checkpoint's counts; a withdrawn promise remains withdrawn."""
        self._test.restore(counts.get("promise_window", 1))
        if counts.get("promise_withdrawn") and not self.withdrawn:
            self.withdrawn = True
            self._withdraw()

    def add(self, records: NDArray[np.void]) -> None:
        """Process the next records (dtype ``RecordLayout.dtype``), except those of resets."""
        if self.withdrawn or self.has_check_failed:
            return
        records = records[records["kind"] != Kind.RESET]
        end_indices = np.flatnonzero(records["flags"] & Flag.NO_ACTION).tolist()
        start = 0
        for end in end_indices:
            self._buffer(records[start : end + 1])
            self._end_episode(int(records["episode"][end]))
            start = end + 1
        self._buffer(records[start:])

    def _buffer(self, records: NDArray[np.void]) -> None:
        if not len(records):
            return
        self._pending_records.append(records.copy())
        self._n_pending += len(records)
        if self._n_pending >= _CHUNK_RECORDS:
            self._compare()

    def _compare(self) -> None:
        if self._n_pending < 2 or self.has_check_failed:
            return
        records = np.concatenate(self._pending_records)
        try:
            n_unexplained, n_steps = self._check.count(records)
        except Exception as error:  # the plant may be third-party code
            self._event("promise_unchecked", reason=describe_exception(error))
            self.has_check_failed = True
            return
        self._n_unexplained, self._n_steps = self._n_unexplained + n_unexplained, self._n_steps + n_steps
        self._pending_records, self._n_pending = [records[-1:]], 1

    def _end_episode(self, episode: int) -> None:
        self._compare()
        n_unexplained, n_steps = self._n_unexplained, self._n_steps
        self._pending_records, self._n_pending, self._n_unexplained, self._n_steps = [], 0, 0, 0
        if self.withdrawn or not self._test.add(n_unexplained, n_steps):
            return
        self.withdrawn = True
        self._event(
            "promise_withdrawn",
            promise=str(self._basis),
            episode=episode,
            share=round(n_unexplained / n_steps, 4),
            claimed=round(self._test.claimed, 4),
            episodes=self._test.n_exceeding,
            of=WINDOW,
        )
        self._withdraw()


def claimed_fraction(box: object) -> float:
    """Return the share of unexplained steps per episode found in the test of a box's table; 0 if it was not tested."""
    if getattr(box, "promise", None) != Basis.SAMPLED:
        return 0.0
    try:
        tested = box.barrier().header.tested  # type: ignore[attr-defined]
    except ValueError:
        return 0.0
    return 0.0 if tested is None else float(tested.outside)


def watch_promise(
    config: RunConfig, check: StepCheck | None, event: Callable[..., None], board: Board
) -> PromiseWatch | None:
    """Return a watch that withdraws a run's promise through ``board``, or None without a ``check``."""
    if check is None:
        return None
    return PromiseWatch(
        promise_of(config.limits),
        claimed_fraction(config.limits.predicted),
        check,
        event,
        lambda: board.__setitem__(BoardWord.PROMISE_WITHDRAWN, 1),
        withdrawn=bool(board[BoardWord.PROMISE_WITHDRAWN]),
    )
