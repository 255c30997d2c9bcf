"""Asking a policy that is stochastic or recurrent (format 2 of its contract): noise and state in, distribution out."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, tanh
from operator import mul
from typing import Final

import numpy as np
import numpy.typing as npt

from onrig.hw.rig import Rig
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Kind, Step

_UNTRUE: Final = 1e-3
"""Difference between what a policy drew and what its mean, deviation and noise give, relative to their values where
these exceed 1, that float32 rounding does not explain (``onrig.runtime.policy.probing`` allows a tenth of it)."""


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
        """Run a policy whose observation is set; fill in its answer, of a stochastic one its distribution as well.

        ``unit`` is the noise before ``amplitude``, (m,) each; None for none.  ``step.policy`` is the action without
        noise, ``step.explored`` the one with it (SI); both are NaN if the policy fails, or its ports contradict one
        another: a draw that noise moves further than by the deviation would evade the amplitude.
        """
        # After a swap or a rollback the state is another policy's, or from before another one's ticks.
        if policy is not self._asked or step.tick != self._last + 1:
            self._asked = policy
            self._hidden = None if policy.hidden is None else np.zeros_like(policy.hidden)
        self._last = step.tick
        noise = self._still if unit is None else tuple(map(mul, amplitude, unit))
        step.policy = step.explored = self._no_answer
        try:
            if policy.noise is not None:
                policy.noise[0] = noise
            if policy.hidden is not None and self._hidden is not None:
                policy.hidden[:] = self._hidden
            policy.run()
        except Exception:  # onnxruntime's errors have no common base; for the shield a failure is NaN
            return
        if self._hidden is not None:
            if not np.isfinite(policy.hidden_out).all():  # an action that looks sound may come of it
                return
            self._hidden[:] = policy.hidden_out
        answer = tuple(policy.action[0].tolist())
        if len(answer) != len(self._still):
            return
        step.policy = step.explored = answer
        if policy.noise is not None:
            self._distribution(step, policy, noise, amplitude if unit is not None else self._still)

    def _distribution(
        self, step: Step, policy: PolicySession, noise: Sequence[float], amplitude: Sequence[float]
    ) -> None:
        mean, std, drawn = policy.distribution.tolist()
        centres, halves, answer, squashes = self._centres, self._halves, step.explored, policy.squashes
        without = []
        for j in self._actuators:  # by index: a strict zip takes longer than the rest of it
            m, s, d, spread = mean[j], std[j], drawn[j], std[j] * noise[j]
            follows = tanh(d) if squashes else min(max(d, -1.0), 1.0)
            apart = abs((answer[j] - centres[j]) / halves[j] - follows)
            # Not so written that NaN would pass.
            if not (s >= 0.0 and apart <= _UNTRUE and abs(d - m - spread) <= _UNTRUE * max(1.0, abs(m) + abs(spread))):
                step.policy = step.explored = self._no_answer
                return
            if noise[j] == 0.0:  # the answer is the mean's; computed here, it would differ in the last digits
                without.append(answer[j])
            else:
                without.append(centres[j] + halves[j] * (tanh(m) if squashes else min(max(m, -1.0), 1.0)))
        step.mean, step.drawn = tuple(mean), tuple(drawn)
        step.std, step.amplitude = tuple(map(mul, amplitude, std)), tuple(amplitude)
        if step.kind is Kind.TRAIN and min(amplitude) < 1.0:
            step.flags |= Flag.RESTRAINED
        step.policy = tuple(without)

    def measure(self, step: Step) -> None:
        """Measure how far the explored action is from the policy's, as for noise that is added."""
        deviation = 0.0
        for j in self._actuators:
            centre, half = self._centres[j], self._halves[j]
            chosen, wish = (step.explored[j] - centre) / half, (step.policy[j] - centre) / half
            deviation += abs(min(max(chosen, -1.0), 1.0) - min(max(wish, -1.0), 1.0))
        step.exploration = deviation
