"""Pendulum*: gymnasium's swing-up with a sparse reward (Oh et al. 2021, §4.1)."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from numpy.typing import NDArray

UPRIGHT_RAD: Final = math.pi / 3
"""Largest angle from upright that counts as upright."""
MIN_UPRIGHT_STEPS: Final = 20
"""Number of consecutive upright steps after which each further one is rewarded."""


class PendulumStar(PendulumEnv):
    """Dynamics of ``Pendulum-v1``, torque +-2, with a reward of 1 for each step after more than 20 upright ones.

    The paper: "reward 1.0 only if the rod is within +-pi/3 at least more than 20 steps".  This is implemented as a
    count of consecutive steps, which is not observed, so the reward is not a function of the state.
    """

    _n_upright_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start at a random angle and velocity, as in ``Pendulum-v1``."""
        self._n_upright_steps = 0
        observation, info = super().reset(seed=seed, options=options)
        return observation, info

    def step(self, u: NDArray[np.floating]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Advance one step under a torque ``u`` (1,) in N m, clipped to +-2."""
        observation, _, terminated, truncated, info = super().step(u)  # type: ignore[no-untyped-call]
        angle_rad = (float(self.state[0]) + math.pi) % (2.0 * math.pi) - math.pi
        self._n_upright_steps = self._n_upright_steps + 1 if abs(angle_rad) <= UPRIGHT_RAD else 0
        return observation, float(self._n_upright_steps > MIN_UPRIGHT_STEPS), terminated, truncated, info
