"""Configuration sections of the algorithms that replay individual experiences: DDPG, DQN, TD3, Rainbow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from onrig.hw.bounds import NotNegative, Positive, Share
from onrig.learner.algorithm_config import AlgorithmConfig, Batch, Fraction, Hidden, Image, Rate


class NetworkSize(NamedTuple):
    """Number of units in each hidden layer of the actor and of the critic."""

    actor: tuple[int, ...]
    critic: tuple[int, ...]


NETWORK_SIZES: Final[dict[str, NetworkSize]] = {
    "small": NetworkSize(actor=(50, 50), critic=(50, 50, 20)),
    "ddpg_original": NetworkSize(actor=(400, 300), critic=(400, 300)),
    "medium": NetworkSize(actor=(128, 128), critic=(128, 128)),
}
"""Network sizes by name: the first two are from Table 8 of de Bruin et al. 2018, ``medium`` is from Novati and
Koumoutsakos 2019."""


class DdpgConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """DDPG as in de Bruin et al. 2018; the defaults are the paper's settings for the pendulum."""

    home = "onrig.learner.algorithms.ddpg:Ddpg"
    home_under_refer = "onrig.learner.algorithms.refer_ddpg:ReferDdpg"
    provides_targets = True
    network: Literal["small", "ddpg_original", "medium"] = "small"
    """Network size: one from Table 8, or ``medium``, 128-128 (Novati and Koumoutsakos 2019)."""
    batch: Batch = 16
    """Number of experiences in a minibatch."""
    gamma: Fraction = 0.95
    """Discount factor of the return."""
    tau: Rate = 1e-2
    """Step size of the target networks, which the paper does not state."""
    actor_lr: Positive = 1e-4
    """Adam's learning rate for the actor."""
    critic_lr: Positive = 1e-3
    """Adam's learning rate for the critic."""
    critic_decay: NotNegative = 5e-3
    """Weight decay of the critic's weights."""
    decay: Literal["decoupled", "coupled"] = "decoupled"
    """Kind of weight decay: the paper's L2 penalty is ``coupled``, which prevents learning at these reward scales."""
    beta1: Fraction = 0.9
    """Adam's decay rate for the mean gradient."""
    beta2: Fraction = 0.999
    """Adam's decay rate for the mean squared gradient."""
    adam_eps: Positive = 1e-8
    """Adam's epsilon."""
    reward_scale: Positive = 1e-3
    """Factor applied to rewards before learning (docs/methods.md, "Reward scale")."""


class DqnConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """DQN as in de Bruin et al. 2018 (§6.3, App. B); parameters that the paper does not state are those of its DDPG
    critic."""

    home = "onrig.learner.algorithms.dqn:Dqn"
    provides_targets = True
    single_action = True
    network: Literal["small", "ddpg_original"] = "small"
    """Hidden layers, the same as in the DDPG critic of this size (Table 8): 50-50-20 or 400-300."""
    levels: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 15
    """Number of discrete actions, uniform on [-1, 1] (§6.3)."""
    batch: Batch = 16
    """Number of experiences in a minibatch."""
    gamma: Fraction = 0.95
    """Discount factor of the return."""
    target_every: Annotated[int, msgspec.Meta(ge=1)] = 200
    """Number of updates after which the network is copied to its target."""
    lr: Positive = 1e-3
    """Adam's learning rate."""
    weight_decay: NotNegative = 5e-3
    """Weight decay, which does not apply to biases."""
    decay: Literal["decoupled", "coupled"] = "decoupled"
    """Kind of weight decay, as for ``DdpgConfig`` (docs/methods.md)."""
    beta1: Fraction = 0.9
    """Adam's decay rate for the mean gradient."""
    beta2: Fraction = 0.999
    """Adam's decay rate for the mean squared gradient."""
    adam_eps: Positive = 1e-8
    """Adam's epsilon."""
    reward_scale: Positive = 1e-3
    """Factor applied to rewards before learning (docs/methods.md, "Reward scale")."""
    epsilon: tuple[tuple[NotNegative, Share], ...] = ((1.0, 0.7), (500.0, 0.01))
    """Schedule of epsilon, given as points (episode, probability of a uniformly random action); it is linear between
    the points and constant beyond them (App. B; ``onrig.runtime.explore.schedule.interpolate``)."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """List problems of the epsilon schedule."""
        if not self.epsilon:
            yield "epsilon", "expected at least one pair [episode, probability]"
        for i, (point, next_point) in enumerate(itertools.pairwise(self.epsilon), 1):
            if next_point[0] <= point[0]:
                yield f"epsilon[{i}]", f"episodes must increase, got {next_point[0]:g}"

    def rig_problems(self) -> Iterator[tuple[str, str]]:
        """Report an epsilon schedule, because the exploration's amplitude takes its place on a rig."""
        if self.epsilon != DqnConfig().epsilon:
            yield "epsilon", "only trials use epsilon: on a rig, set the exploration's amplitude"


class Td3Config(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """TD3; the defaults are those of Fujimoto et al. 2018 except for layer sizes, batch and reward scale."""

    home = "onrig.learner.algorithms.td3:Td3"
    provides_targets = True
    hidden: Hidden = (256, 256)
    """Number of units in each hidden layer of the actor and of each critic."""
    batch: Batch = 256
    """Number of experiences in a minibatch."""
    gamma: Fraction = 0.99
    """Discount factor of the return."""
    tau: Rate = 5e-3
    """Step size of the target networks at each update."""
    lr: Positive = 1e-3
    """Learning rate of actor and critics."""
    delay: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Number of critic updates per actor update."""
    targets: Literal["every", "delayed"] = "delayed"
    """When target networks are updated: after every critic update, or only together with the actor."""
    target_noise: NotNegative = 0.2
    """Standard deviation of the smoothing noise on the target policy's action."""
    noise_clip: NotNegative = 0.5
    """c: bound on the smoothing noise."""
    reward_scale: Positive = 1e-3
    """Factor applied to rewards before learning (docs/methods.md, "Reward scale")."""
    images: Image | UnsetType = UNSET
    """Image observations instead of vectors; on a rig, the cameras' images."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """List layers that do not fit the image."""
        if self.image is not None:
            yield from ((f"images.{path}", message) for path, message in self.image.problems())


class RainbowConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """Rainbow; the defaults are those of van Hasselt et al. 2019 except for levels and hidden layers."""

    home = "onrig.learner.algorithms.rainbow:Rainbow"
    provides_targets = True
    noisy_weights = True
    single_action = True
    hidden: Hidden = (128, 128)
    """Number of units in each hidden layer; all layers are shared except the last, which each of the two noisy streams
    has for itself."""
    levels: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 15
    """Number of discrete actions, uniform on [-1, 1]."""
    atoms: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 51
    """Number of atoms of the return distribution."""
    returns: tuple[float, float] = (-10.0, 10.0)
    """Lowest and highest atom, in units of the scaled reward."""
    n_steps: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20
    """Number of rewards summed in a return before it is bootstrapped."""
    batch: Batch = 32
    """Number of experiences in a minibatch."""
    gamma: Fraction = 0.99
    """Discount factor of the return."""
    target_every: Annotated[int, msgspec.Meta(ge=1)] = 2000
    """Number of updates after which the network is copied to its target."""
    lr: Positive = 1e-4
    """Adam's learning rate."""
    adam_eps: Positive = 1.5e-4
    """Adam's epsilon."""
    max_norm: Positive = 10.0
    """Maximum norm of a gradient; larger gradients are scaled down to it."""
    sigma: Positive = 0.1
    """Initial scale of the weight noise, which is divided by the square root of the layer's number of inputs."""
    reward_scale: Positive = 1e-3
    """Factor applied to rewards before learning (docs/methods.md, "Reward scale")."""
    images: Image | None = None
    """Image observations instead of vectors; on a rig, the cameras' images (van Hasselt et al. 2019: convolutions [32,
    5, 5] and [64, 5, 5])."""

    @property
    def successors(self) -> int:
        """Number of steps in the n-step return."""
        return self.n_steps

    def problems(self) -> Iterator[tuple[str, str]]:
        """List atom bounds that are in the wrong order, and layers that do not fit the image."""
        if self.returns[0] >= self.returns[1]:
            yield "returns", "expected [low, high], got {:g} and {:g}".format(*self.returns)
        if self.images is not None:
            yield from ((f"images.{path}", message) for path, message in self.images.problems())
