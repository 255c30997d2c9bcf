"""Transitions on their way to the supervisor: noted in the tick, sent when there is time."""

from __future__ import annotations

from collections import deque
from typing import Final

from onrig.runtime.run_state.report import report
from onrig.runtime.run_state.states import Transition, describe
from onrig.runtime.shm.board import Board, Word

_KEPT: Final = 4096
"""Transitions that wait for a supervisor that does not read; far more than an episode has."""


class Journal:
    """Keeps the board's state word and the line to the supervisor in step with the state machine."""

    def __init__(self, board: Board, source: str) -> None:
        self._board, self._source = board, source
        self._waiting: deque[Transition] = deque(maxlen=_KEPT)

    def note(self, transition: Transition) -> None:
        """Take one transition; no I/O."""
        self._board[Word.STATE] = transition.state
        self._waiting.append(transition)

    def send(self, limit: int = _KEPT) -> None:
        """Hand on up to ``limit`` of them, as many as the line takes."""
        while self._waiting and limit > 0:
            t = self._waiting[0]
            message = f"{t.before.name.lower()} -> {t.state.name.lower()}"
            if not report(self._source, "transition", message, **describe(t)):
                return
            self._waiting.popleft()
            limit -= 1
