"""Sections of SAC and of its descendants for few experiences: REDQ, DroQ, CrossQ, RLPD."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from onrig.hw.bounds import Positive
from onrig.learner.algorithm_config import AlgorithmConfig, Batch, Fraction, Hidden, LogStd, Rate

Count = Annotated[int, msgspec.Meta(ge=1, le=100)]
Normalization = Literal["none", "layer", "batch"]
Value = Literal["minimum", "mean"]


Delay = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class SacConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """SAC with automatic temperature; the defaults are those of Haarnoja et al. 2018b except for the reward scale."""

    home = "onrig.learner.algorithms.sac:Sac"
    stochastic = True
    provides_targets = True
    hidden: Hidden = (256, 256)
    """Number of units in the hidden layers of the actor and of each critic."""
    batch: Batch = 256
    """Number of experiences in a minibatch."""
    gamma: Fraction = 0.99
    """Discount factor of the return."""
    tau: Rate = 5e-3
    """Step size of the target networks at each update."""
    lr: Positive = 3e-4
    """Learning rate of actor, critics and temperature."""
    log_std: tuple[LogStd, LogStd] = (-20.0, 2.0)
    """Bounds on the policy's log standard deviation before squashing; some implementations use [-5, 2]."""
    temperature: Positive = 1.0
    """Initial weight of the entropy, which is learned."""
    reward_scale: Positive = 1e-3
    """Factor applied to rewards before learning (docs/methods.md, "Reward scale")."""
    critics: Count = 2
    """Number of critics."""
    subset: Count = 2
    """Number of critics whose smallest value is the target's, drawn for each update if there are more critics."""
    actor_value: Value = "minimum"
    """Value that the actor maximises, over all critics."""
    delay: Delay = 1
    """Updates of the critics per update of actor and temperature."""
    normalization: Normalization = "none"
    """Normalisation: ``layer`` of the critics' hidden units, ``batch`` of all inputs of layers, also the actor's."""
    dropout: Fraction = 0.0
    """Probability with which each hidden unit of the critics is dropped, in targets and updates."""
    targets: Literal["averaged", "none"] = "averaged"
    """Target networks that follow the critics, or none: the critics are then their own targets."""
    beta1: Fraction = 0.9
    """Adam's decay rate of the mean gradient."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """List bounds that are in the wrong order, and a subset of more critics than there are."""
        if self.log_std[0] >= self.log_std[1]:
            yield "log_std", "expected [low, high], got {:g} and {:g}".format(*self.log_std)
        if self.subset > self.critics:
            yield "subset", f"expected at most the {self.critics} critics, got {self.subset}"
        if self.normalization == "batch" and self.targets != "none":
            yield "targets", "batch normalisation sees the next actions with the present ones: expected 'none'"
        if self.normalization == "batch" and self.dropout:
            yield "dropout", "batch normalisation is used without dropout: expected 0"


class RedqConfig(SacConfig, frozen=True, forbid_unknown_fields=True):
    """REDQ: SAC with the critics of Chen et al. 2021, who make 20 updates per step; layers and batch suit a rig."""

    hidden: Hidden = (64, 64)
    batch: Batch = 64
    critics: Count = 10
    actor_value: Value = "mean"
    delay: Delay = 20


class DroqConfig(SacConfig, frozen=True, forbid_unknown_fields=True):
    """DroQ: SAC with the critics of Hiraoka et al. 2022, who make 20 updates per step; layers and batch suit a rig."""

    hidden: Hidden = (64, 64)
    batch: Batch = 64
    actor_value: Value = "mean"
    delay: Delay = 20
    normalization: Normalization = "layer"
    dropout: Fraction = 0.01


class CrossqConfig(SacConfig, frozen=True, forbid_unknown_fields=True):
    """CrossQ: SAC with the networks of Bhatt et al. 2024, who make an update per step; layers and batch suit a rig."""

    hidden: Hidden = (64, 64)
    batch: Batch = 64
    lr: Positive = 1e-3
    delay: Delay = 3
    normalization: Normalization = "batch"
    targets: Literal["averaged", "none"] = "none"
    beta1: Fraction = 0.5


class RlpdConfig(SacConfig, frozen=True, forbid_unknown_fields=True):
    """RLPD: SAC with the critics of Ball et al. 2023, who make 20 updates per step and draw by ``Prior(0.5)[Uniform]``;
    layers and batch suit a rig."""

    hidden: Hidden = (64, 64)
    batch: Batch = 64
    critics: Count = 10
    actor_value: Value = "mean"
    delay: Delay = 20
    normalization: Normalization = "layer"
