"""Sources of a run's actions: its policies or a trainer in a separate process."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf, nan
from typing import Final, Protocol

from onrig.hw.messages import State
from onrig.runtime.control.outside import Requests
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.control.stamps import Stamps
from onrig.runtime.control.tick import Tick
from onrig.runtime.record import Flag, RecordLayout, Step
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.run_state.faults import FaultName
from onrig.runtime.shm.board import Board, Word
from onrig.runtime.shm.exchange import NO_TICK, LoopSide, Sample

ConditionWaiter = Callable[[Callable[[], bool], str, FaultName, float], None]
"""Function that waits, with the device disarmed, until a condition holds.  Arguments: condition, its description, fault
on timeout, timeout (s)."""
_HELD: Final = int(Flag.HELD)
_RESERVE_NS: Final = 1_000_000
"""Time reserved for the shield, the link and the device after the wait for an action, if the period allows it."""
_RESERVE_PERIODS: Final = 0.25
"""Minimum fraction of the period reserved for the shield, the link and the device."""
_MIN_WAIT_PERIODS: Final = 0.25
"""Minimum time, in periods, for which a tick that begins on time waits for an action."""
_POLL_INTERVAL_NS: Final = 50_000_000
_FIRST_ACTION_TIMEOUT_S: Final = 2.0
"""Device time from the start of an episode to its first action; the safe output is in force until then."""


class Actor(Protocol):
    """Source of a run's actions."""

    def is_ready(self) -> bool:
        """Return whether the source can provide actions; the loop waits for this before the first episode."""

    def await_episode(self, wait: ConditionWaiter) -> bool:
        """Wait until the next training episode may begin; return False if there is none."""

    @property
    def seed_and_offset(self) -> tuple[int, int] | None:
        """Seed of starts, noise and targets, and the number of episodes before the first one that uses it; None if the
        run's seed applies from the first episode on."""

    def act(self, step: Step) -> None:
        """Fill in a step's ``policy``."""

    def is_over(self, state: State, terminated: bool) -> bool:
        """Return whether the episode ends with this frame."""

    def on_episode_end(self, step: Step, completed: Step | None) -> None:
        """Process the last record of an episode, and the previous record, which its frame completes."""


class PolicyActor:
    """Actor that uses the policies from the slot; in real time, a prepared policy is swapped in at a tick edge."""

    def __init__(self, switch: PolicySwitch, tick: Tick, board: Board, *, swaps_policies: bool) -> None:
        self._switch, self._tick, self._board, self._swaps_policies = switch, tick, board, swaps_policies
        self.is_over = tick.is_over
        self.seed_and_offset: tuple[int, int] | None = None

    def is_ready(self) -> bool:
        self._switch.install_newest()
        return self._switch.active is not None

    def await_episode(self, wait: ConditionWaiter) -> bool:
        return True

    def act(self, step: Step) -> None:
        switch = self._switch
        if self._swaps_policies and switch.swap():
            self._board[Word.POLICY] = switch.policy_id
        step.flags |= switch.record_flags()
        self._tick.evaluate_policy(step, switch.active, switch.policy_id)

    def on_episode_end(self, step: Step, completed: Step | None) -> None:
        """Do nothing: policies receive no samples."""


class _Samples:
    """Samples for a trainer: a step's record, the previous record, which its frame completes, and the return so far."""

    def __init__(self, config: RunConfig, loop_side: LoopSide) -> None:
        self._exchange: Final = loop_side
        self._layout: Final[RecordLayout] = record_layout(config)
        self._records: Final = memoryview(bytearray(2 * self._layout.size))
        self.begin(0)

    def begin(self, episode: int) -> None:
        """Start an episode, numbered as in the trainer's requests."""
        self._episode, self._n_periods, self._return = episode, 0, 0.0

    def send(self, step: Step, completed: Step | None, *, is_over: bool) -> None:
        """Send the sample of a step; ``is_over``: whether the episode ends with it."""
        layout, records = self._layout, self._records
        if completed is None:
            records[: layout.size] = bytes(layout.size)
        else:
            self._n_periods += 1
            self._return += completed.reward
            layout.pack_into(records, 0, 0, layout.values(completed))
        layout.pack_into(records, layout.size, 0, layout.values(step))
        sent_ns = time.monotonic_ns()
        self._exchange.send(Sample(self._episode, self._n_periods, self._return, sent_ns, is_over, bytes(records)))


def action_wait_ns(period_ns: int) -> int:
    """Return how long (ns) after its due time a tick waits for an action in real time."""
    reserve_ns = max(_RESERVE_NS, round(_RESERVE_PERIODS * period_ns))
    return max(period_ns - reserve_ns, round(_MIN_WAIT_PERIODS * period_ns))


class TrainerActor:
    """Actor that takes its actions from a trainer, which answers samples through shared memory.

    In real time the loop waits for an answer during part of the period, less if the tick is late.  If none arrives,
    the previous action is held (flag HELD); a late answer takes effect in the next tick.  After one lease without an
    answer, the fallback acts for one tick and the episode ends.  In lockstep, virtual time stops until the trainer
    answers, for at most ``barrier_timeout_s`` of wall-clock time.
    """

    def __init__(
        self, config: RunConfig, loop_side: LoopSide, tick: Tick, requests: Requests, board: Board, stamps: Stamps
    ) -> None:
        self._exchange, self._tick, self._requests, self._board = loop_side, tick, requests, board
        self._stamps = stamps
        self._samples = _Samples(config, loop_side)
        lease_periods = config.rig.lease_periods
        self._timeout_ns = (
            round(1e9 * config.barrier_timeout_s) if config.lockstep else action_wait_ns(config.wall_period_ns)
        )
        self._max_late_ticks = 1 if config.lockstep else lease_periods
        self._max_late_ticks_at_start = (
            1 if config.lockstep else max(lease_periods, round(_FIRST_ACTION_TIMEOUT_S * config.rate_hz))
        )
        self._safe_action = tuple(a.safe for a in config.rig.actuators)
        self._no_action = (nan,) * len(config.rig.actuators)
        self._episodes = 0
        self.seed_and_offset: tuple[int, int] | None = None
        """Last seed set by the trainer, and the number of episodes before it; None before the first."""
        self._begin()

    def _begin(self) -> None:
        self._held_action, self._has_acted = self._safe_action, False
        self._late_ticks, self._is_silent = 0, False
        self._previous_step: Step | None = None
        self._last_reply_tick = NO_TICK
        self._samples.begin(self._episodes)

    def is_ready(self) -> bool:
        return True

    def await_episode(self, wait: ConditionWaiter) -> bool:
        """Wait without a time limit, since the device is disarmed and the supervisor monitors the trainer."""
        wait(self._wants_episode, "the trainer", FaultName.BARRIER, inf)
        request = self._exchange.request
        assert request is not None
        self._episodes = request.episodes
        if request.seed >= 0:
            self.seed_and_offset = request.seed, self._board[Word.EPISODE]
        self._begin()
        return not request.is_closing

    def _wants_episode(self) -> bool:
        request = self._exchange.request
        return request is not None and (request.is_closing or request.episodes > self._episodes)

    def act(self, step: Step) -> None:
        """Fill in the trainer's action or, after one lease without an answer, NaN, which makes the shield fall back."""
        deadline_ns = self._stamps.due_ns(step.t_device_us, time.monotonic_ns()) + self._timeout_ns
        self._samples.send(step, self._previous_step, is_over=False)
        self._previous_step = step
        has_replied = self._await_reply(step.tick, deadline_ns)
        step.policy = self._held_action
        if has_replied:
            return
        step.flags |= _HELD
        self._late_ticks += 1
        if not self._wants_episode() and self._late_ticks >= (
            self._max_late_ticks if self._has_acted else self._max_late_ticks_at_start
        ):
            self._is_silent = True
            step.policy = self._no_action

    def _await_reply(self, tick: int, deadline_ns: int) -> bool:
        """Wait for the answer to the sample of ``tick``; False on a timeout, a stop or a request for a new episode."""
        while True:
            request = self._exchange.request
            if request is not None and request.tick > self._last_reply_tick and request.episodes == self._episodes:
                self._held_action, self._last_reply_tick, self._has_acted, self._late_ticks = (
                    request.action,
                    request.tick,
                    True,
                    0,
                )
            if self._last_reply_tick == tick:
                return True
            remaining_ns = deadline_ns - time.monotonic_ns()
            if remaining_ns <= 0 or self._requests.stop or self._wants_episode():
                return False
            self._exchange.wait(min(remaining_ns, _POLL_INTERVAL_NS))

    def is_over(self, state: State, terminated: bool) -> bool:
        """Return whether the episode ends: as for policies, or because the trainer is silent or requests a new
        episode."""
        return self._tick.is_over(state, terminated) or self._is_silent or self._wants_episode()

    def on_episode_end(self, step: Step, completed: Step | None) -> None:
        self._samples.send(step, completed, is_over=True)
