"""The tick: from one state frame to the next command, and from the following frame to a step record.

Everything here is a pure function of the frames, the configuration, the policies and the episode's random state; the
clock and all I/O are in ``onrig.runtime.control.loop``.  Replaying a recorded run therefore reproduces its decisions
bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan

from onrig.hw.intake import frames_between
from onrig.hw.messages import State, Status
from onrig.runtime.control.actuators import Actuators
from onrig.runtime.control.contradictions import Contradiction, Contradictions
from onrig.runtime.control.exploration_stage import ExplorationStage
from onrig.runtime.control.observe import EpisodeObserver
from onrig.runtime.control.ports import PolicyPorts
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.guard import Guard, budget_ns
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Kind, Rule, Step
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.faults import FaultName, is_unfit
from onrig.runtime.safety.shield import Shield
from onrig.runtime.shm.images import ImageSource
from onrig.runtime.task import compile_base_reward, compile_termination, episode_steps
from onrig.runtime.terminations import ScalarTest

# Plain numbers, because an operation on an enumeration of flags takes microseconds with cold caches.
_ARMED = int(Status.ARMED)
_ARMED_OR_FAULT = int(Status.ARMED | Status.FAULT)
_NO_RULE, _RESET_KIND = Rule.NONE, Kind.RESET
_FIRST, _LATE, _INVALID, _NATIVE = int(Flag.FIRST), int(Flag.LATE), int(Flag.INVALID), int(Flag.NATIVE)


class Tick:
    """Stages of a tick for one rig and task, and the state of the current episode."""

    def __init__(
        self,
        config: RunConfig,
        explorer: Explorer | None = None,
        clock: Callable[[], int] | None = None,
        images: ImageSource | None = None,
    ) -> None:
        """``clock`` (ns) times third-party code; without it, as in virtual time, durations are not checked.
        ``images``: source of the camera images, black by default."""
        rig = config.rig
        guard = Guard(self._on_third_party_failure, budget_ns(config.period_us), clock)

        def guard_condition(name: str, test: ScalarTest) -> ScalarTest:
            return guard.wrap(name, test, False)

        self._explorer = explorer
        self._n_steps = episode_steps(config.task, config.rate_hz)
        self._actuators = Actuators(config)
        self._observer = EpisodeObserver(
            config,
            self._n_steps,
            self._actuators.to_si,
            lambda name, transform: guard.wrap(name, transform, nan),
            images,
        )
        self._has_cameras = bool(config.cameras)
        self._ports = PolicyPorts(rig)
        self._exploration = ExplorationStage(config, explorer)
        self._shield = Shield(config.limits, rig, config.period_us * 1e-6)
        self._reward = compile_base_reward(config.task, rig, guard_condition)
        self._is_terminal = compile_termination(config.task, rig, guard_condition)
        self._zeros = (0.0,) * len(rig.actuators)
        self._contradictions = Contradictions(rig, config.period_us, config.supervision.frozen_limit_s)
        self.contradiction: Contradiction | None = None
        """Fault of the current episode that the device does not report itself: contradictory frames, a missing image,
        failed third-party code or a diverging fallback."""
        self._tick = 0
        self.begin(0, Kind.TRAIN, [])

    @property
    def safe_counts(self) -> tuple[int, ...]:
        """Safe output, in counts."""
        return self._actuators.safe_counts

    def begin(
        self,
        episode: int,
        kind: Kind,
        noise: list[tuple[float, ...]],
        perturbed: PolicySession | None = None,
    ) -> None:
        """Start an episode.

        ``noise`` is the episode's exploration signal, one tuple in normalised units per step.  It is added to the
        policy's action (m,), is the noise input (m,) of a stochastic policy, or holds a random level and the chance
        that decides whether to take it (``onrig.runtime.explore.noise``).  With ``perturbed``, the signal is instead
        the difference between that policy's action and the acting policy's.  The explorer's amplitude scales the signal
        or, for random levels, is the probability of taking one.
        """
        self._episode, self._kind = episode, kind
        self._exploration.begin(kind, noise, perturbed)
        self._ports.begin()
        self._margin, self._was_in_fallback = 1.0, False
        self._k = 0
        self._observer.begin(kind, episode)
        self._shield.reset()
        self._contradictions.reset()
        self.contradiction = None

    def set_seed(self, seed: int, episode_offset: int) -> None:
        """Draw targets with this seed from now on, counting episode ``episode_offset`` + 1 as the first."""
        self._observer.set_seed(seed, episode_offset)

    def prepare(self, episode: int, kind: Kind) -> None:
        """Draw an episode's targets before the device is armed for it, so that ``begin`` takes no time."""
        self._observer.prepare(kind, episode)

    def drop_perturbed(self) -> None:
        """Stop exploring with the perturbed policy passed to ``begin``: the policy it was derived from no longer
        acts."""
        self._exploration.drop_perturbed()

    @property
    def count(self) -> int:
        """Number of ticks so far in the run, which is also the number of the next one."""
        return self._tick

    def set_tick_number(self, tick: int) -> None:
        """Set the number of the next tick, for a resumed run."""
        self._tick = tick

    def observe(self, state: State) -> Step:
        """Stage 2: start the record of a frame with the policy's observation."""
        self._state = state
        if self.contradiction is None:
            self.contradiction = self._contradictions.check(state)
        observer = self._observer
        is_first = not observer.last_frame
        observation = observer.observe(state)
        if self._has_cameras and observer.image_failure and self.contradiction is None:
            self.contradiction = Contradiction(FaultName.CAMERA_SILENT, observer.image_failure)
        zeros, u_end = self._zeros, state.u_end
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
            u_end,
            u_end,
            observation,
            zeros,
            zeros,
            zeros,
            zeros,
            u_end,
            zeros,
        )
        step.input = observer.input
        if is_first:
            step.flags |= _FIRST
        self._tick += 1
        return step

    def evaluate_policy(self, step: Step, policy: PolicySession | None, policy_id: int) -> None:
        """Stage 3: fill in the policy's action (SI units): the safe output without a policy, NaN if the policy
        fails."""
        step.policy_id = policy_id
        if policy is None:
            step.policy = self._actuators.safe_action
            return
        if policy.native:
            step.flags |= _NATIVE
        if not policy.has_basic_ports:
            self._ports.evaluate(step, policy, *self._exploration.policy_noise(self._k, self._margin))
            return
        try:
            action = policy.act(step.input or step.observation)
        except Exception:  # onnxruntime's errors have no common base; NaN marks a failure for the shield
            step.policy = self._ports.failed_action
            return
        failed_action = self._ports.failed_action
        step.policy = action if len(action) == len(failed_action) else failed_action

    def explore(self, step: Step) -> None:
        """Stage 4: add the episode's noise."""
        self._exploration.apply(step, self._k, self._margin)

    def shield(self, step: Step) -> None:
        """Stage 5: apply the shield, and set ``step.command`` to the resulting command in counts."""
        actuators, shield = self._actuators, self._shield
        output = previous_output = actuators.safe_action
        if shield.limits_changes:
            output, previous_output = actuators.outputs(self._state)
        verdict = shield.decide(step.observation, step.explored, output, previous_output)
        step.rule, step.amount, step.margin = verdict.rule, verdict.amount, verdict.margin
        self._margin = verdict.margin
        is_in_fallback = verdict.rule.falls_back
        if is_in_fallback and shield.failure and self.contradiction is None:
            self.contradiction = Contradiction(FaultName.FALLBACK_DIVERGES, shield.failure)
        step.tripped = is_in_fallback and not self._was_in_fallback
        self._was_in_fallback = is_in_fallback
        step.command = actuators.to_counts(verdict.action)
        step.commanded = actuators.to_si(step.command)
        self._k += 1

    def complete(self, step: Step, state: State, observation: Sequence[float]) -> bool:
        """Complete ``step`` with the applied action and the reward, which the frame after it determines.

        Returns True if the episode terminates.  A transition with a lost frame or an unarmed device is marked invalid
        and excluded from learning.
        """
        step.u_start, step.u_end = state.u_start, state.u_end
        step.tau_us, step.applied = self._actuators.applied(state)
        n_frames = frames_between(state.frame, step.frame)
        if self._explorer is not None:
            self._explorer.record_outcome(
                intervened=step.rule is not _NO_RULE,
                tripped=step.tripped,
                applied=step.applied,
                sensors=step.sensors,
                periods=max(n_frames, 1),
            )
        if step.tau_us or state.answers != step.frame:
            step.flags |= _LATE
        if n_frames != 1 or state.status & _ARMED_OR_FAULT != _ARMED:
            step.flags |= _INVALID
            return False
        terminated = self._is_terminal(observation)
        step.reward = self._reward(observation, step.applied, terminated)
        return terminated

    def _on_third_party_failure(self, detail: str) -> None:
        """Record a failure of third-party code, which ends the episode at this frame."""
        if self.contradiction is None:
            self.contradiction = Contradiction(FaultName.TICK_CODE_FAILED, detail)

    def is_over(self, state: State, terminated: bool) -> bool:
        """Return whether the episode ends with this frame: because of a fault, its task, an exhausted budget or its
        length.

        During homing only a fault ends it; the reset controller decides when the start state is reached.
        """
        if is_unfit(state) or self.contradiction is not None:
            return True
        if self._kind is _RESET_KIND:
            return False
        is_budget_spent = self._explorer is not None and self._explorer.pause is not None
        return terminated or is_budget_spent or self._k >= self._n_steps

    def close(self, step: Step, *, terminated: bool) -> None:
        """Mark the last record of an episode, which has no policy action."""
        step.flags |= Flag.NO_ACTION | (Flag.TERMINATED if terminated else Flag.TRUNCATED)
