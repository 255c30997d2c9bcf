from __future__ import annotations

import math

import numpy as np

from onrig.sim.pendulum_star import MIN_UPRIGHT_STEPS, PendulumStar


def test_only_staying_upright_for_more_than_twenty_steps_is_rewarded() -> None:
    env = PendulumStar(g=0.0)  # without gravity it stays where it is placed
    env.reset(seed=0)
    rewards = []
    for angle_rad in [0.9, *[1.0] * 25, 1.1, *[-1.0 + 2.0 * math.pi] * 22]:
        env.state = np.array([angle_rad, 0.0])
        rewards.append(env.step(np.zeros(1, np.float32))[1])
    held = [0.0] * MIN_UPRIGHT_STEPS + [1.0] * 6
    assert rewards == [*held, 0.0, *[0.0] * MIN_UPRIGHT_STEPS, 1.0, 1.0]
    env.reset(seed=0)
    env.state = np.array([0.0, 0.0])
    assert env.step(np.zeros(1, np.float32))[1] == 0.0
