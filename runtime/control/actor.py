"""Who acts: a run's policies, or a trainer in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf, nan
from typing import Final, Protocol

from onrig.hw.messages import State
from onrig.runtime.control.outside import Requests
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.control.tick import Tick
from onrig.runtime.record import Flag, RecordLayout, Step
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.run_state.faults import FaultName
from onrig.runtime.shm.board import Board, Word
from onrig.runtime.shm.exchange import NO_TICK, LoopEnd, Sample

Wait = Callable[[Callable[[], bool], str, FaultName, float], None]
"""Waits, disarmed, for a condition: what for, fault if it does not come, limit in s."""
_HELD: Final = int(Flag.HELD)
_AWAITED_SHARE_OF_PERIOD: Final = 0.75
"""Share of a period for which an action is awaited; the rest is the shield's, the line's and the device's."""
_POLL_INTERVAL_NS: Final = 50_000_000
_FIRST_ACTION_LIMIT_S: Final = 2.0
"""Device time from the start of an episode to its first action; the safe output is in force until then."""


class Actor(Protocol):
    """Source of a run's actions."""

    def ready(self) -> bool:
        """Whether it can act; awaited before the first episode."""

    def await_episode(self, wait: Wait) -> bool:
        """Wait until the next training episode may begin; False if there is none."""

    @property
    def numbered_from(self) -> tuple[int, int] | None:
        """Seed from which starts, noise and targets follow, and the episodes before the first that follows from it;
        None: the run's seed, from its start."""

    def act(self, step: Step) -> None:
        """Fill in a step's ``policy``."""

    def is_over(self, state: State, terminated: bool) -> bool:
        """Whether the episode ends with this frame."""

    def on_episode_end(self, step: Step, completed: Step | None) -> None:
        """Take the last record of an episode, and the one that it completes."""


class ByPolicies:
    """The policies of the slot; in real time, one that is ready is swapped in at a tick edge."""

    def __init__(self, switch: PolicySwitch, tick: Tick, board: Board, *, swaps: bool) -> None:
        self._switch, self._tick, self._board, self._swaps = switch, tick, board, swaps
        self.is_over = tick.is_over
        self.numbered_from: tuple[int, int] | None = None
        """As Actor."""

    def ready(self) -> bool:
        """As Actor."""
        self._switch.take_newest()
        return self._switch.active is not None

    def await_episode(self, wait: Wait) -> bool:
        """As Actor; at once."""
        return True

    def act(self, step: Step) -> None:
        """As Actor."""
        switch = self._switch
        if self._swaps and switch.swap():
            self._board[Word.POLICY] = switch.policy_id
        step.flags |= switch.marks()
        self._tick.ask(step, switch.active, switch.policy_id)

    def on_episode_end(self, step: Step, completed: Step | None) -> None:
        """As Actor; unused."""


class _Samples:
    """Samples of an episode for a trainer: the records of a step and of the one it completes, and the return so far."""

    def __init__(self, config: RunConfig, end: LoopEnd) -> None:
        self._end: Final = end
        self._layout: Final[RecordLayout] = record_layout(config)
        self._records: Final = memoryview(bytearray(2 * self._layout.size))
        self.begin(0)

    def begin(self, episode: int) -> None:
        """Start an episode, counted as in the trainer's requests."""
        self._episode, self._periods, self._return = episode, 0, 0.0

    def send(self, step: Step, completed: Step | None, *, over: bool) -> None:
        """Send the sample of a step; ``over``: the episode ends with it."""
        layout, records = self._layout, self._records
        if completed is None:
            records[: layout.size] = bytes(layout.size)
        else:
            self._periods += 1
            self._return += completed.reward
            layout.pack_into(records, 0, 0, layout.values(completed))
        layout.pack_into(records, layout.size, 0, layout.values(step))
        sent_ns = time.monotonic_ns()
        self._end.send(Sample(self._episode, self._periods, self._return, sent_ns, over, bytes(records)))


class ByTrainer:
    """A trainer that answers samples through shared memory.

    In real time its action is awaited for a share of the period; without it the previous action is held (flag HELD),
    and one that comes late counts from the next tick on.  Where none has come for a lease, the fallback acts for the
    lease's last tick, and the episode ends.  In lockstep virtual time stands still until it has acted, for
    ``barrier_timeout_s`` of the wall clock.
    """

    def __init__(self, config: RunConfig, end: LoopEnd, tick: Tick, requests: Requests, board: Board) -> None:
        self._end, self._tick, self._requests, self._board = end, tick, requests, board
        self._samples = _Samples(config, end)
        lease = config.rig.lease_periods
        limit_s = config.barrier_timeout_s
        self._limit_ns = (
            round(limit_s * 1e9) if config.lockstep else round(_AWAITED_SHARE_OF_PERIOD * config.wall_period_ns)
        )
        self._most_late = 1 if config.lockstep else lease
        self._most_late_first = 1 if config.lockstep else max(lease, round(_FIRST_ACTION_LIMIT_S * config.rate_hz))
        self._safe = tuple(a.safe for a in config.rig.actuators)
        self._no_action = (nan,) * len(config.rig.actuators)
        self._episodes = 0
        self.numbered_from: tuple[int, int] | None = None
        """As Actor: the last seed that the trainer gave."""
        self._begin()

    def _begin(self) -> None:
        self._held, self._acted = self._safe, False
        self._late, self._silent = 0, False
        self._previous: Step | None = None
        self._answered = NO_TICK
        self._samples.begin(self._episodes)

    def ready(self) -> bool:
        """As Actor; it answers when it is asked."""
        return True

    def await_episode(self, wait: Wait) -> bool:
        """As Actor; for as long as it takes: the device is disarmed, and the supervisor watches the trainer."""
        wait(self._wants_episode, "the trainer", FaultName.BARRIER, inf)
        request = self._end.request
        assert request is not None
        self._episodes = request.episodes
        if request.seed >= 0:
            self.numbered_from = request.seed, self._board[Word.EPISODE]
        self._begin()
        return not request.is_closing

    def _wants_episode(self) -> bool:
        request = self._end.request
        return request is not None and (request.is_closing or request.episodes > self._episodes)

    def act(self, step: Step) -> None:
        """As Actor; NaN, which the shield answers with the fallback, where the trainer has been silent for a lease."""
        self._samples.send(step, self._previous, over=False)
        self._previous = step
        in_time = self._await(step.tick)
        step.policy = self._held
        if in_time:
            return
        step.flags |= _HELD
        self._late += 1
        if not self._wants_episode() and self._late >= (self._most_late if self._acted else self._most_late_first):
            self._silent = True
            step.policy = self._no_action

    def _await(self, tick: int) -> bool:
        """Wait for the answer to the sample of ``tick``; False if none comes in time, or something else is wanted."""
        until_ns = time.monotonic_ns() + self._limit_ns
        while True:
            request = self._end.request
            if request is not None and request.tick > self._answered and request.episodes == self._episodes:
                self._held, self._answered, self._acted, self._late = request.action, request.tick, True, 0
            if self._answered == tick:
                return True
            left_ns = until_ns - time.monotonic_ns()
            if left_ns <= 0 or self._requests.stop or self._wants_episode():
                return False
            self._end.wait(min(left_ns, _POLL_INTERVAL_NS))

    def is_over(self, state: State, terminated: bool) -> bool:
        """As Actor: also where the trainer is silent, or wants another episode."""
        return self._tick.is_over(state, terminated) or self._silent or self._wants_episode()

    def on_episode_end(self, step: Step, completed: Step | None) -> None:
        """As Actor."""
        self._samples.send(step, completed, over=True)
