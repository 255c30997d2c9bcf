"""Preparation of an episode before the device is armed: pauses that are due, the check for a silent learner, and the
choice of the acting policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onrig.runtime.control.arming import Arming
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.control.staleness import LearnerWatch, expects_learner
from onrig.runtime.control.withdrawal import WithdrawalWatch
from onrig.runtime.explore.explorer import Explorer, perturbed_session
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Kind
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.board import Board, Word


class Preparation:
    """Pauses a run between two episodes if one is due, and prepares the policies of the next episode."""

    def __init__(
        self,
        config: RunConfig,
        board: Board,
        arming: Arming,
        explorer: Explorer,
        switch: PolicySwitch,
        store_position: Callable[[], None],
    ) -> None:
        """``store_position``: function that stores the loop's position."""
        self._board, self._arming, self._explorer, self._switch = board, arming, explorer, switch
        self._store_position = store_position
        self._withdrawal: Final = WithdrawalWatch(config, board, arming, explorer)
        has_learner = expects_learner(config)
        self._learner_watch: Final = LearnerWatch(config, board, arming, explorer, switch) if has_learner else None
        self.perturbed: PolicySession | None = None
        """The next episode's policy with noise on its weights; None without such noise."""

    def prepare(self, kind: Kind, episode: int, *, stores_position: bool) -> None:
        """Pause for as long as exhausted budgets require; then check the promise, the plant and the learner, install
        the newest policy, and perturb its weights.

        ``stores_position``: whether to store the position before and after a pause, so that resuming the run does not
        shorten the pause.  In lockstep an interrupted reset is repeated together with its episode instead.
        """
        if self._explorer.pause_due is not None:
            if stores_position:
                self._store_position()
            while (pause := self._explorer.pause_due) is not None:
                self._explorer.rest(self._arming.pause(*pause))
            if stores_position:
                self._store_position()
        self._withdrawal.apply()
        if self._learner_watch is not None:
            self._learner_watch.apply()
        self._switch.install_newest()
        self._board[Word.POLICY] = self._switch.policy_id
        self.perturbed = perturbed_session(self._explorer, self._switch.active, kind, episode)
