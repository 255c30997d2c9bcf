"""Bringing a device that cannot put itself back to the start of an episode: a reset controller in a loop of its own.

Its commands pass the shield as a policy's do, and its records bear the kind RESET.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from onrig.hw.messages import Status
from onrig.hw.session import DeviceSession
from onrig.runtime.control.conduct import Conduct
from onrig.runtime.control.frames import FrameSource, Stopped
from onrig.runtime.control.orders import Orders
from onrig.runtime.control.tick import Tick, is_faulted, is_unfit
from onrig.runtime.record import Kind, Step
from onrig.runtime.reset.attempts import EpisodeReset, Progress
from onrig.runtime.run_state.faults import FaultName
from onrig.runtime.shm.board import Board, Word


class Homing:
    """Drives an armed device to its start, frame by frame, until the controller has a verdict."""

    def __init__(
        self,
        reset: EpisodeReset,
        session: DeviceSession,
        tick: Tick,
        frames: FrameSource,
        conduct: Conduct,
        orders: Orders,
        board: Board,
        push: Callable[[Step], None],
    ) -> None:
        self._reset, self._session, self._tick, self._frames = reset, session, tick, frames
        self._conduct, self._orders, self._board, self._push = conduct, orders, board, push

    def bring(self, episode: int) -> None:
        """Arm and drive until the rig is at its start; ``episode`` is what the records bear.

        Faults on the way are recovered from, or end the run (Halted).  Raises Stopped.
        """
        self._conduct.begin_episode()
        while not self._drive(episode):
            self._conduct.recover()
            self._conduct.begin_episode()

    def _drive(self, episode: int) -> bool:
        """One reset; False when a fault was latched instead."""
        session, tick, frames, reset = self._session, self._tick, self._frames, self._reset
        tick.begin(episode, Kind.RESET, [])
        frames.begin()
        reset.begin()
        pending: Step | None = None
        last_us = 0
        while True:
            if self._orders.stopped:
                raise Stopped
            state = frames.next()
            if pending is None and not is_faulted(state) and not state.status & Status.ARMED:
                continue  # sampled before the device took the request to arm
            t0 = session.received_ns
            step = tick.observe(state)
            frames.account(step, state, pending)
            if pending is not None:
                tick.complete(pending, state, step.observation)
                self._push(pending)
            pending = step
            if is_unfit(state):
                self._push(step)
                self._conduct.trip(state)
                return False
            if tick.contradiction is not None:
                self._push(step)
                self._conduct.fail(*tick.contradiction)
                return False
            decision = reset.decide(step.observation, (state.t_us - last_us) * 1e-6 if last_us else 0.0)
            last_us = state.t_us
            step.policy = step.explored = decision.action
            tick.shield(step)
            self._board[Word.ANSWERED_NS] = t0
            session.send_command(state.frame, step.command)
            step.t_send_ns = time.monotonic_ns()
            step.tick_ns = step.t_send_ns - t0
            self._board[Word.TICK] = step.tick + 1
            frames.busy_until_ns = step.t_send_ns
            if decision.progress is Progress.GOING:
                continue
            self._push(step)
            if decision.progress is Progress.THERE:
                return True
            beyond = decision.progress is Progress.BEYOND
            self._conduct.fail(FaultName.RESET_LIMIT if beyond else FaultName.RESET_FAILED, reset.detail)
            return False
