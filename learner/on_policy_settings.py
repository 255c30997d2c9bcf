"""Sections of the algorithms that learn from batches of their own policies; reading them needs no torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from onrig.hw.bounds import NotNegative, Positive, Share
from onrig.learner.algorithm_config import AlgorithmConfig, Batch, Fraction, LogStd
from onrig.learner.sampler_settings import Hidden

Steps = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class OnPolicyConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """What PPO and TRPO have in common: Gaussian policies, values, advantages."""

    hidden: Hidden = (64, 64)
    """Units, tanh, of the policy's mean and of the value."""
    steps: Steps = 2048
    """N: experiences in a batch, of all actors."""
    actors: Count = 1
    """K: each gathers N / K of them."""
    batch: Batch = 64
    """M: experiences in a minibatch."""
    gamma: Fraction = 0.99
    gae_lambda: Share = 0.95
    """Of generalised advantage estimation."""
    truncations: Literal["bootstrap", "terminate"] = "bootstrap"
    """Whether the value of the last state follows where an episode ends by its time limit, or nothing."""
    log_std: LogStd = 0.0
    """Log standard deviation of the policy at the start, the same in all states; it is learned from then on."""
    filter: bool = True
    """Whether observations are standardised by their running mean and deviation, and cut to 5 deviations."""
    initial: Literal["normc", "orthogonal"] = "normc"
    """Initial weights: columns of random directions and norm 1, or orthogonal with gain sqrt(2) in hidden layers; 0.01
    times as large at the policy's mean."""
    reward_scale: Positive = 1.0

    @property
    def batch_steps(self) -> int:
        """N."""
        return self.steps

    @property
    def parallel(self) -> int:
        """K."""
        return self.actors


class PpoConfig(OnPolicyConfig, frozen=True, forbid_unknown_fields=True):
    """PPO with a clipped objective (Schulman et al. 2017), and PPO-ER: the defaults are those of Han and Sung 2017.

    PPO-ER is ``depth: 2, draw: uniform``.
    """

    implementation = "ppo:Ppo"
    stochastic = True
    on_rig = False
    depth: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    """L: last batches in the replay memory, the present one included."""
    draw: Literal["permutation", "uniform"] = "permutation"
    """How an epoch draws its minibatches: each experience once, or each at random from those of its actor."""
    epochs: Count = 10
    """T: an epoch has as many minibatches as fill the memory once."""
    lr: Positive = 3e-4
    clip: Positive = 0.2
    """epsilon: how far the importance ratio may leave 1."""
    anneal: bool = True
    """Whether ``lr`` and ``clip`` fall to 0, linearly over the steps of the run."""
    value_weight: NotNegative = 1.0
    """c, of the squared error of the value."""
    standardise: Literal["batch", "minibatch", "none"] = "batch"
    """What advantages are standardised over."""
    max_norm: Positive | None = None
    """Norm to which a gradient is cut."""
    adam_eps: Positive = 1e-5


class TrpoConfig(OnPolicyConfig, frozen=True, forbid_unknown_fields=True):
    """TRPO (Schulman et al. 2015); the defaults are those of OpenAI's baselines for MuJoCo."""

    implementation = "trpo:Trpo"
    stochastic = True
    on_rig = False
    hidden: Hidden = (32, 32)
    steps: Steps = 1024
    gae_lambda: Share = 0.98
    max_kl: Positive = 0.01
    cg_steps: Count = 10
    """Steps of conjugate gradients."""
    damping: NotNegative = 0.1
    """Multiple of the identity that is added to the Fisher matrix."""
    fisher_every: Count = 5
    """Experiences of which one enters Fisher products."""
    halvings: Count = 10
    """Steps that the line search tries, each half as long as the one before."""
    value_epochs: Count = 5
    value_lr: Positive = 1e-3


def batch_problems(config: OnPolicyConfig) -> list[tuple[str, str]]:
    """Sizes that do not go into one another, as (path, message) pairs."""
    problems = []
    if config.batch % 4:
        problems.append(("batch", f"expected a multiple of 4, got {config.batch}"))
    if config.steps % config.batch:
        problems.append(("batch", f"expected a divisor of the {config.steps} steps, got {config.batch}"))
    for at, size in (("steps", config.steps), ("batch", config.batch)):
        if size % config.actors:
            problems.append((at, f"expected a multiple of the {config.actors} actors, got {size}"))
    return problems
