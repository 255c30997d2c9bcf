"""The loop once more: the tick's stages over recorded frames, in the order in which ``onrig.runtime.control.loop`` has
them.

Told to it are the frames, the clock, which policy acted, whether a roll-back took place, that the command was being
faded out, that the line closed, and how far the exploration was restrained from outside; everything else it decides
anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import isfinite
from typing import Final, NamedTuple

import numpy as np
from msgspec import UNSET

from onrig.hw.messages import State, Status
from onrig.hw.native import library
from onrig.runtime.control.episode import Fade, begin_episode, by_reset
from onrig.runtime.control.tick import Tick
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.explore.schedule import depends_on_episode_only
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.random_streams import device_seed
from onrig.runtime.record import Flag, Kind, Step
from onrig.runtime.replay.scoring import terms_of
from onrig.runtime.reset.attempts import EpisodeReset, Progress
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.starts import drawn_start, middle_of
from onrig.runtime.tracking import PLANT_ROLES
from onrig.tools.replaying.comparison import Comparison
from onrig.tools.replaying.recorded import Counts, PolicyShelf, Recorded, frame_of, take_circumstances

LOST: Final = "records before them in the episode were lost"
NO_STATE: Final = "the state of the exploration was lost with records before the episode"
NO_POLICY: Final = "the policy file is missing (its answers were taken from the records)"
_TRAINER: Final = "a trainer acted (its actions were taken from the records)"
NO_PERTURBED: Final = "the policy file is missing, and parameter noise needs it"
UNFINISHED: Final = "the frame that completed them was not recorded"

_SENT: Final = 256
"""Commands that one in force may be among: a lease holds it for 255 periods at most."""
_COMPLETION: Final = ("applied", "reward", "flags")
_DRAWN: Final = ("policy", "mean", "std", "drawn", "amplitude", "explored", "exploration")
"""What a stochastic policy decides."""
_ACTED: Final = (*_DRAWN, "commanded", "command", "rule", "amount", "margin")
"""What a record that closes its episode holds nothing of."""


class Position(NamedTuple):
    """What the loop stored between two episodes."""

    explorer: Mapping[str, float]
    """State of the exploration; empty at the start of a run."""
    closed: tuple[Kind, int]
    """Kind and number of the episode that was closed last."""
    numbered_from: tuple[int, int] | None = None
    """Seed that a trainer gave, and the episodes before the first that follows from it."""


class _Pending(NamedTuple):
    step: Step
    record: Recorded
    but: tuple[str, ...]


class Recomputation:
    """One session of the loop (from its start to its end), record by record."""

    def __init__(
        self, config: RunConfig, shelf: PolicyShelf, comparison: Comparison, unverified: Counter[str], tolerant: bool
    ) -> None:
        self._config, self._shelf, self._comparison, self._unverified = config, shelf, comparison, unverified
        self._tolerant = tolerant
        self._explorer = Explorer(config)
        self._tick = Tick(config, self._explorer)
        self._historyless = depends_on_episode_only(config.exploration)
        reset = config.task.reset
        self._terms = terms_of(config, record_layout(config))
        self._reset = None if reset is None else EpisodeReset(reset, middle_of(config.task.all_starts), config.rig)
        self._fade = Fade(config.supervision.fade_s, config.rate_hz, tuple(a.safe for a in config.rig.actuators))
        self._positions: dict[int, Position] = {}
        self._seed, self._before = config.seed, 0
        """Seed of starts and targets, and the episodes before the first that follows from it."""
        self._closed = (Kind.TRAIN, 0)
        """Kind and number of the episode that was closed last."""
        self._state_known = True
        self._began = self._resumes = False
        self._next_tick = 0
        self._pending: _Pending | None = None
        self._latest: Recorded | None = None
        self._sent: dict[int, Counts] = {}
        """Latest commands by the frame that they answer."""
        self._answered: tuple[float, ...] | None = None
        self._within = False
        """Whether the episode of the next record is being followed."""
        self._lost = LOST
        self.episodes: Counter[Kind] = Counter()

    # -- what comes in -------------------------------------------------------------------------------------------------

    def keep(self, tick: int, position: Position) -> None:
        """Take the position before the record number ``tick``."""
        self._positions[tick] = position

    def take(self, record: Recorded) -> None:
        """Take the next record."""
        if not self._began:
            self._began = True
            self._next_tick = record.step.tick
            self._resumes = record.step.tick > 0  # with what was kept before, or it is not known
            self._state_known = record.step.tick == 0
        if record.step.tick != self._next_tick:
            self._gap()
        self._next_tick = record.step.tick + 1
        if record.first:
            self._abandon()
            self._begin(record)
        if self._within:
            self._follow(record)
        else:
            self._unverified[self._lost] += 1

    def end(self) -> None:
        """There are no more records."""
        self._abandon()

    def _gap(self) -> None:
        self._abandon()
        self._within, self._lost = False, LOST
        self._state_known = False

    def _abandon(self) -> None:
        """The record in progress is the last that is known of its episode: what completed it was never told."""
        if self._pending is not None:
            step, record, but = self._pending
            step.tau_us, step.u_start, step.u_end = record.step.tau_us, record.step.u_start, record.step.u_end
            self._compare(_Pending(step, record, (*but, *_COMPLETION)))
            self._unverified[UNFINISHED] += 1
        if self._within:
            self._within = False
            self._state_known = False
        self._pending = None

    # -- an episode ----------------------------------------------------------------------------------------------------

    def _begin(self, record: Recorded) -> None:
        self._set_state(record)
        self._within = True
        tick, kind = self._tick, record.step.kind
        tick.number_from(self._seed, self._before)
        self.episodes[kind] += 1
        if kind is Kind.RESET:
            tick.begin(record.step.episode, kind, [])
            if self._reset is None:
                self._within, self._lost = False, "the configuration has no reset controller"
            else:
                self._reset.head_for(self._start_after(record.step.episode))
                self._reset.begin()
                self._answer_to = begin_episode(tick, by_reset(self._reset))
            return
        if not (self._state_known or self._historyless):
            self._within, self._lost = False, NO_STATE
            return
        explorer = self._explorer
        self._begin_exploration(record)
        signal = explorer.signal(kind, record.step.episode)
        perturbed: PolicySession | None = None
        if explorer.perturbs and explorer.is_exploring and not record.last:
            policy = self._session(record)
            if policy is None:
                self._within, self._lost = False, NO_PERTURBED
                self._state_known = False
                return
            try:
                perturbed = PolicySession(explorer.perturb(policy.model, record.step.episode), native=policy.native)
            except ModelRefused:
                perturbed = None  # as the loop goes on without
        tick.begin(record.step.episode, kind, signal, perturbed)
        ends = tick.is_over if self._config.actor is UNSET else self._is_over
        self._answer_to = begin_episode(tick, self._act, ends=ends, fade=self._fade)

    def _is_over(self, state: State, terminated: bool) -> bool:
        """Whether an episode in which a trainer acts ends with this frame: the trainer may end it at any."""
        by_trainer = self._record.last and not self._record.cut_off
        return self._tick.is_over(state, terminated) or by_trainer

    def _start_after(self, episode: int) -> dict[str, float]:
        """Start of the episode that a reset leads to: the evaluation that is due after a training episode, or the next
        training episode."""
        every, config = self._config.evaluate_every, self._config
        due = bool(every) and episode > 0 and episode % every == 0 and self._closed != (Kind.EVAL, episode)
        kind, number = (Kind.EVAL, episode) if due else (Kind.TRAIN, episode + 1)
        return drawn_start(config.task.all_starts, device_seed(self._seed, PLANT_ROLES[kind], number - self._before))

    def _begin_exploration(self, record: Recorded) -> None:
        """Start the episode's exploration; a silent learner's restraint shows in the first amplitude."""
        explorer, staleness = self._explorer, self._config.staleness
        explorer.restrain(1.0)
        explorer.begin_episode(record.step.kind, record.step.episode)
        if staleness.then == "lower" and explorer.is_exploring and not record.last:
            amplitude = np.array(explorer.amplitude(1.0), np.float32)
            if (amplitude != record.row["amplitude"]).any():
                explorer.restrain(staleness.factor)
                explorer.begin_episode(record.step.kind, record.step.episode)

    def _set_state(self, record: Recorded) -> None:
        """Compare the exploration's state with the recorded one, and continue from that."""
        resumed, self._resumes = self._resumes, False
        position = self._positions.pop(record.step.tick, None)
        kept = None if position is None else position.explorer
        if position is not None:
            self._closed = position.closed
            self._seed, self._before = position.numbered_from or (self._config.seed, 0)
        rested = self._explorer.pause_due is not None
        for tick in [t for t in self._positions if t < record.step.tick]:
            del self._positions[tick]
        if kept is None:
            if rested:  # the length of the pause was not recorded
                self._state_known = False
        elif self._state_known and not rested and kept:
            if dict(kept) != self._explorer.state():
                mine = self._explorer.state()
                names = sorted(n for n in {*kept, *mine} if kept.get(n, 0.0) != mine.get(n, 0.0))
                was, is_ = ({n: s.get(n, 0.0) for n in names} for s in (kept, mine))
                self._comparison.note(record, ("state of the exploration", str(was), str(is_)))
                self._restore(kept)
        else:
            self._restore(kept)
            if resumed:
                self._explorer.begin_session()
            self._state_known = True

    def _restore(self, state: Mapping[str, float]) -> None:
        self._explorer = Explorer(self._config)
        if state:
            self._explorer.restore(state)
        self._tick = Tick(self._config, self._explorer)

    def _follow(self, record: Recorded) -> None:
        pending, self._pending = self._pending, None
        previous = None if pending is None else pending.record
        u_start, u_end = self._outputs(record) if previous is None else ((), ())
        state = frame_of(record, previous, u_start, u_end)
        self._latest = record
        self._sent[record.step.frame] = record.step.command
        if len(self._sent) > _SENT:
            del self._sent[next(iter(self._sent))]
        self._record, self._answered = record, None
        answer = self._answer_to(state)
        step = answer.step
        take_circumstances(step, record)
        if pending is not None:
            if self._terms is not None:
                self._terms.complete(pending.step, step)
            self._compare(pending)
        if step.kind is Kind.RESET:
            going = self._reset is not None and self._reset.progress is Progress.GOING
            if going and not answer.over:
                self._pending = _Pending(step, record, ())
            else:
                self._compare(_Pending(step, record, ()))
                self._within = False
            return
        if answer.over:
            step.policy_id = record.step.policy_id
        if answer.over or (record.last and not record.cut_off):
            self._compare(_Pending(step, record, () if answer.over else _ACTED))
            self._close()
            return
        but: tuple[str, ...] = ()
        if self._answered is None:
            self._unverified[NO_POLICY if self._config.actor is UNSET else _TRAINER] += 1
            but = _DRAWN if self._config.stochastic else ("policy",)
            if self._config.stochastic and record.step.flags & Flag.FADED:  # the record does not hold the action drawn
                but = _ACTED
        elif self._tolerant:
            self._comparison.take_policy(self._answered, record)
        if record.cut_off:
            step.flags |= Flag.NO_ACTION | Flag.TRUNCATED | Flag.CUT_OFF
            self._compare(_Pending(step, record, but))
            self._close()
            return
        self._pending = _Pending(step, record, but)

    def _act(self, step: Step) -> None:
        """Ask the policy that acted; where it is missing, or differences are tolerated, its recorded answer counts."""
        record = self._record
        if record.last and not record.cut_off:  # which nobody was asked for
            return
        if record.step.flags & Flag.ROLLED_BACK:
            self._tick.drop_perturbed()
        if record.step.flags & Flag.FADED:
            self._fade.begin()
        session = self._session(record)
        if session is None or self._tolerant:
            step.flags |= record.step.flags & Flag.NATIVE
        if session is None:
            step.policy_id = record.step.policy_id
            step.flags |= record.step.flags & (Flag.RESTRAINED | Flag.HELD)
            _answer_as(step, record.step)
            return
        self._tick.ask(step, session, record.step.policy_id)
        self._answered = step.policy
        if self._tolerant:
            _answer_as(step, record.step)

    def _session(self, record: Recorded) -> PolicySession | None:
        """Session of the policy that acted, for the evaluator that did; with tolerance for one that is here."""
        if self._config.actor is not UNSET:
            return None
        native = bool(record.step.flags & Flag.NATIVE)
        return self._shelf.take(record.step.policy_id, native=native and not (self._tolerant and library() is None))

    def _close(self) -> None:
        """The episode is over."""
        self._within = False
        self._closed = self._record.step.kind, self._record.step.episode
        self._explorer.end_episode()

    def _compare(self, pending: _Pending) -> None:
        self._comparison.take(pending.step, pending.record, but=pending.but)

    def _outputs(self, record: Recorded) -> tuple[Counts, Counts]:
        """Outputs at the start and the end of the period before an episode's first sample (counts).

        The frame was not recorded with them, but it names the frame that the output answers: the safe output after an
        arming or a reset, otherwise one of the commands on the way to the start.  A frame that does not follow the
        latest one ends a period without a switch, for nothing was sent in it.
        """
        step, latest = record.step, self._latest
        if step.status & Status.SAFE and not record.last:
            return self._tick.safe_counts, self._tick.safe_counts
        u_end = step.u_end if record.last else self._sent.get(step.answers, step.u_start)
        follows = latest is not None and latest.step.frame + 1 == step.frame
        return latest.step.u_end if follows and latest is not None else u_end, u_end


def _answer_as(step: Step, told: Step) -> None:
    """Take a policy's answer from a record."""
    step.policy = told.policy
    if told.drawn and all(map(isfinite, told.policy)):
        step.mean, step.std, step.drawn, step.amplitude = told.mean, told.std, told.drawn, told.amplitude
        if not told.flags & Flag.FADED:
            step.explored = told.explored
