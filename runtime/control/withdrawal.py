"""The loop's reaction, between episodes, to a withdrawn promise or to a plant that no longer matches its
identification: a pause until a person resumes the run, or less exploration noise.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET

from onrig.runtime.control.arming import Arming
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.report import report
from onrig.runtime.shm.board import Board, Word

WITHDRAWAL_FACTOR: Final = 0.1
"""Factor on the exploration amplitude where the reaction is to reduce exploration instead of pausing the run."""
CAUSE: Final = "the rig's own data contradict the plants that its promise covers"
HINT: Final = "check what changed on the rig, identify it again, and compute its limits from the result"
DEPARTURE: Final = "the plant no longer matches the identification that the run began with"


def withdrawal_reaction(config: RunConfig) -> Literal["pause", "reduce", ""]:
    """Return the configured reaction to a withdrawn promise or a changed plant; by default a pause, or with a twin no
    reaction."""
    if config.limits.on_withdrawn is not UNSET:
        return config.limits.on_withdrawn
    return "" if config.device.twin is not None else "pause"


class WithdrawalWatch:
    """Watch that polls the board before each episode, and reacts once to a withdrawn promise and once to a changed
    plant."""

    def __init__(self, config: RunConfig, board: Board, arming: Arming, explorer: Explorer) -> None:
        self._reaction, self._is_lockstep = withdrawal_reaction(config), config.lockstep
        self._board, self._arming, self._explorer = board, arming, explorer
        self._known: set[Word] = set()
        self._is_reduced = False

    def apply(self) -> None:
        """Pause, or reduce the exploration, if the promise was withdrawn or the plant has changed.  Raises Stopped,
        Halted.
        """
        if self._is_new(Word.PROMISE_WITHDRAWN):
            self._react(CAUSE)
        if self._is_new(Word.PLANT_DEPARTED):
            report("control", "warning", DEPARTURE)
            # In lockstep there is no reaction: its time would depend on the speed of the fit, and the run on the clock.
            if not self._is_lockstep:
                self._react(DEPARTURE)

    def _is_new(self, word: Word) -> bool:
        if word in self._known or not self._board[word]:
            return False
        self._known.add(word)
        return True

    def _react(self, cause: str) -> None:
        if self._reaction == "reduce" and not self._is_reduced:
            self._is_reduced = True
            self._explorer.reduce(WITHDRAWAL_FACTOR)
        elif self._reaction == "pause":
            self._arming.pause_until(lambda: False, cause, HINT)
