"""Reaction of the loop to a withdrawn promise, between episodes: a pause until a person re-arms, or less noise."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET

from onrig.runtime.control.arming import Arming
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.board import Board, Word

REDUCED: Final = 0.1
"""Factor on the exploration after a withdrawal that does not pause the run."""
CAUSE: Final = "the rig's own data contradict the plants that its promise covers"
HINT: Final = "see what changed on the rig, identify it anew, and compute its limits from that"


def reaction_of(config: RunConfig) -> Literal["pause", "reduce", ""]:
    """What a withdrawn promise does: as configured, else a pause of a real device, and nothing with a twin."""
    if config.limits.on_withdrawn is not UNSET:
        return config.limits.on_withdrawn
    return "" if config.device.twin is not None else "pause"


class Withdrawal:
    """Polls the replay process's word before each episode, and reacts once."""

    def __init__(self, config: RunConfig, board: Board, arming: Arming, explorer: Explorer) -> None:
        self._reaction = reaction_of(config)
        self._board, self._arming, self._explorer = board, arming, explorer
        self._reacted = False

    def apply(self) -> None:
        """Pause, or cut the exploration back, if the promise was withdrawn.  Raises Stopped, Halted."""
        if self._reacted or not self._board[Word.PROMISE_WITHDRAWN]:
            return
        self._reacted = True
        if self._reaction == "reduce":
            self._explorer.reduce(REDUCED)
        elif self._reaction == "pause":
            self._arming.stand_until(lambda: False, CAUSE, HINT)
