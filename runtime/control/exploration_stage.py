"""Exploration stage of the tick: the episode's noise on the policy's action (de Bruin et al. 2018, App. B.2)."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Final

from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.explore.settings import EpsilonGreedy
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Kind, Step
from onrig.runtime.run_config import RunConfig


class ExplorationStage:
    """Noise of the current episode: a signal, or the effect of a perturbed policy, times the explorer's amplitude."""

    def __init__(self, config: RunConfig, explorer: Explorer | None) -> None:
        """Without an ``explorer`` the amplitude is 1."""
        self._explorer: Final = explorer
        self._is_stochastic: Final = config.stochastic
        self._uses_random_levels: Final = isinstance(config.exploration, EpsilonGreedy)
        self._ranges: Final = tuple((a.centre, a.half_range) for a in config.rig.actuators)
        self._full_amplitude: Final = (1.0,) * len(self._ranges)
        self.begin(Kind.TRAIN, [])

    def begin(self, kind: Kind, noise: list[tuple[float, ...]], perturbed: PolicySession | None = None) -> None:
        """Start an episode; arguments as for ``Tick.begin``."""
        is_evaluation = kind is Kind.EVAL
        self._policy_noise = noise if self._is_stochastic else []
        self._added_noise = [] if self._is_stochastic or is_evaluation else noise
        self._perturbed_policy = None if is_evaluation else perturbed

    def drop_perturbed(self) -> None:
        """Stop exploring with the perturbed policy: the policy it was derived from no longer acts."""
        self._perturbed_policy = None

    def policy_noise(self, k: int, margin: float) -> tuple[tuple[float, ...] | None, tuple[float, ...]]:
        """Return a stochastic policy's noise input (m,) in step ``k``, None without noise, and the amplitude (m,) that
        scales it."""
        return self._policy_noise[k] if k < len(self._policy_noise) else None, self._amplitude(margin)

    def apply(self, step: Step, k: int, margin: float) -> None:
        """Add the noise of the episode's step ``k`` to the action, clip the sum, and record its deviation.

        ``margin``: the shield's margin in the previous tick.  A stochastic policy's action already contains its noise.
        """
        if self._is_stochastic and step.drawn:
            return
        signal: Sequence[float] | None
        if self._perturbed_policy is not None:
            signal = self._perturbation_signal(step, self._perturbed_policy)
        else:
            signal = self._added_noise[k] if k < len(self._added_noise) else None
        if signal is None:
            step.explored = step.policy
            return
        step.amplitude = amplitudes = self._amplitude(margin)
        if self._uses_random_levels:
            self._replace_by_random_level(step, *signal)
            return
        explored, deviation = [], 0.0
        for value, noise_value, amplitude, (centre, half_range) in zip(
            step.policy, signal, amplitudes, self._ranges, strict=True
        ):
            if not isfinite(value):  # left to the shield; noise would only hide it
                step.explored, step.exploration = step.policy, 0.0
                return
            normalised_policy = (value - centre) / half_range
            normalised_explored = min(max(normalised_policy + amplitude * noise_value, -1.0), 1.0)
            deviation += abs(normalised_explored - min(max(normalised_policy, -1.0), 1.0))
            explored.append(centre + half_range * normalised_explored)
        step.explored = tuple(explored)
        step.exploration = deviation

    def _amplitude(self, margin: float) -> tuple[float, ...]:
        return self._full_amplitude if self._explorer is None else self._explorer.amplitude(margin)

    def _replace_by_random_level(self, step: Step, chance: float, level: float) -> None:
        """Replace the single actuator's action with a random level (normalised) if ``chance`` is below epsilon."""
        step.explored = step.policy
        if chance < step.amplitude[0] and isfinite(step.policy[0]):  # NaN is left to the shield
            ((centre, half_range),) = self._ranges
            step.explored = (centre + half_range * level,)
            normalised_explored, normalised_policy = (
                (a[0] - centre) / half_range for a in (step.explored, step.policy)
            )
            step.exploration = abs(min(max(normalised_explored, -1.0), 1.0) - min(max(normalised_policy, -1.0), 1.0))

    def _perturbation_signal(self, step: Step, perturbed: PolicySession) -> list[float] | None:
        """Return the normalised difference (m,) between the perturbed policy's action and the acting policy's; None if
        either action is missing or non-finite."""
        try:
            perturbed_action = perturbed.act(step.input or step.observation)
        except Exception:  # onnxruntime's errors have no common base
            return None
        deviation = []
        for value, perturbed_value, (centre, half_range) in zip(
            step.policy, perturbed_action, self._ranges, strict=True
        ):
            if not (isfinite(value) and isfinite(perturbed_value)):
                return None
            normalised_policy, normalised_perturbed = (
                (value - centre) / half_range,
                (perturbed_value - centre) / half_range,
            )
            deviation.append(min(max(normalised_perturbed, -1.0), 1.0) - min(max(normalised_policy, -1.0), 1.0))
        if self._explorer is not None:
            self._explorer.record_deviation(deviation)
        return deviation
