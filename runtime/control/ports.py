"""Evaluation of a stochastic or recurrent policy (format 2 of its contract): noise and state in, distribution out."""

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
"""Difference between a policy's draw and that computed from its mean, deviation and noise, relative to their values if
above 1, that exceeds float32 rounding (``onrig.runtime.policy.probing`` allows a tenth of it)."""
_TRAIN: Final = Kind.TRAIN
_RESTRAINED: Final = int(Flag.RESTRAINED)
"""A plain number, because combining flags of an enumeration takes microseconds in every tick."""


class PolicyPorts:
    """Inputs and outputs of a policy other than observation and action: the state of an episode.

    The hidden state is kept here and not in the session, which rehearsals of the tick also use.
    """

    def __init__(self, rig: Rig) -> None:
        self._actuators = tuple((j, a.centre, a.half_range) for j, a in enumerate(rig.actuators))
        self._no_answer = (nan,) * len(rig.actuators)
        self._zeros = (0.0,) * len(rig.actuators)
        self._full_amplitude = (1.0,) * len(rig.actuators)
        self.begin()

    def begin(self) -> None:
        """Clear the state at an episode's start."""
        self._asked: PolicySession | None = None
        self._hidden: npt.NDArray[np.float32] | None = None
        self._last = -1

    def ask(
        self, step: Step, policy: PolicySession, unit: tuple[float, ...] | None, amplitude: tuple[float, ...]
    ) -> None:
        """Evaluate a policy on its input; fill in its answer and, for a stochastic policy, its distribution.

        ``unit``: noise before ``amplitude``, (m,) each; None for none.  ``step.policy`` is the action without noise,
        ``step.explored`` the action with noise (SI units); both are NaN if the policy fails, or if its ports contradict
        each other: a draw moved by noise further than its deviation would evade the amplitude.
        """
        # After a swap or a rollback the state belongs to another policy, or predates ticks of another policy.
        if policy is not self._asked or step.tick != self._last + 1:
            self._asked = policy
            self._hidden = None if policy.hidden is None else np.zeros_like(policy.hidden)
        self._last = step.tick
        policy_input = step.input or step.observation
        step.policy = step.explored = self._no_answer
        if unit is None:
            amplitude = noise = self._zeros
        elif amplitude == self._full_amplitude:
            noise = unit
        else:
            noise = tuple(map(mul, amplitude, unit))
        hidden = self._hidden
        try:
            if hidden is not None and policy.hidden is not None:
                policy.hidden[:] = hidden
            answer = policy.ask(policy_input if policy.noise is None else policy_input + noise)
        except Exception:  # onnxruntime's errors have no common base; for the shield a failure is NaN
            return
        if hidden is not None:
            if not np.isfinite(policy.hidden_out).all():  # it could produce a seemingly valid action
                return
            hidden[:] = policy.hidden_out
        if policy.noise is not None:
            self._distribution(step, answer, noise, amplitude, policy.squashes)
        elif len(answer) == len(self._zeros):
            step.policy = step.explored = answer

    def _distribution(
        self,
        step: Step,
        answer: tuple[float, ...],
        noise: tuple[float, ...],
        amplitude: tuple[float, ...],
        squashes: bool,
    ) -> None:
        """Fill in a stochastic policy's answer and its change by noise, unless its ports contradict each other.

        One pass over the actuators, mostly with comparisons: with cold caches, each call (``abs``, ``min``, ``max``)
        takes half a microsecond.
        """
        n = len(noise)
        if len(answer) != 4 * n:
            return
        without, deviation = answer[:n], 0.0
        for j, centre, half in self._actuators:
            action, m, s, d = answer[j::n]
            spread = s * noise[j]
            normalised, strays = (action - centre) / half, d - m - spread
            apart = normalised - (tanh(d) if squashes else -1.0 if d < -1.0 else 1.0 if d > 1.0 else d)
            # Written so that NaN fails the comparison.
            if not (s >= 0.0 and -_DISTRIBUTION_TOLERANCE <= apart <= _DISTRIBUTION_TOLERANCE):
                return
            if not (
                -_DISTRIBUTION_TOLERANCE <= strays <= _DISTRIBUTION_TOLERANCE
                or abs(strays) <= _DISTRIBUTION_TOLERANCE * (abs(m) + abs(spread))
            ):
                return
            if noise[j] != 0.0:  # otherwise the answer is the mean; recomputed, it would differ in the last digits
                mean = centre + half * (tanh(m) if squashes else -1.0 if m < -1.0 else 1.0 if m > 1.0 else m)
                without = (*without[:j], mean, *without[j + 1 :])
                wish = (mean - centre) / half
                deviation += abs(
                    (-1.0 if normalised < -1.0 else 1.0 if normalised > 1.0 else normalised)
                    - (-1.0 if wish < -1.0 else 1.0 if wish > 1.0 else wish)
                )
        step.explored, step.policy, step.exploration = answer[:n], without, deviation
        step.mean, step.std, step.drawn = answer[n : 2 * n], answer[2 * n : 3 * n], answer[3 * n :]
        step.amplitude = amplitude
        if amplitude != self._full_amplitude:
            step.std = tuple(map(mul, amplitude, step.std))
            if step.kind is _TRAIN:
                step.flags |= _RESTRAINED
