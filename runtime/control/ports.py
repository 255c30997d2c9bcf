"""Asking a policy that is stochastic or recurrent (format 2 of its contract): noise and state in, distribution out."""

from __future__ import annotations

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
_TRAIN: Final = Kind.TRAIN
_RESTRAINED: Final = int(Flag.RESTRAINED)
"""A plain number: combining flags of an enumeration takes microseconds in every tick."""


class PolicyPorts:
    """What one tick's policy is given beside the observation, and takes back: the state of an episode.

    The hidden state is kept here and not in the session, which rehearsals of the tick use as well.
    """

    def __init__(self, rig: Rig) -> None:
        self._actuators = tuple((j, a.centre, a.half_range) for j, a in enumerate(rig.actuators))
        self._no_answer = (nan,) * len(rig.actuators)
        self._still = (0.0,) * len(rig.actuators)
        self._whole = (1.0,) * len(rig.actuators)
        self.begin()

    def begin(self) -> None:
        """Forget the state: at an episode's start."""
        self._asked: PolicySession | None = None
        self._hidden: npt.NDArray[np.float32] | None = None
        self._last = -1

    def ask(
        self, step: Step, policy: PolicySession, unit: tuple[float, ...] | None, amplitude: tuple[float, ...]
    ) -> None:
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
        elif amplitude == self._whole:
            noise = unit
        else:
            noise = tuple(map(mul, amplitude, unit))
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
        noise: tuple[float, ...],
        amplitude: tuple[float, ...],
        squashes: bool,
    ) -> None:
        """Fill in a stochastic policy's answer and how far noise moves it, unless its ports contradict one another.

        One pass over the actuators, mostly of comparisons: in caches that have cooled down, each call (``abs``,
        ``min``, ``max``) takes half a microsecond.
        """
        n = len(noise)
        if len(answer) != 4 * n:
            return
        without, deviation = answer[:n], 0.0
        for j, centre, half in self._actuators:
            action, m, s, d = answer[j::n]
            spread = s * noise[j]
            taken, strays = (action - centre) / half, d - m - spread
            apart = taken - (tanh(d) if squashes else -1.0 if d < -1.0 else 1.0 if d > 1.0 else d)
            # Not so written that NaN would pass.
            if not (s >= 0.0 and -_UNTRUE <= apart <= _UNTRUE):
                return
            if not (-_UNTRUE <= strays <= _UNTRUE or abs(strays) <= _UNTRUE * (abs(m) + abs(spread))):
                return
            if noise[j] != 0.0:  # otherwise the answer is the mean's; computed here, it would differ in the last digits
                mean = centre + half * (tanh(m) if squashes else -1.0 if m < -1.0 else 1.0 if m > 1.0 else m)
                without = (*without[:j], mean, *without[j + 1 :])
                wish = (mean - centre) / half
                deviation += abs(
                    (-1.0 if taken < -1.0 else 1.0 if taken > 1.0 else taken)
                    - (-1.0 if wish < -1.0 else 1.0 if wish > 1.0 else wish)
                )
        step.explored, step.policy, step.exploration = answer[:n], without, deviation
        step.mean, step.std, step.drawn = answer[n : 2 * n], answer[2 * n : 3 * n], answer[3 * n :]
        step.amplitude = amplitude
        if amplitude != self._whole:
            step.std = tuple(map(mul, amplitude, step.std))
            if step.kind is _TRAIN:
                step.flags |= _RESTRAINED
