"""Control loop: pacing, accounting, and one step record per frame.

The loop has one thread and no sockets, and nothing in it blocks except the wait for the device's next frame.
``control.tick`` takes the decisions, ``control.episode`` determines their order, and ``run_state.states`` defines the
states; this module does the I/O: waiting, sending, writing.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from onrig.hw.messages import Capability, State, Status
from onrig.hw.session import DeviceSession, RequestRefused
from onrig.hw.transport import LineClosed, LinkError
from onrig.runtime.control.actor import Actor, PolicyActor, TrainerActor
from onrig.runtime.control.arming import Arming
from onrig.runtime.control.connection import Reconnection
from onrig.runtime.control.episode import Response, begin_episode
from onrig.runtime.control.frames import FrameSource, SlackGate, Stopped, first_frame
from onrig.runtime.control.homing import Homing
from onrig.runtime.control.loop_state import LoopState, SharedMemory, StoredPosition, load_stored_session
from onrig.runtime.control.outside import Requests
from onrig.runtime.control.pace import make_pace
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.control.preparation import Preparation
from onrig.runtime.control.rehearsal import Rehearsal
from onrig.runtime.control.tick import Tick
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.random_streams import device_seed
from onrig.runtime.record import Flag, Kind, Step
from onrig.runtime.reset.attempts import EpisodeReset
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.faults import FaultName, Halted, LinkFault, is_unfit, link_fault
from onrig.runtime.run_state.report import report
from onrig.runtime.run_state.states import Event
from onrig.runtime.run_state.states import State as RunState
from onrig.runtime.shm.board import Word
from onrig.runtime.starts import draw_start, middle_start
from onrig.runtime.targets import TargetFailed
from onrig.runtime.tracking import PLANT_ROLES

_ANSWERED_NS, _TICK = Word.ANSWERED_NS, Word.TICK
"""Looked up once, because looking up an enumeration member takes longer than writing its word."""
_WARM_UP_TICKS: Final = 200
"""Number of rehearsals before the first tick, to warm up caches and libraries."""


class ControlLoop:
    """Runner of episodes on a connected device; the process around it is ``onrig.runtime.control.main``."""

    def __init__(
        self,
        config: RunConfig,
        session: DeviceSession,
        shared_memory: SharedMemory,
        switch: PolicySwitch,
        requests: Requests,
        reconnection: Reconnection | None = None,
    ) -> None:
        """``session`` must be connected to the device."""
        ring, board, kept_state, trainer, images = shared_memory
        hello = session.hello
        assert hello is not None, "connect first"
        self._config, self._session, self._board, self._switch = config, session, board, switch
        self._requests, self._period_ns = requests, config.wall_period_ns
        self._position = StoredPosition(kept_state)
        self._pace = make_pace(config, session, ring, requests, time_scale=hello.time_scale)
        self._slack = SlackGate(self._period_ns)
        self._explorer = Explorer(config)
        self._back_off = 1.0
        self._tick = Tick(config, self._explorer, self._pace.clock, images)
        self._rehearsal = Rehearsal(config, switch)
        self._frames = FrameSource(config, session, hello, self._rehearsal, board, lambda: requests.stop)
        self.arming = arming = Arming(config, session, board, requests, self._pace, reconnection)
        self._homing: Homing | None = None
        if not hello.capabilities & Capability.RESET and config.task.reset is not None:
            reset = EpisodeReset(config.task.reset, middle_start(config.task.all_starts), config.rig, self._pace.clock)
            self._homing = Homing(
                reset, self._explorer, session, self._tick, self._frames, arming, board, self._pace.push
            )
        self._is_falling_back = False
        swaps_policies = self._pace.overlaps_learning and not self._explorer.perturbs_weights
        self._actor: Actor = PolicyActor(switch, self._tick, board, swaps_policies=swaps_policies)
        if trainer is not None:
            self._actor = TrainerActor(config, trainer, self._tick, requests, board, self._frames.stamps)
        self._preparation = Preparation(config, board, arming, self._explorer, switch, self._store_position)

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self, start: LoopState | None = None, policies: Path = Path()) -> None:
        """Run all training episodes, or those after ``start``, each followed by its evaluation if due; then disarm.

        ``policies``: folder of the policies that acted before ``start`` in a resumed run.  Raises Stopped, Halted,
        RequestRefused or LinkError.  The device is made safe in every case: by a command if the link works, otherwise
        by its lease."""
        config, arming = self._config, self.arming
        start = LoopState() if start is None else start
        try:
            self._restore_position(start, policies)
            arming.handle(Event.CONNECTED)
            arming.wait_for(self._actor.is_ready, "the first policy", FaultName.NO_POLICY)
            self._warm_up()
            if start.episode and not start.evaluated:
                self._evaluate(start.episode)
            for episode in range(start.episode + 1, config.episodes + 1):
                self._await_barrier(episode - 1)
                if not self._actor.await_episode(arming.wait_for):
                    break
                self._board[Word.EPISODE] = episode
                self._run_episode(episode, Kind.TRAIN)
                self._board[Word.CLOSED] = episode
                self._evaluate(episode)
            arming.handle(Event.COMPLETED)
        except Stopped:
            arming.end_run()
            raise
        except LinkError as error:
            arming.handle(Event.LINK_LOST, link_fault(error), str(error))
            raise
        except RequestRefused as error:
            if self._session.check_reboot():
                # A rebooted device refuses all requests until it is configured again.
                arming.handle(Event.LINK_LOST, FaultName.DEVICE_REBOOTED, str(error))
                raise LinkFault(FaultName.DEVICE_REBOOTED, str(error)) from error
            arming.handle(Event.TRIP, FaultName.DEVICE_REFUSED, str(error))
            raise
        finally:
            arming.make_safe()
            # An interrupted episode counts towards the hourly budget unless it is repeated.
            if self._pace.overlaps_learning:
                self._store_position()
            arming.check_confirmation()

    def _evaluate(self, episode: int) -> None:
        """Run the evaluation after a training episode, if one is due."""
        self._await_barrier(episode)
        interval = self._config.evaluate_every
        if interval and episode % interval == 0:
            self._run_episode(episode, Kind.EVAL)

    def _restore_position(self, start: LoopState, policies: Path) -> None:
        """Restore the position of a resumed run, and begin a new session of its exploration budgets."""
        if start.explorer:
            self._explorer.restore(start.explorer)
            self._explorer.begin_session()
            self._back_off = self._explorer.back_off
        self._switch.restore(start.switch, lambda i, native: load_stored_session(policies, i, native=native))
        self._board[Word.POLICY] = self._switch.policy_id
        self._tick.set_tick_number(start.tick)
        self._frames.stamps.resumed_at_us = start.device_us
        self._board[Word.TICK], self._board[Word.EPISODE] = start.tick, start.episode
        self._board[Word.CLOSED] = start.episode
        self._position.last_completed, self._position.device_us = (start.episode, start.evaluated), start.device_us

    def _store_position(self) -> None:
        """Store the loop's position, from which a run resumes after a crash."""
        self._position.write(self._tick.count, self._explorer.state(), self._switch.state())

    def _warm_up(self) -> None:
        """Execute all of the tick's code once before the first tick."""
        self._switch.time_builds()
        for _ in range(_WARM_UP_TICKS):
            self._rehearsal.run()

    def _await_barrier(self, episode: int) -> None:
        """In lockstep, wait until replay and learner have finished ``episode`` (0: until they have started)."""
        if not self._pace.overlaps_learning:
            description = f"the barrier after episode {episode}"
            self.arming.wait_for(lambda: self._board[Word.BARRIER] > episode, description, FaultName.BARRIER)

    # -- the start of an episode -----------------------------------------------------------------------------------

    def _begin(self, episode: int, kind: Kind) -> None:
        """Arm the device and bring it to the start of an episode, after a pause if one is due."""
        signal = self._explorer.signal(kind, episode)
        seed, offset = self._next_seed()
        try:
            self._tick.prepare(episode, kind)
        except TargetFailed as error:
            self.arming.handle(Event.TRIP, FaultName.TICK_CODE_FAILED, str(error))
            raise Halted(FaultName.TICK_CODE_FAILED, str(error)) from error
        start_seed = device_seed(seed, PLANT_ROLES[kind], episode - offset)
        prepare = self._preparation.prepare
        prepare(kind, episode, stores_position=True)
        if self._homing is not None:
            # Homing is recorded under the previous training episode's index, because the next one has not begun.
            recorded_episode = episode - (kind is Kind.TRAIN)
            start = draw_start(self._config.task.all_starts, start_seed)
            self._homing.home(
                recorded_episode, start, lambda: prepare(kind, episode, stores_position=self._pace.overlaps_learning)
            )
        # From here on the device is armed or about to be, so nothing may take as long as a period.
        self._explorer.begin_episode(kind, episode)
        if self._homing is None:
            self.arming.begin_episode()
            self._session.reset(start_seed)
        self._tick.begin(episode, kind, signal, self._preparation.perturbed)
        self._is_falling_back = False
        self.arming.handle(Event.AT_START)

    def _next_seed(self) -> tuple[int, int]:
        """Return the seed for the next episode's draws, and the number of episodes before the first one that uses
        it."""
        seed_and_offset = self._actor.seed_and_offset
        if seed_and_offset is None:
            return self._config.seed, 0
        if seed_and_offset != self._position.seed_and_offset:
            self._position.set_seed(seed_and_offset)
            self._tick.set_seed(*seed_and_offset)
            self._store_position()  # replaying the run needs the seed
        return seed_and_offset

    # -- an episode ------------------------------------------------------------------------------------------------

    def _run_episode(self, episode: int, kind: Kind) -> None:
        """Run an episode; begin it again whenever the connection closes before its first frame."""
        frames, response = self._frames, None
        while response is None:
            try:
                self._begin(episode, kind)
                frames.begin()
                act, has_ended, fade = self._actor.act, self._actor.is_over, self.arming.fade
                respond = begin_episode(self._tick, act, has_ended=has_ended, fade=fade, clock=time.monotonic_ns)
                while response is None or not response.is_over:
                    if self._requests.stop and self.arming.advance_stop():
                        raise Stopped
                    state = frames.next() if response is not None else first_frame(frames.next)
                    response = respond(state)
                    if response.is_over:
                        self._close(state, response)
                    else:
                        self._send(state, response)
                self._finish(episode, kind)
                self._conclude(state)
            except LineClosed as error:
                if response is not None and not response.is_over and self.arming.can_reconnect:
                    self._close_interrupted(response.step)
                    self._finish(episode, kind)
                self.arming.reconnect(error)

    def _finish(self, episode: int, kind: Kind) -> None:
        """End the episode's exploration, and store the position now, because a recovery may have to wait for a
        person."""
        previous = self._back_off
        self._explorer.end_episode()
        self._back_off = self._explorer.back_off
        if self._back_off != previous:
            change = "lowered" if self._back_off < previous else "raised"
            message = f"exploration back-off factor {change} to {self._back_off:.3g}"
            report("control", "event", message, tick=self._board[Word.TICK])
        self._position.last_completed = (episode, kind is Kind.EVAL)
        self._store_position()

    def _send(self, state: State, response: Response) -> None:
        """Send the command, then write the completed record and use the slack left in the period."""
        session, board, frames, step = self._session, self._board, self._frames, response.step
        t0 = session.received_ns
        t1, t2, t3, t4, t5 = response.times_ns
        board[_ANSWERED_NS] = t0
        self._send_command(state, response)
        t6 = time.monotonic_ns()
        step.t_send_ns = t6
        frames.record_times(step, state, response.completed)
        if step.rule.falls_back is not self._is_falling_back:
            self._is_falling_back = not self._is_falling_back
            event = Event.SHIELD_ACTS if self._is_falling_back else Event.SHIELD_RELEASES
            self.arming.handle(event, detail=step.rule.name)
        if response.completed is not None:
            self._pace.push(response.completed)
        board[_TICK] = step.tick + 1
        t7 = time.monotonic_ns()
        step.stage_ns = (t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4, t6 - t5, t7 - t6)
        step.tick_ns = t7 - t0
        if self._switch.record_tick(step.rule, t3 - t2):
            self._on_rollback(step.policy_id)
        if self._pace.overlaps_learning:
            if self._slack.allows_work_after(t7 - t1) and frames.is_punctual:
                self.arming.reports.send(1)
                self._switch.prepare_until(t0 + self._period_ns)
            frames.on_tick_end()

    def _send_command(self, state: State, response: Response) -> None:
        try:
            self._session.send_command(state.frame, response.command)
        except LineClosed:  # the next read or request raises it again, once this tick has been recorded
            if not self.arming.can_reconnect:
                raise

    def _close_interrupted(self, step: Step) -> None:
        """Close the episode with the step that was in progress when the connection closed."""
        step.flags |= Flag.NO_ACTION | Flag.TRUNCATED | Flag.CUT_OFF
        self._pace.push(step)
        self._actor.on_episode_end(step, None)
        self._board[Word.ROWS] += 1

    def _close(self, state: State, response: Response) -> None:
        """Send the safe command and write the episode's last records."""
        session, frames, step = self._session, self._frames, response.step
        received_ns = session.received_ns
        self._board[Word.ANSWERED_NS] = received_ns
        self._send_command(state, response)
        # In lockstep an armed device completes one more period with this command.
        last_period_us = self._config.period_us if state.status & Status.ARMED else 0
        self._position.device_us = frames.stamps.resumed_at_us + state.t_us + last_period_us
        frames.record_times(step, state, response.completed)
        if response.completed is not None:
            self._pace.push(response.completed)
        if step.flags & Flag.NO_ACTION:
            self._flag_rollback(step)
            step.tick_ns = time.monotonic_ns() - received_ns
            self._pace.push(step)
            self._actor.on_episode_end(step, response.completed)
            self._board[Word.ROWS] += 1

    def _conclude(self, state: State) -> None:
        """Prepare to proceed to the next episode, recovering first if a fault ended this one."""
        arming, contradiction = self.arming, self._tick.contradiction
        if is_unfit(state) or contradiction is not None:
            arming.fault(state, contradiction)
            arming.recover()
        else:
            arming.handle(Event.EPISODE_OVER)
            arming.reports.send()
            if arming.state is RunState.DISCONNECTED:  # the run ended during the fade
                raise Stopped

    def _on_rollback(self, policy_id: int) -> None:
        """Report a rollback: the predecessor acts from the next tick on; this tick's command was checked by the
        shield."""
        self._board[Word.ROLLED_BACK] = policy_id + 1
        self._board[Word.POLICY] = self._switch.policy_id
        self._tick.drop_perturbed()

    def _flag_rollback(self, step: Step) -> None:
        """If a rollback happened in the episode's last tick, flag it in the closing record, where no policy acts."""
        flag = self._switch.take_rollback_flag()
        if flag:
            step.flags |= flag
            step.policy_id = self._switch.policy_id
