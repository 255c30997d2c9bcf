"""Homing: a reset controller in a separate loop, for devices that cannot reset themselves.

The controller's commands pass through the shield like a policy's, and its records have the kind RESET.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from onrig.hw.session import DeviceSession
from onrig.runtime.control.arming import Arming
from onrig.runtime.control.episode import begin_episode, reset_action_source
from onrig.runtime.control.frames import FrameSource, Stopped, first_frame
from onrig.runtime.control.tick import Tick
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.record import Kind, Step
from onrig.runtime.reset.attempts import EpisodeReset, Progress
from onrig.runtime.run_state.faults import FaultName, Halted
from onrig.runtime.run_state.states import Event
from onrig.runtime.shm.board import Board, Word

_MAX_EXHAUSTED_RESETS: Final = 3
"""Number of resets that may exhaust a budget before one episode; the last of them ends the run, because pauses
evidently free too little of the budget for a reset."""


_FAULTS: Final = {
    Progress.GAVE_UP: FaultName.RESET_FAILED,
    Progress.OUT_OF_LIMITS: FaultName.RESET_LIMIT,
    Progress.DIVERGES: FaultName.RESET_DIVERGES,
    Progress.FAILED: FaultName.TICK_CODE_FAILED,
}


class Homing:
    """Drives a device to the start state of an episode with a reset controller."""

    def __init__(
        self,
        reset: EpisodeReset,
        explorer: Explorer,
        session: DeviceSession,
        tick: Tick,
        frames: FrameSource,
        arming: Arming,
        board: Board,
        push: Callable[[Step], None],
    ) -> None:
        self._reset, self._explorer = reset, explorer
        self._session, self._tick, self._frames = session, tick, frames
        self._arming, self._board, self._push = arming, board, push

    def home(self, episode: int, start: Mapping[str, float], prepare: Callable[[], None]) -> None:
        """Arm the device and drive the rig until it is at ``start`` and no budget is exhausted.

        ``episode``: index under which the steps are recorded; ``prepare``: called before each further reset, to pause
        if a budget is exhausted.  Recovers from faults where possible.  Raises Halted if recovery fails or if the
        resets alone repeatedly exhaust a budget, and Stopped if a stop is requested.
        """
        n_exhausted_resets = 0
        self._reset.set_start(start)
        while True:
            self._arming.begin_episode()
            has_arrived = self._drive(episode)
            if not has_arrived:
                self._arming.recover()
            pause = self._explorer.pause_due
            if pause is not None:
                n_exhausted_resets += 1
                if n_exhausted_resets == _MAX_EXHAUSTED_RESETS:
                    detail = f"{_MAX_EXHAUSTED_RESETS} resets exhausted a budget: {pause.cause}; {pause.hint}"
                    self._arming.handle(Event.TRIP, FaultName.RESET_FAILED, detail)
                    raise Halted(FaultName.RESET_FAILED, detail)
            elif has_arrived:
                return
            prepare()

    def _drive(self, episode: int) -> bool:
        """Run one reset; return True if it reached the start, False if a fault was latched instead."""
        session, tick, frames, reset = self._session, self._tick, self._frames, self._reset
        tick.begin(episode, Kind.RESET, [])
        frames.begin()
        reset.begin()
        respond = begin_episode(tick, reset_action_source(reset))
        step: Step | None = None
        while True:
            if self._arming.is_stop_requested:
                raise Stopped
            state = frames.next() if step is not None else first_frame(frames.next)
            received_ns = session.received_ns
            response = respond(state)
            step = response.step
            if not response.is_over:
                self._board[Word.ANSWERED_NS] = received_ns
                session.send_command(state.frame, response.command)
                step.t_send_ns = time.monotonic_ns()
                step.tick_ns = step.t_send_ns - received_ns
                self._board[Word.TICK] = step.tick + 1
                frames.on_tick_end()
            frames.record_times(step, state, response.completed)
            if response.completed is not None:
                self._push(response.completed)
            if reset.progress is Progress.DRIVING and not response.is_over:
                continue
            self._push(step)
            if response.is_over:
                self._arming.fault(state, tick.contradiction)
                return False
            if reset.progress is Progress.REACHED:
                return True
            self._arming.fail(_FAULTS[reset.progress], reset.detail)
            return False
