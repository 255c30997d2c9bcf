"""The hyper-parameters of DQN; reading them needs no torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from onrig.hw.bounds import NotNegative, Positive, Share
from onrig.learner.ddpg_config import Batch, Fraction


class DqnConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """DQN of de Bruin et al. 2018 (§6.3, App. B); what the paper does not state is as for the critic of its DDPG."""

    network: Literal["small", "ddpg_original"] = "small"
    """Hidden layers of the critic of that size (Table 8): 50-50-20 or 400-300."""
    levels: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 15
    """Discrete actions, uniform on [-1, 1] (§6.3)."""
    batch: Batch = 16
    gamma: Fraction = 0.95
    target_every: Annotated[int, msgspec.Meta(ge=1)] = 200
    """Updates from one copy of the network to its target to the next."""
    lr: Positive = 1e-3
    weight_decay: NotNegative = 5e-3
    """Of the weights, not of the biases."""
    decay: Literal["decoupled", "coupled"] = "decoupled"
    """As in ``DdpgConfig`` (docs/methods.md)."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    adam_eps: Positive = 1e-8
    reward_scale: Positive = 1e-3
    """Factor on every reward before it is learned from; 1e-3 pendulum."""
    epsilon: tuple[tuple[NotNegative, Share], ...] = ((1.0, 0.7), (500.0, 0.01))
    """(episode, probability of a uniformly random action) points, linear in between, constant outside (App. B):
    ``onrig.runtime.explore.schedule.interpolate`` reads it."""


def epsilon_problems(config: DqnConfig) -> list[tuple[str, str]]:
    """List what is wrong with the schedule, as (path, message) pairs."""
    problems = [] if config.epsilon else [("epsilon", "expected at least one [episode, probability]")]
    for i, (episode, _) in enumerate(config.epsilon):
        if i and episode <= config.epsilon[i - 1][0]:
            problems.append((f"epsilon[{i}]", f"episodes must increase, got {episode:g}"))
    return problems
