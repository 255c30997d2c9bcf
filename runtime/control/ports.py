"""Asking a policy that is stochastic or recurrent (format 2 of its contract): noise and state in, distribution out."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan, tanh
from operator import mul

import numpy as np
import numpy.typing as npt

from onrig.hw.rig import Rig
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Kind, Step


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

    def ask(self, step: Step, policy: PolicySession, unit: Sequence[float] | None, amplitude: Sequence[float]) -> None:
        """Run a policy whose observation is set; fill in its answer, of a stochastic one its distribution as well.

        ``unit`` is the noise before ``amplitude``, (m,) each; None for none.  ``step.policy`` is the action without
        noise, ``step.explored`` the one with it (SI); both are NaN if the policy fails.
        """
        if policy is not self._asked:  # after a swap or a rollback the state is another policy's
            self._asked = policy
            self._hidden = None if policy.hidden is None else np.zeros_like(policy.hidden)
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
        if not isfinite(sum(mean + std + drawn)):
            step.policy = step.explored = self._no_answer
            return
        step.mean, step.drawn = tuple(mean), tuple(drawn)
        step.std, step.amplitude = tuple(map(mul, amplitude, std)), tuple(amplitude)
        if step.kind is Kind.TRAIN and min(amplitude) < 1.0:
            step.flags |= Flag.RESTRAINED
        centres, halves, answer = self._centres, self._halves, step.explored
        step.policy = tuple(
            [  # by index: a strict zip takes longer than the rest of it
                # Without noise the answer is the mean's; computed here, it would differ in the last digits.
                answer[j]
                if noise[j] == 0.0
                else centres[j] + halves[j] * (tanh(mean[j]) if policy.squashes else min(max(mean[j], -1.0), 1.0))
                for j in self._actuators
            ]
        )

    def measure(self, step: Step) -> None:
        """Measure how far the explored action is from the policy's, as for noise that is added."""
        deviation = 0.0
        for j in self._actuators:
            centre, half = self._centres[j], self._halves[j]
            chosen, wish = (step.explored[j] - centre) / half, (step.policy[j] - centre) / half
            deviation += abs(min(max(chosen, -1.0), 1.0) - min(max(wish, -1.0), 1.0))
        step.exploration = deviation
