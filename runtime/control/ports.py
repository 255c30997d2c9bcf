"""Asking a policy that is stochastic or recurrent (format 2 of its contract): noise and state in, distribution out."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, tanh
from typing import Final

import numpy as np
import numpy.typing as npt

from onrig.hw.rig import Rig
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Kind, Step

_UNTRUE: Final = 1e-3
"""Difference between what a policy drew and what its mean, deviation and noise give, relative to their values where
these exceed 1, that float32 rounding does not explain (``onrig.runtime.policy.probing`` allows a tenth of it)."""
_RESTRAINED: Final = int(Flag.RESTRAINED)
"""A plain number: combining flags of an enumeration takes microseconds in every tick."""


class PolicyPorts:
    """What one tick's policy is given beside the observation, and takes back: the state of an episode.

    The hidden state is kept here and not in the session, which rehearsals of the tick use as well.
    """

    def __init__(self, rig: Rig) -> None:
        self._centres = tuple(a.centre for a in rig.actuators)
        self._halves = tuple(a.half_range for a in rig.actuators)
        self._no_answer = (nan,) * len(rig.actuators)
        self._still = (0.0,) * len(rig.actuators)
        self._actuators = range(len(rig.actuators))
        self.begin()

    def begin(self) -> None:
        """Forget the state: at an episode's start."""
        self._asked: PolicySession | None = None
        self._hidden: npt.NDArray[np.float32] | None = None
        self._last = -1

    def ask(self, step: Step, policy: PolicySession, unit: Sequence[float] | None, amplitude: Sequence[float]) -> None:
        """Run a policy on what it sees; fill in its answer, of a stochastic one its distribution as well.

        ``unit`` is the noise before ``amplitude``, (m,) each; None for none.  ``step.policy`` is the action without
        noise, ``step.explored`` the one with it (SI); both are NaN if the policy fails, or its ports contradict one
        another: a draw that noise moves further than by the deviation would evade the amplitude.
        """
        # After a swap or a rollback the state is another policy's, or from before another one's ticks.
        if policy is not self._asked or step.tick != self._last + 1:
            self._asked = policy
            self._hidden = None if policy.hidden is None else np.zeros_like(policy.hidden)
        self._last = step.tick
        seen = step.input or step.observation
        step.policy = step.explored = self._no_answer
        if unit is None:
            amplitude = noise = self._still
        else:
            noise = tuple([a * u for a, u in zip(amplitude, unit, strict=True)])
        hidden = self._hidden
        try:
            if hidden is not None and policy.hidden is not None:
                policy.hidden[:] = hidden
            answer = policy.ask(seen if policy.noise is None else seen + noise)
        except Exception:  # onnxruntime's errors have no common base; for the shield a failure is NaN
            return
        if hidden is not None:
            if not np.isfinite(policy.hidden_out).all():  # an action that looks sound may come of it
                return
            hidden[:] = policy.hidden_out
        if policy.noise is not None:
            self._distribution(step, answer, noise, amplitude, policy.squashes)
        elif len(answer) == len(self._still):
            step.policy = step.explored = answer

    def _distribution(
        self,
        step: Step,
        answer: tuple[float, ...],
        noise: Sequence[float],
        amplitude: Sequence[float],
        squashes: bool,
    ) -> None:
        """Fill in a stochastic policy's answer unless its ports contradict one another.

        Mostly by comparisons: ``abs``, ``min`` and ``max`` are calls, in every tick and for every actuator.
        """
        n = len(self._still)
        if len(answer) != 4 * n:
            return
        without, std = [], []
        for j in self._actuators:  # by index: a strict zip takes longer than the rest of it
            action, m, s, d = answer[j], answer[n + j], answer[2 * n + j], answer[3 * n + j]
            z, centre, half = noise[j], self._centres[j], self._halves[j]
            spread = s * z
            follows = tanh(d) if squashes else -1.0 if d < -1.0 else 1.0 if d > 1.0 else d
            apart, strays = (action - centre) / half - follows, d - m - spread
            # Not so written that NaN would pass.
            if not (s >= 0.0 and -_UNTRUE <= apart <= _UNTRUE):
                return
            if not (-_UNTRUE <= strays <= _UNTRUE or abs(strays) <= _UNTRUE * (abs(m) + abs(spread))):
                return
            std.append(amplitude[j] * s)
            if amplitude[j] < 1.0 and step.kind is Kind.TRAIN:
                step.flags |= _RESTRAINED
            if z == 0.0:  # the answer is the mean's; computed here, it would differ in the last digits
                without.append(action)
            else:
                without.append(centre + half * (tanh(m) if squashes else min(max(m, -1.0), 1.0)))
        step.explored, step.policy = answer[:n], tuple(without)
        step.mean, step.std, step.drawn = answer[n : 2 * n], tuple(std), answer[3 * n :]
        step.amplitude = tuple(amplitude)

    def measure(self, step: Step) -> None:
        """Measure how far the explored action is from the policy's, as for noise that is added."""
        deviation = 0.0
        for j in self._actuators:
            centre, half = self._centres[j], self._halves[j]
            chosen, wish = (step.explored[j] - centre) / half, (step.policy[j] - centre) / half
            deviation += abs(min(max(chosen, -1.0), 1.0) - min(max(wish, -1.0), 1.0))
        step.exploration = deviation
