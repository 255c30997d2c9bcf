"""The control loop: paces the tick, keeps its accounts, and writes one step record per frame.

One thread, no sockets, nothing that blocks but the wait for the device's next frame.  Decisions are the tick's
(``runtime.control.tick``), states those of ``runtime.supervise.states``; this module owns the order of things.
"""

from __future__ import annotations

import time
from typing import Final

from hw.messages import Capability, Hello, State, Status
from hw.session import DeviceSession, RequestRefused
from hw.transport import LinkError
from runtime.config.schema import RunConfig
from runtime.control.conduct import Conduct
from runtime.control.frames import FrameSource, Stopped
from runtime.control.homing import Homing
from runtime.control.orders import AT_ONCE, Orders
from runtime.control.policy_seat import PolicySeat
from runtime.control.rehearsal import Rehearsal
from runtime.control.tick import Step, Tick
from runtime.explore.explorer import Explorer
from runtime.explore.perturbed import perturbed_session
from runtime.policy.session import PolicySession
from runtime.random_streams import Role, device_seed
from runtime.record import Flag, Kind
from runtime.reset.attempts import EpisodeReset
from runtime.shm.board import Board, Word
from runtime.shm.ring import RingWriter
from runtime.supervise.faults import FaultName, LinkFault, link_fault
from runtime.supervise.report import report
from runtime.supervise.states import Event
from runtime.supervise.states import State as RunState
from runtime.task import episode_steps

_WARM_UPS: Final = 200
"""Dry ticks before the first one, so that nothing is slow the first time it counts."""


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
        orders: Orders,
    ) -> None:
        self._config, self._session, self._ring, self._board, self._seat = config, session, ring, board, seat
        self._orders = orders
        self._lockstep = hello.time_scale == 0.0
        self._period_ns = config.wall_period_ns
        self._steps = episode_steps(config.task, config.rate_hz)
        self._explorer = Explorer(config)
        self._backed_off = 1.0
        self._tick = Tick(config, self._explorer)
        self._rehearsal = Rehearsal(config, seat)
        self._frames = FrameSource(config, session, hello, self._rehearsal, board, lambda: orders.stopped)
        self.conduct = conduct = Conduct(config, session, board, orders, lockstep=self._lockstep)
        self._homing: Homing | None = None
        if not hello.capabilities & Capability.RESET and config.task.reset is not None:
            reset = EpisodeReset(config.task.reset, config.task.start, config.rig)
            self._homing = Homing(reset, session, self._tick, self._frames, conduct, orders, board, self._push)
        self._falls_back = False

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self, first_episode: int = 1) -> None:
        """Run all training episodes from ``first_episode`` on, each followed by its evaluation, then disarm.

        Raises Stopped, Halted, RequestRefused or LinkError; the device is safe in every case, by command where the
        line still works and by its lease where it does not.
        """
        config, conduct = self._config, self.conduct
        try:
            conduct.take(Event.CONNECTED)
            conduct.wait_for(self._seat_filled, "the first policy", FaultName.NO_POLICY)
            self._warm_up()
            for episode in range(first_episode, config.episodes + 1):
                self._await_barrier(episode - 1)
                self._board[Word.EPISODE] = episode
                self._run_episode(episode, Kind.TRAIN)
                self._board[Word.CLOSED] = episode
                self._await_barrier(episode)
                if config.evaluate_every and episode % config.evaluate_every == 0:
                    self._run_episode(episode, Kind.EVAL)
            conduct.take(Event.COMPLETED)
        except Stopped:
            conduct.leave()
            raise
        except LinkError as error:
            conduct.take(Event.LINK_LOST, link_fault(error), str(error))
            raise
        except RequestRefused as error:
            if self._session.was_rebooted():
                # It refuses whatever it was not told again since.
                conduct.take(Event.LINK_LOST, FaultName.DEVICE_REBOOTED, str(error))
                raise LinkFault(FaultName.DEVICE_REBOOTED, str(error)) from error
            conduct.take(Event.TRIP, FaultName.DEVICE_REFUSED, str(error))
            raise
        finally:
            conduct.make_safe()

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
            what = f"the barrier after episode {episode}"
            self.conduct.wait_for(lambda: self._board[Word.BARRIER] > episode, what, FaultName.BARRIER)

    # -- the start of an episode -----------------------------------------------------------------------------------

    def _begin(self, episode: int, kind: Kind) -> None:
        """Bring the device to the start of an episode, armed."""
        self._seat.take_newest()
        self._board[Word.POLICY] = self._seat.policy_id
        if self._homing is None:
            signal, perturbed = self._exploration_of(episode, kind)
            self.conduct.begin_episode()
            role = Role.PLANT_TRAIN if kind is Kind.TRAIN else Role.PLANT_EVAL
            self._session.reset(device_seed(self._config.seed, role, episode))
        else:
            # Its records bear the index of the training episode before them: the one to come is not under way yet.
            self._homing.bring(episode - (kind is Kind.TRAIN))
            signal, perturbed = self._exploration_of(episode, kind)
        self._tick.begin(episode, kind, signal, perturbed)
        self._falls_back = False
        self.conduct.take(Event.AT_START)

    def _exploration_of(self, episode: int, kind: Kind) -> tuple[list[tuple[float, ...]], PolicySession | None]:
        """What an episode explores with: a signal, or a policy with other weights."""
        signal = self._explorer.begin_episode(kind, episode)
        return signal, perturbed_session(self._explorer, self._seat.active)

    def _rest(self) -> None:
        """Close the episode's exploration; stand still for as long as a spent budget asks."""
        before = self._backed_off
        pause = self._explorer.end_episode()
        self._backed_off = self._explorer.back_off
        if self._backed_off != before:
            what = "backs off" if self._backed_off < before else "comes back"
            report("control", "event", f"exploration {what} to {self._backed_off:.3g}", tick=self._board[Word.TICK])
        if pause is not None:
            self._explorer.rest(self.conduct.pause(*pause))

    # -- an episode ------------------------------------------------------------------------------------------------

    def _run_episode(self, episode: int, kind: Kind) -> None:
        self._begin(episode, kind)
        session, tick, conduct = self._session, self._tick, self.conduct
        frames, orders, fade = self._frames, self._orders, self.conduct.fade
        frames.begin()
        pending: Step | None = None
        complete = faulted = False
        while not complete:
            if orders.stop and self._is_over_now():
                raise Stopped
            state = frames.next()
            if pending is None and not state.fault and not state.status & Status.ARMED:
                continue  # sampled before the device took the request to arm
            t0 = session.received_ns
            t1 = time.monotonic_ns()
            step = tick.observe(state)
            frames.account(step, state, pending)
            previous = pending
            terminated = previous is not None and tick.complete(previous, state, step.observation)
            faulted = self._faulted(state)
            spent = self._explorer.pause is not None
            complete = faulted or terminated or spent or tick.steps_done >= self._steps
            t2 = time.monotonic_ns()
            if complete:
                session.send_command(state.frame, tick.safe_counts)
                if previous is not None:
                    self._push(previous)
                if not fade.under_way:  # an episode that was faded out stays unfinished: its score would be the fade's
                    tick.close(step, terminated=terminated)
                    step.tick_ns = time.monotonic_ns() - t0
                    self._push(step)
                break
            if not self._lockstep and not self._explorer.perturbs and self._seat.swap():
                self._board[Word.POLICY] = self._seat.policy_id
            tick.ask(step, self._seat.active, self._seat.policy_id)
            t3 = time.monotonic_ns()
            tick.explore(step)
            if fade.under_way:  # what is faded is no longer what the policy did: nothing is learned from it
                step.explored = fade.next(step.explored)
                step.flags |= Flag.INVALID | Flag.FADED
            t4 = time.monotonic_ns()
            tick.shield(step)
            t5 = time.monotonic_ns()
            session.send_command(state.frame, step.command)
            t6 = time.monotonic_ns()
            step.t_send_ns = t6
            if step.rule.falls_back is not self._falls_back:
                self._falls_back = not self._falls_back
                conduct.take(Event.SHIELD_ACTS if self._falls_back else Event.SHIELD_RELEASES, detail=step.rule.name)
            if previous is not None:
                self._push(previous)
            self._board[Word.TICK] = step.tick + 1
            pending = step
            t7 = time.monotonic_ns()
            step.stage_ns = (t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4, t6 - t5, t7 - t6)
            step.tick_ns = t7 - t0
            if not self._lockstep and frames.punctual:
                conduct.journal.send(1)
                self._seat.prepare(t0 + self._period_ns - time.monotonic_ns())
                frames.busy_until_ns = time.monotonic_ns()
        if faulted:
            conduct.trip(state.fault)
            conduct.recover()
            self._rest()
            return
        conduct.take(Event.EPISODE_OVER)
        conduct.journal.send()
        if conduct.state is RunState.DISCONNECTED:  # it ended while the command was being faded out
            raise Stopped
        self._rest()

    def _is_over_now(self) -> bool:
        """Asked to stop: at once, or by fading, which begins here and ends here."""
        fade = self.conduct.fade
        if self._orders.stop >= AT_ONCE:
            return True
        if not fade.under_way:
            self.conduct.take(Event.STOP)
        if fade.over:
            self.conduct.take(Event.FADED)
        return fade.over

    @staticmethod
    def _faulted(state: State) -> bool:
        return bool(state.fault) or not state.status & Status.ARMED

    def _push(self, step: Step) -> None:
        if self._lockstep:
            while self._ring.full:  # nothing may be lost; the replay process will catch up
                if self._orders.stopped:
                    raise Stopped
                time.sleep(0.0002)
        self._ring.push(step.fields())
