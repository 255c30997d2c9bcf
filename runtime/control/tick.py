"""The tick: from one state frame to the next command, and from the following frame to a step record.

Everything here is a pure function of the frames, the configuration, the policies and the random state of the episode;
clock and I/O remain in ``onrig.runtime.control.loop``.  A recorded run therefore replays to the same decisions bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, nan

from onrig.hw.intake import frames_between
from onrig.hw.messages import State, Status
from onrig.runtime.control.contradictions import Contradiction, Contradictions
from onrig.runtime.control.observe import Observer, further_signals
from onrig.runtime.control.ports import PolicyPorts
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.explore.settings import EpsilonGreedy
from onrig.runtime.guard import Guard, budget_ns
from onrig.runtime.inputs import composition_of
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Kind, Rule, Step
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.faults import FaultName, is_unfit
from onrig.runtime.safety.shield import Shield
from onrig.runtime.task import compile_form, compile_termination, episode_steps
from onrig.runtime.terminations import ScalarTest

# Plain numbers, because an operation on an enumeration of flags takes microseconds with cold caches.
_ARMED = int(Status.ARMED)
_ARMED_OR_FAULT = int(Status.ARMED | Status.FAULT)
_SAFE = int(Status.SAFE)
_NONE, _EVAL, _RESET = Rule.NONE, Kind.EVAL, Kind.RESET
_FIRST, _LATE, _INVALID, _NATIVE = int(Flag.FIRST), int(Flag.LATE), int(Flag.INVALID), int(Flag.NATIVE)


def _scaling(resolutions: tuple[float, ...]) -> Callable[[Sequence[int]], tuple[float, ...]]:
    """Compile the conversion of counts to SI units; a comprehension for one actuator would cost ten times more."""
    if len(resolutions) == 1:
        (only,) = resolutions
        return lambda counts: (counts[0] * only,)
    return lambda counts: tuple([c * r for c, r in zip(counts, resolutions, strict=True)])


class Tick:
    """Stages of a tick for one rig and task, and the state of the current episode."""

    def __init__(
        self, config: RunConfig, explorer: Explorer | None = None, clock: Callable[[], int] | None = None
    ) -> None:
        """``clock`` (ns) measures third-party code; without it, as in virtual time, durations are not checked."""
        rig = config.rig
        guard = Guard(self._foreign_failed, budget_ns(config.period_us), clock)
        self._explorer = explorer
        self._period_us = config.period_us
        self._steps = episode_steps(config.task, config.rate_hz)
        period_s = config.period_us * 1e-6
        self._observer = Observer(rig, period_s)
        self._composition = composition_of(config.task.inputs, rig, lambda name, form: guard.wrap(name, form, nan))
        self._ports = PolicyPorts(rig)
        self._stochastic = config.stochastic
        self._random_levels = isinstance(config.exploration, EpsilonGreedy)
        self._shield = Shield(config.limits, rig, period_s)
        self._limits_changes = bool(config.limits.rate_per_s or config.limits.jerk_per_s2)

        def watch(name: str, test: ScalarTest) -> ScalarTest:
            return guard.wrap(name, test, False)

        self._reward = compile_form(config.task, rig, watch)
        self._terminated = compile_termination(config.task, rig, watch)
        self._centres = tuple(a.centre for a in rig.actuators)
        self._halves = tuple(a.half_range for a in rig.actuators)
        self._resolutions = tuple(a.resolution for a in rig.actuators)
        self._to_si = _scaling(self._resolutions)
        self._safe = tuple(a.safe for a in rig.actuators)
        self._limits = config.limits.count_ranges(rig)
        self.safe_counts = self.to_counts(self._safe)
        self._zeros = (0.0,) * len(rig.actuators)
        self._ones = (1.0,) * len(rig.actuators)
        self._no_answer = (nan,) * len(rig.actuators)
        self._signals = further_signals(config, self._steps, self._to_si)
        self._contradictions = Contradictions(rig, config.period_us, config.supervision.frozen_limit_s)
        self.contradiction: Contradiction | None = None
        """Fault of the current episode that its frames show but do not report."""
        self._tick, self._kind = 0, Kind.TRAIN
        self.begin(0, Kind.TRAIN, [])

    def begin(
        self,
        episode: int,
        kind: Kind,
        noise: list[tuple[float, ...]],
        perturbed: PolicySession | None = None,
    ) -> None:
        """Start an episode.

        ``noise`` is its exploration signal, one (m,) tuple in normalised units per step: added to the policy's action,
        or the noise input of a stochastic policy, or random levels (``onrig.runtime.explore.noise``).  With
        ``perturbed``, the signal is instead the difference of that policy's action from the policy's.  The explorer's
        amplitude scales all of them.
        """
        self._episode, self._kind, self._perturbed = episode, kind, perturbed
        self._noise, self._own_noise = ([], noise) if self._stochastic else (noise, [])
        self._ports.begin()
        self._margin, self._in_fallback = 1.0, False
        self._k = 0
        self._last_frame = 0
        if self._signals is not None:
            self._signals.begin(kind, episode)
        self._seen: list[tuple[float, ...]] = []
        self._observer.reset()
        self._shield.reset()
        self._contradictions.reset()
        self.contradiction = None

    def number_from(self, seed: int, before: int) -> None:
        """Draw targets with this seed from now on, and number episodes from 1 after episode ``before``."""
        if self._signals is not None:
            self._signals.number_from(seed, before)

    def prepare(self, episode: int, kind: Kind) -> None:
        """Draw the targets of an episode before the device is armed for it, so that ``begin`` takes no time."""
        if self._signals is not None:
            self._signals.prepare(kind, episode)

    def drop_perturbed(self) -> None:
        """Stop exploring with the perturbed policy of ``begin``: the policy it was derived from no longer acts."""
        self._perturbed = None

    @property
    def count(self) -> int:
        """Number of ticks so far in the run, which is also the number of the next one."""
        return self._tick

    def go_on_from(self, tick: int) -> None:
        """Set the number of the next tick, for a resumed run."""
        self._tick = tick

    def to_counts(self, action: Sequence[float]) -> tuple[int, ...]:
        """Round an action (SI units) to counts within the limits."""
        counts = []
        for value, resolution, (low, high) in zip(action, self._resolutions, self._limits, strict=True):
            count = round(value / resolution)
            counts.append(low if count < low else high if count > high else count)
        return tuple(counts)

    def observe(self, state: State) -> Step:
        """Stage 2: start the record of a frame with the policy's observation."""
        self._state = state
        if self.contradiction is None:
            self.contradiction = self._contradictions.take(state)
        periods = state.frame - self._last_frame if self._last_frame else 1
        observation = self._observer.observe(state.sensors, max(periods, 1))
        if self._signals is not None:
            observation = (*observation, *self._signals.next(state.u_end, periods))
        zeros, in_force = self._zeros, state.u_end
        step = Step(  # positional arguments save a microsecond
            self._tick,
            self._episode,
            self._kind,
            state.frame,
            state.t_us,
            state.status,
            state.fault,
            state.answers,
            state.sensors,
            in_force,
            in_force,
            observation,
            zeros,
            zeros,
            zeros,
            zeros,
            in_force,
            zeros,
        )
        if self._composition is not None:
            self._seen = [observation, *self._seen[: self._composition.history]]
            step.input = self._composition(self._seen)
        if not self._last_frame:
            step.flags |= _FIRST
        self._tick += 1
        self._last_frame = state.frame
        return step

    def ask(self, step: Step, policy: PolicySession | None, policy_id: int) -> None:
        """Stage 3: the policy's action (SI units); the safe output without a policy, NaN if the policy fails."""
        step.policy_id = policy_id
        if policy is None:
            step.policy = self._safe
            return
        if policy.native:
            step.flags |= _NATIVE
        if not policy.plain:
            unit = self._own_noise[self._k] if self._k < len(self._own_noise) else None
            amplitude = self._ones if self._explorer is None else self._explorer.amplitude(self._margin)
            self._ports.ask(step, policy, unit, amplitude)
            return
        try:
            answer = policy.ask(step.input or step.observation)
        except Exception:  # onnxruntime's errors have no common base; for the shield a failure is NaN
            step.policy = self._no_answer
            return
        step.policy = answer if len(answer) == len(self._safe) else self._no_answer

    def explore(self, step: Step) -> None:
        """Stage 4: add the episode's noise, clip, and measure the deviation (de Bruin et al. 2018, App. B.2).

        A stochastic policy with noise of its own has already drawn its action.
        """
        if self._stochastic and step.drawn:
            return
        signal = self._signal(step)
        if signal is None:
            step.explored = step.policy
            return
        step.amplitude = amplitudes = self._ones if self._explorer is None else self._explorer.amplitude(self._margin)
        if self._random_levels:
            self._replace(step, *signal)
            return
        explored, deviation = [], 0.0
        for value, unit, amplitude, centre, half in zip(
            step.policy, signal, amplitudes, self._centres, self._halves, strict=True
        ):
            if not isfinite(value):  # left to the shield; noise would only hide it
                step.explored, step.exploration = step.policy, 0.0
                return
            wish = (value - centre) / half
            noisy = min(max(wish + amplitude * unit, -1.0), 1.0)
            deviation += abs(noisy - min(max(wish, -1.0), 1.0))
            explored.append(centre + half * noisy)
        step.explored = tuple(explored)
        step.exploration = deviation

    def _replace(self, step: Step, chance: float, level: float) -> None:
        """Replace the action of the one actuator by a random level (normalised) if the chance is below epsilon."""
        step.explored = step.policy
        if chance < step.amplitude[0] and isfinite(step.policy[0]):  # NaN is left to the shield
            step.explored = (self._centres[0] + self._halves[0] * level,)
            chosen, wish = ((a[0] - self._centres[0]) / self._halves[0] for a in (step.explored, step.policy))
            step.exploration = abs(min(max(chosen, -1.0), 1.0) - min(max(wish, -1.0), 1.0))

    def _signal(self, step: Step) -> Sequence[float] | None:
        """Return the exploration signal of this step, before the amplitude; None for none."""
        if self._kind is _EVAL:
            return None
        if self._perturbed is None:
            return self._noise[self._k] if self._k < len(self._noise) else None
        try:
            others = self._perturbed.ask(step.input or step.observation)
        except Exception:  # same as in ask
            return None
        deviation = []
        for value, other, centre, half in zip(step.policy, others, self._centres, self._halves, strict=True):
            if not (isfinite(value) and isfinite(other)):
                return None
            wish, changed = (value - centre) / half, (other - centre) / half
            deviation.append(min(max(changed, -1.0), 1.0) - min(max(wish, -1.0), 1.0))
        if self._explorer is not None:
            self._explorer.record_deviation(deviation)
        return deviation

    def shield(self, step: Step) -> None:
        """Stage 5: apply the shield; afterwards ``step.command`` holds the command in counts."""
        in_force, previous = self._outputs() if self._limits_changes else (self._safe, self._safe)
        verdict = self._shield.decide(step.observation, step.explored, in_force, previous)
        step.rule, step.amount, step.margin = verdict.rule, verdict.amount, verdict.margin
        self._margin = verdict.margin
        in_fallback = verdict.rule.falls_back
        if in_fallback and self._shield.failure and self.contradiction is None:
            self.contradiction = Contradiction(FaultName.FALLBACK_DIVERGES, self._shield.failure)
        step.tripped = in_fallback and not self._in_fallback
        self._in_fallback = in_fallback
        step.command = self.to_counts(verdict.action)
        step.commanded = self._to_si(step.command)
        self._k += 1

    def _outputs(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return outputs (m,), SI units, by the latest frame: the one in force since its sample, and the one a period
        before.

        Sent commands do not count, since they may have been lost, late or clamped.  The device accepts one only while
        the frame that it answers is the latest, so no other switch can occur in between.
        """
        state = self._state
        if state.status & _SAFE:  # the history restarts at the safe output, whatever its cause
            return self._safe, self._safe
        in_force = self._to_si(state.u_end)
        if state.u_start == state.u_end:
            return in_force, in_force
        return in_force, self._to_si(state.u_start)

    def complete(self, step: Step, state: State, observation: Sequence[float]) -> bool:
        """Fill in data from the frame after ``step``: applied action and reward.  Returns True if the episode
        terminates.

        ū_k = (tau u⁻ + (T - tau) u⁺) / T.  A transition with a lost frame or an unarmed device is marked invalid and
        excluded from learning.
        """
        period, tau = self._period_us, min(state.tau_us, self._period_us)
        step.tau_us = tau
        step.u_start, step.u_end = state.u_start, state.u_end
        applied = []
        for a, b, r in zip(state.u_start, state.u_end, self._resolutions, strict=True):
            applied.append(r * (tau * a + (period - tau) * b) / period)
        step.applied = tuple(applied)
        ahead = frames_between(state.frame, step.frame)
        if self._explorer is not None:
            self._explorer.record_outcome(
                intervened=step.rule is not _NONE,
                tripped=step.tripped,
                applied=step.applied,
                sensors=step.sensors,
                periods=max(ahead, 1),
            )
        if tau or state.answers != step.frame:
            step.flags |= _LATE
        if ahead != 1 or state.status & _ARMED_OR_FAULT != _ARMED:
            step.flags |= _INVALID
            return False
        terminated = self._terminated(observation)
        step.reward = self._reward(observation, step.applied, terminated)
        return terminated

    def _foreign_failed(self, detail: str) -> None:
        """Record a failure of third-party code, which ends the episode at this frame."""
        if self.contradiction is None:
            self.contradiction = Contradiction(FaultName.TICK_CODE_FAILED, detail)

    def is_over(self, state: State, terminated: bool) -> bool:
        """Whether the episode ends with this frame: by a fault, its task, a spent budget or its length.

        During homing only a fault ends it; the reset controller decides when the rig has arrived.
        """
        if is_unfit(state) or self.contradiction is not None:
            return True
        if self._kind is _RESET:
            return False
        spent = self._explorer is not None and self._explorer.pause is not None
        return terminated or spent or self._k >= self._steps

    def close(self, step: Step, *, terminated: bool) -> None:
        """Mark the last record of an episode, which has no policy action."""
        step.flags |= Flag.NO_ACTION | (Flag.TERMINATED if terminated else Flag.TRUNCATED)
