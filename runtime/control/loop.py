"""The control loop: paces the tick, keeps its accounts, and writes one step record per frame.

One thread, no sockets, nothing that blocks but the wait for the device's next frame.  Decisions are the tick's
(``runtime.control.tick``); this module owns the clock, the line to the device and the ring.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from hw.messages import Fault, Hello, State, Status, fault_text
from hw.session import DeviceSession
from runtime.config.schema import RunConfig
from runtime.control.explore import episode_noise
from runtime.control.frames import FrameSource, Stopped
from runtime.control.policy_seat import PolicySeat
from runtime.control.rehearsal import Rehearsal
from runtime.control.tick import Step, Tick
from runtime.random_streams import Role, device_seed, stream
from runtime.record import Kind
from runtime.shm.board import Board, ControlState, Word
from runtime.shm.ring import RingWriter
from runtime.task import episode_steps

_WARM_UPS: Final = 200
_RECOVERIES: Final = 10
"""Latched device faults that a run clears by itself, between episodes; the next one ends it."""


class SafetyTrip(Exception):
    """The device latched a fault that this run may not clear any more."""


class BarrierTimeout(Exception):
    """The processes below did not open the barrier in time."""


class ControlLoop:
    """Runs episodes on a connected device; see ``runtime.control.main`` for the process around it."""

    def __init__(
        self,
        config: RunConfig,
        session: DeviceSession,
        hello: Hello,
        ring: RingWriter,
        board: Board,
        seat: PolicySeat,
        stop_requested: Callable[[], bool],
    ) -> None:
        self._config, self._session, self._ring, self._board, self._seat = config, session, ring, board, seat
        self._stop_requested = stop_requested
        self._lockstep = hello.time_scale == 0.0
        self._period_ns = config.wall_period_ns
        self._steps = episode_steps(config.task, config.rate_hz)
        self._tick = Tick(config)
        self._rehearsal = Rehearsal(config, seat)
        self._frames = FrameSource(config, session, hello, self._rehearsal, board, stop_requested)
        self._recoveries = 0
        self._fault = int(Fault.NONE)

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self, first_episode: int = 1) -> None:
        """Run all training episodes from ``first_episode`` on, each followed by its evaluation, then disarm.

        Raises Stopped, SafetyTrip, BarrierTimeout or LinkError; the device is safe in every case, by command where
        the line still works and by its lease where it does not.
        """
        config = self._config
        try:
            self._wait_for(self._seat_filled, "the first policy")
            self._warm_up()
            for episode in range(first_episode, config.episodes + 1):
                self._await_barrier(episode - 1)
                self._board[Word.EPISODE] = episode
                self._run_episode(episode, Kind.TRAIN)
                self._board[Word.CLOSED] = episode
                self._await_barrier(episode)
                if config.evaluate_every and episode % config.evaluate_every == 0:
                    self._run_episode(episode, Kind.EVAL)
        finally:
            self._board[Word.STATE] = ControlState.ENDED
            self._make_safe()

    def _seat_filled(self) -> bool:
        self._seat.take_newest()
        return self._seat.active is not None

    def _warm_up(self) -> None:
        """Run everything a tick runs before the first one counts."""
        for _ in range(_WARM_UPS):
            self._rehearsal.run()

    def _await_barrier(self, episode: int) -> None:
        """In lockstep, wait until all that follows from ``episode`` (0: from the start) is done below."""
        if self._lockstep:
            self._wait_for(lambda: self._board[Word.BARRIER] > episode, f"the barrier after episode {episode}")

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait with the actuators safe (the device is disarmed) until ``condition`` holds."""
        self._board[Word.STATE] = ControlState.WAITING
        limit = time.monotonic() + self._config.barrier_timeout_s
        while not condition():
            if self._stop_requested():
                raise Stopped
            if time.monotonic() > limit:
                raise BarrierTimeout(f"waited {self._config.barrier_timeout_s:g} s for {what}")
            if self._lockstep:
                time.sleep(0.0002)
            else:  # keep reading: a line full of old frames would lose the answer to the next request
                self._session.wait_state(time.monotonic_ns() + 1_000_000)

    def _make_safe(self) -> None:
        """Disarm if the line still works; otherwise the device's lease does it."""
        try:
            self._session.disarm()
        except Exception:  # whatever it is, the lease runs out by itself and the first error is the one to tell
            return

    # -- an episode ------------------------------------------------------------------------------------------------

    def _begin(self, episode: int, kind: Kind) -> None:
        """Bring the device to the start of an episode: disarmed, reset, armed."""
        config, session = self._config, self._session
        self._board[Word.STATE] = ControlState.RESETTING
        steps, m = self._steps, len(config.rig.actuators)
        if kind is Kind.TRAIN:
            rng = stream(config.seed, Role.EXPLORATION, episode)
            noise = episode_noise(config.exploration, rng, episode, steps, m)
        else:
            noise = []
        self._tick.begin(episode, kind, noise)
        self._seat.take_newest()
        self._board[Word.POLICY] = self._seat.policy_id
        role = Role.PLANT_TRAIN if kind is Kind.TRAIN else Role.PLANT_EVAL
        if self._fault:
            session.clear_fault()
            self._fault = int(Fault.NONE)
        session.arm()
        session.reset(device_seed(config.seed, role, episode))
        self._board[Word.STATE] = ControlState.RUNNING

    def _run_episode(self, episode: int, kind: Kind) -> None:
        self._begin(episode, kind)
        session, tick = self._session, self._tick
        frames = self._frames
        frames.begin()
        pending: Step | None = None
        complete = False
        while not complete:
            if self._stop_requested():
                raise Stopped  # disarming, on the way out, makes the output safe at once
            state = frames.next()
            if pending is None and not state.fault and not state.status & Status.ARMED:
                continue  # sampled before the device took the request to arm
            t0 = session.received_ns
            t1 = time.monotonic_ns()
            step = tick.observe(state)
            frames.account(step, state, pending)
            previous = pending
            terminated = previous is not None and tick.complete(previous, state, step.observation)
            complete = self._faulted(state) or terminated or tick.steps_done >= self._steps
            t2 = time.monotonic_ns()
            if complete:
                session.send_command(state.frame, tick.safe_counts)
                tick.close(step, terminated=terminated)
                if previous is not None:
                    self._push(previous)
                step.tick_ns = time.monotonic_ns() - t0
                self._push(step)
                break
            if not self._lockstep and self._seat.swap():
                self._board[Word.POLICY] = self._seat.policy_id
            tick.ask(step, self._seat.active, self._seat.policy_id)
            t3 = time.monotonic_ns()
            tick.explore(step)
            t4 = time.monotonic_ns()
            tick.shield(step)
            t5 = time.monotonic_ns()
            session.send_command(state.frame, step.command)
            t6 = time.monotonic_ns()
            step.t_send_ns = t6
            if previous is not None:
                self._push(previous)
            self._board[Word.TICK] = step.tick + 1
            pending = step
            t7 = time.monotonic_ns()
            step.stage_ns = (t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4, t6 - t5, t7 - t6)
            step.tick_ns = t7 - t0
            if not self._lockstep and frames.punctual:
                self._seat.prepare(t0 + self._period_ns - t7)
                frames.busy_until_ns = time.monotonic_ns()
        if self._fault:
            self._recoveries += 1
            if self._recoveries > _RECOVERIES:
                raise SafetyTrip(f"the device latched a fault once too often: {fault_text(self._fault)}")
        session.disarm()

    def _faulted(self, state: State) -> bool:
        if state.fault or not state.status & Status.ARMED:
            self._fault = state.fault or int(Fault.INTERNAL)
            self._board[Word.FAULT] = self._fault
            return True
        return False

    def _push(self, step: Step) -> None:
        if self._lockstep:
            while self._ring.full:  # nothing may be lost; the replay process will catch up
                if self._stop_requested():
                    raise Stopped
                time.sleep(0.0002)
        self._ring.push(step.fields())
