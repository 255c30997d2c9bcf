"""Stable-Baselines3's DDPG: same sizes, batch, gamma, tau and step sizes, its own buffer, ``train`` as it comes.

Three things are not the same: its critic takes the action at its input instead of its second layer (a few weights
more), it has one step size for both networks (of no account here), and no weight decay (work that only Onrig does).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from stable_baselines3 import DDPG
from stable_baselines3.common.logger import Logger

from onrig.learner.networks import NETWORK_SIZES
from onrig.tools.benchmarks.cases import Shape
from onrig.tools.benchmarks.learner_cases import STORED, LearnerCase, Work
from onrig.tools.benchmarks.peers import Unavailable
from onrig.tools.benchmarks.transitions import Floats, transitions


class _Nowhere(gymnasium.Env[Floats, Floats]):
    """Spaces, for the sizes; nothing is ever played."""

    def __init__(self, shape: Shape) -> None:
        self.observation_space = Box(-1.0, 1.0, (shape.n_obs,), np.float32)
        self.action_space = Box(-1.0, 1.0, (shape.n_act,), np.float32)


def build(case: LearnerCase, updates: int, seed: int) -> Callable[[], object]:
    """Make the model ready, its buffer full of the transitions that Onrig has; ``Unavailable`` for several trials."""
    if case.trials != 1:
        raise Unavailable("it knows no trial axis")
    size, config = NETWORK_SIZES[case.network], case.config
    model = DDPG(
        "MlpPolicy",
        _Nowhere(case.shape),
        learning_rate=config.critic_lr,
        batch_size=config.batch,
        gamma=config.gamma,
        tau=config.tau,
        buffer_size=STORED,
        policy_kwargs={"net_arch": {"pi": list(size.actor), "qf": list(size.critic)}},
        seed=seed,
        device="cpu",
    )
    model.set_logger(Logger(None, []))
    t = transitions(STORED, case.shape.n_obs, case.shape.n_act, seed)
    add = model.replay_buffer.add
    for i in range(STORED):
        one = t.part(i, 1)  # with the axis of the one environment
        add(one.observation, one.next_observation, one.action, one.reward / STORED, one.terminated, [{}])
    if case.work is Work.UPDATE:
        same = model.replay_buffer.sample(config.batch)
        model.replay_buffer.sample = lambda *_, **__: same
    return partial(model.train, gradient_steps=updates, batch_size=config.batch)
