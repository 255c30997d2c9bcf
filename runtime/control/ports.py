"""Evaluation of a stochastic or recurrent policy (format 2 of the contract), with its noise, state and distribution."""

from __future__ import annotations

from math import nan, tanh
from operator import mul
from typing import Final

import numpy as np
import numpy.typing as npt

from onrig.hw.rig import Rig
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Kind, Step

_DISTRIBUTION_TOLERANCE: Final = 1e-3
"""Maximum difference between a policy's draw and the draw computed from its mean, deviation and noise; relative for
values above 1.  It exceeds float32 rounding errors, and ``onrig.runtime.policy.probing`` allows only a tenth of it."""
_TRAIN: Final = Kind.TRAIN
_RESTRAINED: Final = int(Flag.RESTRAINED)
"""A plain number, because combining members of a flag enumeration would take microseconds in every tick."""


class PolicyPorts:
    """A policy's inputs and outputs other than observation and action, and their state during an episode.

    The hidden state is kept here and not in the session, because rehearsals of the tick use the same session.
    """

    def __init__(self, rig: Rig) -> None:
        self._actuators = tuple((j, a.centre, a.half_range) for j, a in enumerate(rig.actuators))
        self.failed_action = (nan,) * len(rig.actuators)
        """Action (m,) used when a policy fails: NaN, which the shield replaces."""
        self._zeros = (0.0,) * len(rig.actuators)
        self._full_amplitude = (1.0,) * len(rig.actuators)
        self.begin()

    def begin(self) -> None:
        """Clear the state at an episode's start."""
        self._last_policy: PolicySession | None = None
        self._hidden_state: npt.NDArray[np.float32] | None = None
        self._last_tick = -1

    def evaluate(
        self, step: Step, policy: PolicySession, unit: tuple[float, ...] | None, amplitude: tuple[float, ...]
    ) -> None:
        """Evaluate a policy on its input; fill in its action and, for a stochastic policy, its distribution.

        ``unit``: noise of unit amplitude, which ``amplitude`` scales, (m,) each; None without noise.  ``step.policy``
        is the action without noise, ``step.explored`` the action with noise (SI units).  Both are NaN if the policy
        fails or its outputs contradict each other, because such a draw could exceed the limit set by the amplitude.
        """
        # After a swap or a rollback, the state belongs to a different policy or is older than that policy's ticks.
        if policy is not self._last_policy or step.tick != self._last_tick + 1:
            self._last_policy = policy
            self._hidden_state = None if policy.hidden is None else np.zeros_like(policy.hidden)
        self._last_tick = step.tick
        policy_input = step.input or step.observation
        step.policy = step.explored = self.failed_action
        if unit is None:
            amplitude = noise = self._zeros
        elif amplitude == self._full_amplitude:
            noise = unit
        else:
            noise = tuple(map(mul, amplitude, unit))
        hidden_state = self._hidden_state
        try:
            if hidden_state is not None and policy.hidden is not None:
                policy.hidden[:] = hidden_state
            outputs = policy.act(policy_input if policy.noise is None else policy_input + noise)
        except Exception:  # onnxruntime's errors have no common base; NaN marks a failure for the shield
            return
        if hidden_state is not None:
            if not np.isfinite(policy.hidden_out).all():  # in the next tick it could produce a seemingly valid action
                return
            hidden_state[:] = policy.hidden_out
        if policy.noise is not None:
            self._fill_distribution(step, outputs, noise, amplitude, policy.squashes)
        elif len(outputs) == len(self._zeros):
            step.policy = step.explored = outputs

    def _fill_distribution(
        self,
        step: Step,
        outputs: tuple[float, ...],
        noise: tuple[float, ...],
        amplitude: tuple[float, ...],
        squashes: bool,
    ) -> None:
        """Fill in a stochastic policy's action and how far the noise changed it, unless its outputs contradict each
        other.

        This is a single pass over the actuators with few calls, because with cold caches each call (``abs``, ``min``,
        ``max``) takes half a microsecond.
        """
        n = len(noise)
        if len(outputs) != 4 * n:
            return
        action_without_noise, deviation = outputs[:n], 0.0
        for j, centre, half_range in self._actuators:
            action, m, s, d = outputs[j::n]
            scaled_noise = s * noise[j]
            normalised, draw_error = (action - centre) / half_range, d - m - scaled_noise
            action_error = normalised - (tanh(d) if squashes else -1.0 if d < -1.0 else 1.0 if d > 1.0 else d)
            # Written so that NaN fails the test.
            if not (s >= 0.0 and -_DISTRIBUTION_TOLERANCE <= action_error <= _DISTRIBUTION_TOLERANCE):
                return
            if not (
                -_DISTRIBUTION_TOLERANCE <= draw_error <= _DISTRIBUTION_TOLERANCE
                or abs(draw_error) <= _DISTRIBUTION_TOLERANCE * (abs(m) + abs(scaled_noise))
            ):
                return
            if noise[j] != 0.0:  # otherwise the action is the mean, and recomputing it would change the last digits
                mean = centre + half_range * (tanh(m) if squashes else -1.0 if m < -1.0 else 1.0 if m > 1.0 else m)
                action_without_noise = (*action_without_noise[:j], mean, *action_without_noise[j + 1 :])
                normalised_mean = (mean - centre) / half_range
                deviation += abs(
                    (-1.0 if normalised < -1.0 else 1.0 if normalised > 1.0 else normalised)
                    - (-1.0 if normalised_mean < -1.0 else 1.0 if normalised_mean > 1.0 else normalised_mean)
                )
        step.explored, step.policy, step.exploration = outputs[:n], action_without_noise, deviation
        step.mean, step.std, step.drawn = outputs[n : 2 * n], outputs[2 * n : 3 * n], outputs[3 * n :]
        step.amplitude = amplitude
        if amplitude != self._full_amplitude:
            step.std = tuple(map(mul, amplitude, step.std))
            if step.kind is _TRAIN:
                step.flags |= _RESTRAINED
