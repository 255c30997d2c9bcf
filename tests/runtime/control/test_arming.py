"""Timeouts of a disarmed loop."""

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


class WaitingLoop:
    """A loop that waits, in virtual time: each poll takes a second."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = Bench(folder, monkeypatch, f"barrier_timeout_s={LIMIT_S:g}")
        self.board, self.now_s = bench.board, 0.0
        for module in (arming, pace):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._advance))
        lockstep = Lockstep(bench.config, bench.session, bench.ring, bench.requests)
        self._arming = Arming(bench.config, bench.session, bench.board, bench.requests, lockstep)
        self._arming.handle(Event.CONNECTED)
        self._on_poll: Callable[[], None] = lambda: None

    def _advance(self, seconds: float) -> None:
        self.now_s += 1.0
        self._on_poll()

    def wait(self, until_s: float, on_poll: Callable[[], None]) -> None:
        self._on_poll = on_poll
        self._arming.wait_for(lambda: self.now_s >= until_s, "the barrier", FaultName.BARRIER)


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WaitingLoop:
    return WaitingLoop(tmp_path, monkeypatch)


@pytest.mark.parametrize("word", [Word.RESTARTS, Word.LEARNER_DONE, Word.FEEDBACK_BATCHES])
def test_a_process_that_makes_progress_is_waited_for_however_long_it_takes(loop: WaitingLoop, word: Word) -> None:
    def progress_every_nine_seconds() -> None:
        if loop.now_s % 9.0 == 0.0:
            loop.board[word] += 1

    loop.wait(20 * LIMIT_S, progress_every_nine_seconds)
    with pytest.raises(Halted, match="waited 10 s for the barrier"):
        loop.wait(30 * LIMIT_S, lambda: None)


def test_repeated_episodes_are_progress_even_if_their_numbers_go_back(loop: WaitingLoop) -> None:
    loop.board[Word.LEARNER_DONE] = 40

    def step_back_at_five_seconds() -> None:
        if loop.now_s == 5.0:
            loop.board[Word.LEARNER_DONE] = 31

    loop.wait(5.0 + LIMIT_S, step_back_at_five_seconds)


def test_the_loop_gives_up_on_a_process_without_progress(loop: WaitingLoop) -> None:
    with pytest.raises(Halted) as error:
        loop.wait(LIMIT_S + 5.0, lambda: None)
    assert error.value.fault is FaultName.BARRIER
    assert LIMIT_S < loop.now_s <= LIMIT_S + 1.0
