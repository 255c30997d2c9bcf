"""Exploration of a run: signal of each episode, amplitude in each tick, and pauses.

Decisions are pure functions of the configuration, the seed and past events; all state passes through ``state`` and
``restore``, so that a resumed run continues as if uninterrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from typing import Final, Protocol

from onrig.hw.rig import Observation, Rig
from onrig.runtime.explore.budgets import Ledger, Pause
from onrig.runtime.explore.consumption import ConsumptionMeter
from onrig.runtime.explore.noise import AdaptiveScale, WeightNoise, unit_signal
from onrig.runtime.explore.schedule import AmplitudeBackOff, BackOffState, amplitudes, attenuation, is_quiet
from onrig.runtime.explore.settings import Exploration, ParameterNoise, ScheduledNoise
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.record import Kind
from onrig.runtime.run_state.report import report
from onrig.runtime.task import Task, episode_steps


class ExplorationConfig(Protocol):
    """Part of a run's configuration used by the exploration."""

    @property
    def rig(self) -> Rig:
        """Actuators and sensors."""

    @property
    def task(self) -> Task:
        """Length of an episode."""

    @property
    def signals(self) -> Sequence[Observation]:
        """Inputs of the policy."""

    @property
    def exploration(self) -> Exploration:
        """Section ``exploration``."""

    @property
    def rate_hz(self) -> float:
        """Sampling rate."""

    @property
    def period_us(self) -> int:
        """Sampling period."""

    @property
    def seed(self) -> int:
        """Seed of the run's random streams."""


class Explorer:
    """Exploration of a run.

    Calls per episode: ``signal`` and ``perturb`` while the rig is at rest; ``begin_episode``; per tick ``amplitude``,
    then ``record_outcome`` with the outcome; ``end_episode``; ``rest`` for as long as ``pause_due`` requires.
    """

    def __init__(self, config: ExplorationConfig) -> None:
        rig = config.rig
        self._exploration = config.exploration
        self._seed, self._period_us = config.seed, config.period_us
        self._steps_per_episode = episode_steps(config.task, config.rate_hz)
        self._names = tuple(a.name for a in rig.actuators)
        self._zero_amplitude = (0.0,) * len(self._names)
        exploration = self._exploration
        self._near_envelope = exploration.near_envelope if isinstance(exploration, ScheduledNoise) else None
        self._back_off = AmplitudeBackOff(exploration.back_off if isinstance(exploration, ScheduledNoise) else None)
        self._weights = WeightNoise(exploration, config.signals)
        self._ledger = Ledger(exploration.budgets)
        self._meter: ConsumptionMeter | None = None
        if self._ledger.is_active:
            self._meter = ConsumptionMeter(rig, config.period_us, exploration.budgets, self._ledger)
        self._training_steps = 0
        self._episode = 0
        self._is_noisy = False
        self._scheduled_amplitude = self._gated_amplitude = self._zero_amplitude
        self._changes_within_episode = isinstance(exploration, ScheduledNoise) and exploration.over != "episodes"
        self.pause: Pause | None = None
        """Pause required by a spent budget; an episode in progress must end at once."""
        self._restraint = self._reduction = 1.0

    @property
    def perturbs_weights(self) -> bool:
        """Whether episodes are explored with perturbed weights (`perturb`) instead of a signal."""
        return isinstance(self._exploration, ParameterNoise)

    @property
    def is_exploring(self) -> bool:
        """Whether the episode in progress has noise."""
        return self._is_noisy

    @property
    def back_off(self) -> float:
        """Factor on the amplitude after trips; 1 without recent trips."""
        return self._back_off.factor

    def is_noisy(self, kind: Kind, episode: int) -> bool:
        """Return whether an episode has noise, as training episodes do unless they are quiet."""
        exploration = self._exploration
        if kind is not Kind.TRAIN or not isinstance(exploration, ScheduledNoise):
            return False
        return not is_quiet(exploration.quiet, episode)

    def signal(self, kind: Kind, episode: int) -> list[tuple[float, ...]]:
        """Draw an episode's signal (`unit_signal`), not yet multiplied by the amplitude; return an empty list without
        noise.

        Drawing takes milliseconds, so an armed device must not wait for it.
        """
        if not self.is_noisy(kind, episode):
            return []
        rng = stream(self._seed, Role.EXPLORATION, episode)
        return unit_signal(self._exploration, rng, self._steps_per_episode, len(self._names))

    def begin_episode(self, kind: Kind, episode: int) -> None:
        """Start an episode: open its budget accounts and set its position in the schedule."""
        self._episode = episode
        self._back_off.begin_episode()
        self._ledger.begin_episode()
        if self._meter is not None:
            self._meter.begin_episode()
        self._is_noisy = self.is_noisy(kind, episode)
        self._update_schedule()
        self._update_gates()
        self.pause = self._ledger.pause()

    def restrain(self, factor: float) -> None:
        """Scale the amplitude by ``factor`` in [0, 1] from the next episode on; 1 removes the scaling."""
        self._restraint = factor

    def reduce(self, factor: float) -> None:
        """Scale the amplitude by ``factor`` in [0, 1] from the next episode on, for the rest of the run."""
        self._reduction = factor

    def perturb(self, model: bytes, episode: int) -> bytes:
        """Return the ONNX model with an episode's noise on its weights; raises ModelRefused."""
        return self._weights.perturb(model, stream(self._seed, Role.EXPLORATION, episode))

    def amplitude(self, margin: float) -> tuple[float, ...]:
        """Return the factor on each actuator's signal, given the shield's margin in the previous tick (1 if there was
        none)."""
        if not self._is_noisy:
            return self._zero_amplitude
        near_envelope = self._near_envelope
        if near_envelope is None or margin >= near_envelope.start:
            return self._gated_amplitude
        factor = attenuation(near_envelope, margin)
        return tuple([factor * a for a in self._gated_amplitude])

    def record_deviation(self, deviation: Sequence[float]) -> None:
        """Record a step's normalised distance (m,) between the actions of the perturbed and the unperturbed policy."""
        self._weights.record_deviation(deviation)

    def record_outcome(
        self, *, intervened: bool, tripped: bool, applied: Sequence[float], sensors: Sequence[int], periods: int = 1
    ) -> None:
        """Record the outcome of a tick.

        ``intervened``: whether a rule of the shield acted; ``tripped``: whether the shield entered the fallback;
        ``applied``: action (m,) in SI units; ``sensors``: counts of the frame; ``periods``: number of periods until the
        next frame, above 1 if frames were lost.
        """
        if self._is_noisy:
            self._training_steps += 1
        amplitude_changed = self._changes_within_episode and self._is_noisy
        if tripped and self._back_off.trip():
            amplitude_changed = True
        if amplitude_changed:
            self._update_schedule()
        meter = self._meter
        if meter is not None and meter.book(
            intervened=intervened, tripped=tripped, applied=applied, sensors=sensors, periods=periods
        ):
            self.pause = self._ledger.pause()
            amplitude_changed = True
        if amplitude_changed:
            self._update_gates()

    def end_episode(self) -> None:
        """Close the episode."""
        if self._is_noisy:
            self._back_off.end_noisy_episode()
        self._is_noisy = False

    @property
    def pause_due(self) -> Pause | None:
        """Pause required before the next episode."""
        pause = self.pause
        return pause if pause is not None and pause.wait_s > 0.0 else None

    def rest(self, seconds: float) -> None:
        """Account for a pause of ``seconds`` (device time); an unbounded pause ends the session."""
        if self.pause is not None and isinf(self.pause.wait_s):
            self._ledger.reset_session()
        self._ledger.advance_at_rest(0.0 if isinf(seconds) else seconds)
        self.pause = self._ledger.pause()

    def begin_session(self) -> None:
        """Start a new session after a manual resume; the accounts of hour and episode continue."""
        self._ledger.reset_session()
        self.pause = self._ledger.pause()

    def _update_schedule(self) -> None:
        """Evaluate the schedule at the run's current position."""
        exploration = self._exploration
        if not isinstance(exploration, ScheduledNoise):
            return
        x = {
            "episodes": self._episode,
            "steps": self._training_steps,
            "seconds": self._training_steps * self._period_us * 1e-6,
        }[exploration.over]
        self._scheduled_amplitude = amplitudes(exploration, self._names, x)

    def _update_gates(self) -> None:
        """Update the gates that are constant between episodes and budget bookings."""
        factor = self._ledger.factor()
        factor *= self._back_off.factor
        factor *= self._restraint * self._reduction
        self._gated_amplitude = (
            self._scheduled_amplitude if factor == 1.0 else tuple([factor * a for a in self._scheduled_amplitude])
        )

    def state(self) -> dict[str, float]:
        """Return the state between episodes as plain numbers, for resuming a run."""
        back_off_state, weight_scale = self._back_off.state, self._weights.scale
        return {
            "training_steps": self._training_steps,
            "retreat.level": back_off_state.level,
            "retreat.clean": back_off_state.clean,
            "scale.std": weight_scale.std,
            "scale.squares": weight_scale.squares,
            "scale.steps": weight_scale.steps,
            **{f"budget.{name}": value for name, value in self._ledger.state().items()},
        }

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore a saved state."""
        self._training_steps = int(state["training_steps"])
        self._back_off.state = BackOffState(int(state["retreat.level"]), int(state["retreat.clean"]))
        self._weights.scale = AdaptiveScale(state["scale.std"], state["scale.squares"], int(state["scale.steps"]))
        budget = "budget."
        self._ledger.restore({k.removeprefix(budget): v for k, v in state.items() if k.startswith(budget)})
        self.pause = self._ledger.pause()


_N_WARM_UP_RUNS: Final = 3


def perturbed_session(
    explorer: Explorer, policy: PolicySession | None, kind: Kind, episode: int
) -> PolicySession | None:
    """Return the policy with an episode's noise on its weights; None if the episode has no such noise.

    If a policy cannot be perturbed, a warning is reported and the episode runs without noise.
    """
    if policy is None or not (explorer.perturbs_weights and explorer.is_noisy(kind, episode)):
        return None
    try:
        session = PolicySession(explorer.perturb(policy.model, episode), native=policy.native)
    except ModelRefused as refusal:
        report("control", "warning", f"the policy cannot be perturbed: {refusal}")
        return None
    session.warm_up(_N_WARM_UP_RUNS)
    return session
