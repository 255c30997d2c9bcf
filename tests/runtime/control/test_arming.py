"""Time-outs of a disarmed loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from onrig.runtime.control import arming, pace
from onrig.runtime.control.arming import Arming
from onrig.runtime.control.pace import Lockstep
from onrig.runtime.run_state.faults import FaultName, Halted
from onrig.runtime.run_state.states import Event
from onrig.runtime.shm.board import Word
from tests.runtime.control.test_loop import Bench

LIMIT_S = 10.0


class Waiting:
    """A loop that waits, in virtual time: each poll takes a second."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = Bench(folder, monkeypatch, f"barrier_timeout_s={LIMIT_S:g}")
        self.board, self.now_s = bench.board, 0.0
        for module in (arming, pace):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._pass))
        lockstep = Lockstep(bench.config, bench.session, bench.ring, bench.requests)
        self._arming = Arming(bench.config, bench.session, bench.board, bench.requests, lockstep)
        self._arming.handle(Event.CONNECTED)
        self._meanwhile: Callable[[], None] = lambda: None

    def _pass(self, seconds: float) -> None:
        self.now_s += 1.0
        self._meanwhile()

    def wait(self, until_s: float, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self._arming.wait_for(lambda: self.now_s >= until_s, "the barrier", FaultName.BARRIER)


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(tmp_path, monkeypatch)


@pytest.mark.parametrize("word", [Word.RESTARTS, Word.LEARNER_DONE, Word.FEEDBACK_BATCHES])
def test_whoever_makes_progress_is_waited_for_however_long_it_takes(waiting: Waiting, word: Word) -> None:
    def every_few_seconds() -> None:
        if waiting.now_s % 9.0 == 0.0:
            waiting.board[word] += 1

    waiting.wait(20 * LIMIT_S, every_few_seconds)
    with pytest.raises(Halted, match="waited 10 s for the barrier"):
        waiting.wait(30 * LIMIT_S, lambda: None)


def test_episodes_that_happen_once_more_are_progress_also_where_their_numbers_go_back(waiting: Waiting) -> None:
    waiting.board[Word.LEARNER_DONE] = 40

    def goes_back_at_5_seconds() -> None:
        if waiting.now_s == 5.0:
            waiting.board[Word.LEARNER_DONE] = 31

    waiting.wait(5.0 + LIMIT_S, goes_back_at_5_seconds)


def test_whoever_makes_none_is_given_up(waiting: Waiting) -> None:
    with pytest.raises(Halted) as halted:
        waiting.wait(LIMIT_S + 5.0, lambda: None)
    assert halted.value.fault is FaultName.BARRIER
    assert LIMIT_S < waiting.now_s <= LIMIT_S + 1.0
