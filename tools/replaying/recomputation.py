"""Recomputation of the loop's decisions from the recorded frames, with the tick's stages in the loop's order.

Frames, clock, acting policy, rollbacks, fade-outs, connection closures and external restrictions on exploration
are copied from the records; everything else is recomputed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import isfinite
from typing import Final, NamedTuple

import numpy as np
from msgspec import UNSET

from onrig.hw.messages import State
from onrig.hw.native import library
from onrig.runtime.control.episode import Fade, begin_episode, reset_action_source
from onrig.runtime.control.tick import Tick
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.explore.schedule import depends_on_episode_only
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Kind, Step
from onrig.runtime.replay.scoring import terms_of
from onrig.runtime.reset.attempts import EpisodeReset, Progress
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.starts import draw_start, middle_start
from onrig.tools.replaying.comparison import Comparison
from onrig.tools.replaying.positions import Position, Positions
from onrig.tools.replaying.recorded import (
    PolicyCache,
    RecordedImages,
    RecordedStep,
    copy_clock_and_accounts,
    to_state_frame,
)
from onrig.tools.replaying.recorded_outputs import RecordedOutputs

LOST_RECORDS: Final = "earlier records of the episode were lost"
UNKNOWN_STATE: Final = "the exploration's state is unknown, since records before the episode were lost"
MISSING_POLICY: Final = "the policy file is missing (the policy's actions were taken from the records)"
_TRAINER_ACTED: Final = "a trainer acted (its actions were taken from the records)"
MISSING_PERTURBED_POLICY: Final = "the policy file is missing, and parameter noise needs it"
UNFINISHED: Final = "the next frame was not recorded"

_COMPLETED_FIELDS: Final = ("applied", "reward", "flags")
_POLICY_FIELDS: Final = ("policy", "mean", "std", "drawn", "amplitude", "explored", "exploration")
"""Fields that a stochastic policy decides."""
_ACTION_FIELDS: Final = (*_POLICY_FIELDS, "commanded", "command", "rule", "amount", "margin")
"""Fields that are empty in the record that closes an episode."""


class _Pending(NamedTuple):
    step: Step
    record: RecordedStep
    excluded: tuple[str, ...]


class Recomputation:
    """Recomputation of one session of the loop (from its start to its end), record by record."""

    def __init__(self, config: RunConfig, policies: PolicyCache, comparison: Comparison) -> None:
        self._config, self._policies, self._comparison = config, policies, comparison
        self._explorer = Explorer(config)
        self._images = RecordedImages(config) if config.cameras else None
        self._tick = Tick(config, self._explorer, images=self._images)
        reset = config.task.reset
        self._terms = terms_of(config, record_layout(config))
        self._reset = None if reset is None else EpisodeReset(reset, middle_start(config.task.all_starts), config.rig)
        self._fade = Fade(config.supervision.fade_s, config.rate_hz, tuple(a.safe for a in config.rig.actuators))
        self._positions = Positions(config.seed)
        self._is_state_known = True
        self._resumes = False
        self._next_tick: int | None = None
        self._pending: _Pending | None = None
        self._outputs = RecordedOutputs(self._tick.safe_counts)
        self._policy_action: tuple[float, ...] | None = None
        self._skip_reason: str | None = LOST_RECORDS
        """Why records are not being recomputed; None while they are."""
        self.episodes: Counter[Kind] = Counter()

    # -- input ---------------------------------------------------------------------------------------------------------

    def add_position(self, tick: int, position: Position) -> None:
        """Add the recorded position before record number ``tick``."""
        self._positions.add(tick, position)

    def take(self, record: RecordedStep) -> None:
        """Add the next record."""
        if self._next_tick is None:
            self._next_tick = record.step.tick
            self._resumes = record.step.tick > 0  # in this case, the exploration's state was recorded or is unknown
            self._is_state_known = record.step.tick == 0
        if record.step.tick != self._next_tick:
            self._handle_gap()
        self._next_tick = record.step.tick + 1
        if record.first:
            self._abandon_episode()
            self._begin_episode(record)
        if self._skip_reason is None:
            self._recompute(record)
        else:
            self._comparison.unverified[self._skip_reason] += 1

    def end(self) -> None:
        """End the session: there are no more records."""
        self._abandon_episode()

    def _handle_gap(self) -> None:
        self._abandon_episode()
        self._skip_reason = LOST_RECORDS
        self._is_state_known = False

    def _abandon_episode(self) -> None:
        """End the episode after comparing the pending record as far as possible.

        The frame that would have completed the record was not recorded.
        """
        if self._pending is not None:
            step, record, excluded = self._pending
            step.tau_us, step.u_start, step.u_end = record.step.tau_us, record.step.u_start, record.step.u_end
            self._compare(_Pending(step, record, (*excluded, *_COMPLETED_FIELDS)))
            self._comparison.unverified[UNFINISHED] += 1
        if self._skip_reason is None:
            self._skip_reason = LOST_RECORDS
            self._is_state_known = False
        self._pending = None

    # -- an episode ----------------------------------------------------------------------------------------------------

    def _begin_episode(self, record: RecordedStep) -> None:
        self._set_state(record)
        self._skip_reason = None
        tick, kind = self._tick, record.step.kind
        tick.set_seed(*self._positions.numbering)
        self.episodes[kind] += 1
        if kind is Kind.RESET:
            tick.begin(record.step.episode, kind, [])
            if self._reset is None:
                self._skip_reason = "the configuration has no reset controller"
            else:
                self._reset.set_start(self._start_after(record.step.episode))
                self._reset.begin()
                self._answer_to = begin_episode(tick, reset_action_source(self._reset), has_ended=self._is_over)
            return
        if not (self._is_state_known or depends_on_episode_only(self._config.exploration)):
            self._skip_reason = UNKNOWN_STATE
            return
        explorer = self._explorer
        self._begin_exploration(record)
        signal = explorer.signal(kind, record.step.episode)
        perturbed: PolicySession | None = None
        if explorer.perturbs_weights and explorer.is_exploring and not record.last:
            policy = self._session(record)
            if policy is None:
                self._skip_reason = MISSING_PERTURBED_POLICY
                self._is_state_known = False
                return
            try:
                perturbed = PolicySession(explorer.perturb(policy.model, record.step.episode), native=policy.native)
            except ModelRefused:
                perturbed = None  # like the loop, which continues with the unperturbed policy
        tick.begin(record.step.episode, kind, signal, perturbed)
        self._answer_to = begin_episode(tick, self._act, has_ended=self._is_over, fade=self._fade)

    def _is_over(self, state: State, terminated: bool) -> bool:
        """Return whether an episode ends with this frame.

        A trainer or a camera without images may end it at any frame.
        """
        record = self._record
        ended_by_trainer = self._config.actor is not UNSET and record.last and not record.is_cut_off
        may_miss_images = self._images is not None and not self._config.lockstep
        ended_by_camera = may_miss_images and not record.step.t_send_ns
        return self._tick.is_over(state, terminated) or ended_by_trainer or ended_by_camera

    def _start_after(self, episode: int) -> dict[str, float]:
        """Return the start state of the episode that follows a reset.

        This episode is an evaluation if one is due after the training episode, otherwise the next training episode.
        """
        interval, config = self._config.evaluate_every, self._config
        evaluation_is_due = (
            bool(interval)
            and episode > 0
            and episode % interval == 0
            and self._positions.last_closed != (Kind.EVAL, episode)
        )
        kind, number = (Kind.EVAL, episode) if evaluation_is_due else (Kind.TRAIN, episode + 1)
        return draw_start(config.task.all_starts, self._positions.device_seed(kind, number))

    def _begin_exploration(self, record: RecordedStep) -> None:
        """Start the episode's exploration; the first amplitude shows whether a learner's silence had reduced it."""
        explorer, staleness = self._explorer, self._config.staleness
        explorer.restrain(1.0)
        explorer.begin_episode(record.step.kind, record.step.episode)
        if staleness.then == "lower" and explorer.is_exploring and not record.last:
            amplitude = np.array(explorer.amplitude(1.0), np.float32)
            if (amplitude != record.row["amplitude"]).any():
                explorer.restrain(staleness.factor)
                explorer.begin_episode(record.step.kind, record.step.episode)

    def _set_state(self, record: RecordedStep) -> None:
        """Compare the exploration's state with the recorded state, and continue from the recorded one."""
        is_resumed, self._resumes = self._resumes, False
        position = self._positions.take(record)
        recorded_state = None if position is None else position.explorer
        is_paused = self._explorer.pause_due is not None
        if recorded_state is None:
            if is_paused:  # the length of the pause was not recorded
                self._is_state_known = False
        elif self._is_state_known and not is_paused and recorded_state:
            if dict(recorded_state) != self._explorer.state():
                recomputed_state = self._explorer.state()
                names = sorted(
                    n
                    for n in {*recorded_state, *recomputed_state}
                    if recorded_state.get(n, 0.0) != recomputed_state.get(n, 0.0)
                )
                recorded, recomputed = ({n: s.get(n, 0.0) for n in names} for s in (recorded_state, recomputed_state))
                self._comparison.count_differences(record, ("exploration state", str(recorded), str(recomputed)))
                self._restore(recorded_state)
        else:
            self._restore(recorded_state)
            if is_resumed:
                self._explorer.begin_session()
            self._is_state_known = True

    def _restore(self, state: Mapping[str, float]) -> None:
        self._explorer = Explorer(self._config)
        if state:
            self._explorer.restore(state)
        self._tick = Tick(self._config, self._explorer, images=self._images)

    def _recompute(self, record: RecordedStep) -> None:
        pending, self._pending = self._pending, None
        previous = None if pending is None else pending.record
        u_start, u_end = self._outputs.before(record) if previous is None else ((), ())
        state = to_state_frame(record, previous, u_start, u_end)
        self._outputs.add(record)
        self._record, self._policy_action = record, None
        if self._images is not None:
            self._images.take(record)
        answer = self._answer_to(state)
        step = answer.step
        copy_clock_and_accounts(step, record)
        if pending is not None:
            if self._terms is not None:
                self._terms.complete(pending.step, step)
            self._compare(pending)
        if step.kind is Kind.RESET:
            is_resetting = self._reset is not None and self._reset.progress is Progress.DRIVING
            if is_resetting and not answer.is_over:
                self._pending = _Pending(step, record, ())
            else:
                self._compare(_Pending(step, record, ()))
                self._skip_reason = LOST_RECORDS
            return
        if answer.is_over:
            step.policy_id = record.step.policy_id
        if answer.is_over or (record.last and not record.is_cut_off):
            self._compare(_Pending(step, record, () if answer.is_over else _ACTION_FIELDS))
            self._close()
            return
        excluded: tuple[str, ...] = ()
        if self._policy_action is None:
            self._comparison.unverified[MISSING_POLICY if self._config.actor is UNSET else _TRAINER_ACTED] += 1
            excluded = _POLICY_FIELDS if self._config.stochastic else ("policy",)
            if self._config.stochastic and record.step.flags & Flag.FADED:  # the drawn action was not recorded
                excluded = _ACTION_FIELDS
        elif self._comparison.is_tolerant:
            self._comparison.compare_policy(self._policy_action, record)
        if record.is_cut_off:
            step.flags |= Flag.NO_ACTION | Flag.TRUNCATED | Flag.CUT_OFF
            self._compare(_Pending(step, record, excluded))
            self._close()
            return
        self._pending = _Pending(step, record, excluded)

    def _act(self, step: Step) -> None:
        """Evaluate the policy that acted.

        The recorded action is copied if the policy is missing or differences are tolerated.
        """
        record = self._record
        if record.last and not record.is_cut_off:  # no policy was evaluated
            return
        if record.step.flags & Flag.ROLLED_BACK:
            self._tick.drop_perturbed()
        if record.step.flags & Flag.FADED:
            self._fade.begin()
        session = self._session(record)
        if session is None or self._comparison.is_tolerant:
            step.flags |= record.step.flags & Flag.NATIVE
        if session is None:
            step.policy_id = record.step.policy_id
            step.flags |= record.step.flags & (Flag.RESTRAINED | Flag.HELD)
            _copy_action(step, record.step)
            return
        self._tick.evaluate_policy(step, session, record.step.policy_id)
        self._policy_action = step.policy
        if self._comparison.is_tolerant:
            _copy_action(step, record.step)

    def _session(self, record: RecordedStep) -> PolicySession | None:
        """Return a session of the policy that acted, with the recorded evaluator.

        If differences are tolerated, any available evaluator is used.
        """
        if self._config.actor is not UNSET:
            return None
        is_native = bool(record.step.flags & Flag.NATIVE)
        return self._policies.take(
            record.step.policy_id, native=is_native and not (self._comparison.is_tolerant and library() is None)
        )

    def _close(self) -> None:
        """End the episode after its last record."""
        self._skip_reason = LOST_RECORDS
        self._positions.last_closed = self._record.step.kind, self._record.step.episode
        self._explorer.end_episode()

    def _compare(self, pending: _Pending) -> None:
        self._comparison.take(pending.step, pending.record, excluded=pending.excluded)


def _copy_action(step: Step, recorded: Step) -> None:
    """Copy a policy's action from a record."""
    step.policy = recorded.policy
    if recorded.drawn and all(map(isfinite, recorded.policy)):
        step.mean, step.std, step.drawn, step.amplitude = (
            recorded.mean,
            recorded.std,
            recorded.drawn,
            recorded.amplitude,
        )
        if not recorded.flags & Flag.FADED:
            step.explored = recorded.explored
