"""Watch on the shield's promise: whether the rig's own steps agree with the plants that the promise covers.

Each episode gives the share of its steps whose next measurement none of those plants explains.  A promise is withdrawn
where ``NEEDED`` of the last ``WINDOW`` episodes exceed the claimed share.  If a covered plant exceeds it in an episode
with probability p, that happens by chance in at most ``WINDOW`` p / ``NEEDED`` of all windows (Markov's inequality,
however episodes depend on each other).
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
NEEDED: Final = 3
LEAST_SHARE: Final = 0.02
"""Least claimed share: a glitch of a sensor or two in an episode withdraws nothing."""
_LEAST_STEPS: Final = 20
"""Steps below which an episode is not judged."""
_CHUNK: Final = 256
"""Records that are judged together."""


class StepCheck(Protocol):
    """Comparison of measured steps with the plants of a promise (``onrig.sim.barrier.one_step``)."""

    def count(self, records: NDArray[np.void]) -> tuple[int, int]:
        """Of consecutive records (dtype ``RecordLayout.dtype``) of one episode: steps no plant explains, and all
        steps."""


class SlidingTest:
    """Sequential test over episodes."""

    def __init__(self, claimed: float) -> None:
        self.claimed: Final = max(claimed, LEAST_SHARE)
        self._beyond: deque[bool] = deque(maxlen=WINDOW)

    @property
    def beyond(self) -> int:
        """Episodes of the window that exceed the claimed share."""
        return sum(self._beyond)

    def add(self, outside: int, steps: int) -> bool:
        """Add an episode; returns whether the claim is contradicted."""
        if steps >= _LEAST_STEPS:
            self._beyond.append(outside > self.claimed * steps)
        return self.beyond >= NEEDED

    @property
    def state(self) -> int:
        """The window as bits below a leading 1, oldest episode first, for a checkpoint."""
        return int("1" + "".join("01"[beyond] for beyond in self._beyond), 2)

    def restore(self, state: int) -> None:
        """Continue from a checkpoint's ``state``."""
        self._beyond.extend(bit == "1" for bit in f"{state:b}"[1:])


def false_alarm_rate(rate: float) -> float:
    """Bound on the share of windows with a false alarm, from the rate of episodes beyond the claim."""
    return min(1.0, WINDOW * rate / NEEDED)


class PromiseWatch:
    """Follows the records; withdraws the promise once, by an event and by ``withdraw``."""

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
        """``claimed``: share of steps beyond every plant that an episode may have; ``withdrawn``: was so before."""
        self._word, self._check, self._event, self._withdraw = promise.basis, check, event, withdraw
        self._test = SlidingTest(claimed)
        self._waiting: list[NDArray[np.void]] = []
        self._n_waiting = self._outside = self._steps = 0
        self.withdrawn = withdrawn
        """Whether the promise no longer holds."""
        self.unchecked = False
        """Whether the plant's code failed, so that nothing is compared any more."""

    def counts(self) -> dict[str, int]:
        """State of the test between episodes, for a checkpoint."""
        return {"promise_window": self._test.state, "promise_withdrawn": int(self.withdrawn)}

    def resume(self, counts: Mapping[str, int]) -> None:
        """Continue from a checkpoint's counts: a withdrawn promise stays withdrawn."""
        self._test.restore(counts.get("promise_window", 1))
        if counts.get("promise_withdrawn") and not self.withdrawn:
            self.withdrawn = True
            self._withdraw()

    def add(self, records: NDArray[np.void]) -> None:
        """Take the next records (dtype ``RecordLayout.dtype``); those of resets are not judged."""
        if self.withdrawn or self.unchecked:
            return
        records = records[records["kind"] != Kind.RESET]
        ends = np.flatnonzero(records["flags"] & Flag.NO_ACTION).tolist()
        start = 0
        for end in ends:
            self._take(records[start : end + 1])
            self._close(int(records["episode"][end]))
            start = end + 1
        self._take(records[start:])

    def _take(self, records: NDArray[np.void]) -> None:
        if not len(records):
            return
        self._waiting.append(records.copy())
        self._n_waiting += len(records)
        if self._n_waiting >= _CHUNK:
            self._judge()

    def _judge(self) -> None:
        if self._n_waiting < 2 or self.unchecked:
            return
        records = np.concatenate(self._waiting)
        try:
            outside, steps = self._check.count(records)
        except Exception as error:  # the plant may be foreign code
            self._event("promise_unchecked", reason=describe_exception(error))
            self.unchecked = True
            return
        self._outside, self._steps = self._outside + outside, self._steps + steps
        self._waiting, self._n_waiting = [records[-1:]], 1

    def _close(self, episode: int) -> None:
        self._judge()
        outside, steps = self._outside, self._steps
        self._waiting, self._n_waiting, self._outside, self._steps = [], 0, 0, 0
        if self.withdrawn or not self._test.add(outside, steps):
            return
        self.withdrawn = True
        self._event(
            "promise_withdrawn",
            promise=str(self._word),
            episode=episode,
            share=round(outside / steps, 4),
            claimed=round(self._test.claimed, 4),
            episodes=self._test.beyond,
            of=WINDOW,
        )
        self._withdraw()


def claimed_share(box: object) -> float:
    """Share of steps beyond every plant that a box claims for an episode: what the test of its table found, else 0."""
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
    """Watch on the promise of a run, withdrawn through its board; None without a check."""
    if check is None:
        return None
    return PromiseWatch(
        promise_of(config.limits),
        claimed_share(config.limits.predicted),
        check,
        event,
        lambda: board.__setitem__(BoardWord.WITHDRAWN, 1),
        withdrawn=bool(board[BoardWord.WITHDRAWN]),
    )
