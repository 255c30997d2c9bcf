"""Configuration sections of SAC and its sample-efficient descendants: REDQ, DroQ, CrossQ, RLPD."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from onrig.hw.bounds import Positive
from onrig.learner.algorithm_config import AlgorithmConfig, Batch, Fraction, Hidden, Image, LogStd, Rate

Count = Annotated[int, msgspec.Meta(ge=1, le=100)]
Delay = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Value = Literal["minimum", "mean"]
Normalization = Literal["none", "layer", "batch"]
Targets = Literal["averaged", "none"]


class SacOptions(NamedTuple):
    """Options of SAC's family, all resolved; the defaults are those of SAC."""

    critics: int = 2
    subset: int = 2
    actor_value: Value = "minimum"
    delay: int = 1
    normalization: Normalization = "none"
    dropout: float = 0.0
    targets: Targets = "averaged"
    beta1: float = 0.9


class SacConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """SAC with automatic temperature; the defaults are those of Haarnoja et al. 2018b except for the reward scale.

    Unset options default to SAC's.  They are omitted from a run's configuration, and so from its identity.
    """

    home = "onrig.learner.algorithms.sac:Sac"
    stochastic = True
    provides_targets = True
    hidden: Hidden = (256, 256)
    """Number of units in each hidden layer of the actor and of each critic."""
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
    """Initial weight of the entropy; the weight is learned."""
    reward_scale: Positive = 1e-3
    """Factor applied to rewards before learning (docs/methods.md, "Reward scale")."""
    critics: Count | UnsetType = UNSET
    """Number of critics (SAC: 2)."""
    subset: Count | UnsetType = UNSET
    """Number of critics whose minimum is the target's value (2); if fewer than all, they are drawn anew for each
    update."""
    actor_value: Value | UnsetType = UNSET
    """What the actor maximises: the minimum or the mean of all critics' values (minimum)."""
    delay: Delay | UnsetType = UNSET
    """Number of critic updates per update of actor and temperature (1)."""
    normalization: Normalization | UnsetType = UNSET
    """Kind of normalisation: ``layer`` for the critics' hidden units, ``batch`` for the inputs of all layers (none)."""
    dropout: Fraction | UnsetType = UNSET
    """Dropout probability of the critics' hidden units, in targets and updates (SAC: 0)."""
    targets: Targets | UnsetType = UNSET
    """Target networks: ``averaged`` ones that follow the critics, or ``none``, so that the critics are their own
    targets (averaged)."""
    beta1: Fraction | UnsetType = UNSET
    """Adam's decay rate for the mean gradient (0.9)."""
    images: Image | UnsetType = UNSET
    """Image observations instead of vectors; on a rig, the cameras' images.  Cannot be combined with normalisation or
    dropout."""

    @property
    def resolved_options(self) -> SacOptions:
        settings = {name: getattr(self, name) for name in SacOptions._fields}
        return SacOptions(**{name: value for name, value in settings.items() if value is not UNSET})

    @property
    def supports_images(self) -> bool:
        return self.resolved_options.normalization == "none" and not self.resolved_options.dropout

    def problems(self) -> Iterator[tuple[str, str]]:
        """List bounds in the wrong order, a subset that is too large, and options that are incompatible with batch
        normalisation or images."""
        if self.log_std[0] >= self.log_std[1]:
            yield "log_std", "expected [low, high], got {:g} and {:g}".format(*self.log_std)
        options = self.resolved_options
        if options.subset > options.critics:
            yield "subset", f"expected at most the {options.critics} critics, got {options.subset}"
        if options.normalization == "batch" and options.targets != "none":
            yield "targets", "batch normalisation evaluates current and next actions in one batch: expected 'none'"
        if options.normalization == "batch" and options.dropout:
            yield "dropout", "batch normalisation is used without dropout: expected 0"
        if self.image is not None:
            yield from ((f"images.{path}", message) for path, message in self.image.problems())
            if options.normalization != "none":
                yield "normalization", "networks for images have no normalisation: set it to 'none', or remove images"
            if options.dropout:
                yield "dropout", "networks for images have no dropout: set it to 0, or remove images"


class RedqConfig(SacConfig, frozen=True, forbid_unknown_fields=True):
    """REDQ: SAC with the critics of Chen et al. 2021, who make 20 updates per step; layer sizes and batch are chosen
    for a rig."""

    hidden: Hidden = (64, 64)
    batch: Batch = 64
    critics: Count | UnsetType = 10
    actor_value: Value | UnsetType = "mean"
    delay: Delay | UnsetType = 20


class DroqConfig(SacConfig, frozen=True, forbid_unknown_fields=True):
    """DroQ: SAC with the critics of Hiraoka et al. 2022, who make 20 updates per step; layer sizes and batch are chosen
    for a rig."""

    hidden: Hidden = (64, 64)
    batch: Batch = 64
    actor_value: Value | UnsetType = "mean"
    delay: Delay | UnsetType = 20
    normalization: Normalization | UnsetType = "layer"
    dropout: Fraction | UnsetType = 0.01


class CrossqConfig(SacConfig, frozen=True, forbid_unknown_fields=True):
    """CrossQ: SAC with the networks of Bhatt et al. 2024, who make one update per step; layer sizes and batch are
    chosen for a rig."""

    hidden: Hidden = (64, 64)
    batch: Batch = 64
    lr: Positive = 1e-3
    delay: Delay | UnsetType = 3
    normalization: Normalization | UnsetType = "batch"
    targets: Targets | UnsetType = "none"
    beta1: Fraction | UnsetType = 0.5
    reward_scale: Positive = 0.1
    """Factor applied to rewards before learning. The values of batch-normalised critics must not be small: on the
    pendulum, CrossQ learned with scaled rewards that span 4 to 12, but not 1.2 (docs/methods.md, "REDQ, DroQ, CrossQ
    and RLPD")."""


class RlpdConfig(SacConfig, frozen=True, forbid_unknown_fields=True):
    """RLPD: SAC with the critics of Ball et al. 2023, who make 20 updates per step and sample with
    ``Prior(0.5)[Uniform]``; layer sizes and batch are chosen for a rig."""

    hidden: Hidden = (64, 64)
    batch: Batch = 64
    critics: Count | UnsetType = 10
    actor_value: Value | UnsetType = "mean"
    delay: Delay | UnsetType = 20
    normalization: Normalization | UnsetType = "layer"
