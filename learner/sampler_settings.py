"""Descriptions of the sampling strategies: notation, requirements, memory, and options in the ``learner`` section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from onrig.hw.bounds import Positive, Share
from onrig.learner.algorithm_config import AlgorithmConfig, Hidden
from onrig.runtime.memory.keepers.keeper import Parameter, Signal
from onrig.runtime.memory.keepers.ranked import MAX_EXPONENT
from onrig.runtime.memory.order.ranked import BYTES_PER_SLOT
from onrig.runtime.memory.strategy import Sampling

Exponent = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_EXPONENT)]
Sample = Annotated[int, msgspec.Meta(ge=1, le=65_536)]


class SamplerSettings(Sampling, frozen=True, forbid_unknown_fields=True):
    """Description of a sampling strategy, with checks against the algorithm that uses it."""

    common: ClassVar[tuple[str, ...]] = ()
    """Names of the sampler's settings that are fields of ``learner`` itself, not of the sampler's section."""

    def exponent(self, learner: Any) -> float | None:
        """Return the exponent of the priorities, which experiments vary, for this ``learner`` section; None for a
        sampling strategy that has no exponent."""
        return None

    def problems(self, algorithm: str, algorithm_config: AlgorithmConfig) -> Iterator[tuple[str, str]]:
        """List reasons why the sampling strategy cannot serve an algorithm, as (path in the run, message)."""
        return iter(())


class UniformSettings(SamplerSettings, frozen=True, forbid_unknown_fields=True):
    """Uniform sampling."""

    home = "onrig.learner.samplers.uniform:Uniform"
    corrections = ("FIS",)


class RankSettings(SamplerSettings, frozen=True, forbid_unknown_fields=True):
    """Rank-based prioritised replay (Schaul et al. 2016); its exponent is ``learner.per_alpha``."""

    home = "onrig.learner.samplers.rank_per:RankPer"
    trials_home = "onrig.learner.trials.sampling:build_rank_per_sampling"
    corrections = ("IS", "FIS")
    bytes_per_slot = BYTES_PER_SLOT + 8.0
    common = ("per_alpha",)

    def exponent(self, learner: Any) -> float | None:
        return float(learner.per_alpha)


class KlperSettings(SamplerSettings, frozen=True, forbid_unknown_fields=True):
    """KLPER (Cicek et al. 2021); the number of candidates is part of the strategy: ``FIFO[KLPER(4)]``."""

    home = "onrig.learner.samplers.klper:Klper"
    trials_home = "onrig.learner.trials.sampling:build_klper_sampling"
    can_be_contained = False
    section = "klper"
    parameter = Parameter("N", "number", "candidates", 64, 1, 4, is_integer=True)
    sigma: Positive = 0.1
    """Sigma of the Gaussian with which batches are compared (see ``reading``); the paper uses 0.1 for DDPG and 0.2 for
    TD3."""
    reading: Literal["covariance", "std"] = "covariance"
    """Meaning of sigma: a covariance, as in the paper's equations, or a standard deviation, as in its text
    (docs/methods.md)."""

    @property
    def variance(self) -> float:
        """Variance of each normalised action."""
        return self.sigma if self.reading == "covariance" else self.sigma**2

    def problems(self, algorithm: str, algorithm_config: AlgorithmConfig) -> Iterator[tuple[str, str]]:
        """Report minibatches of a single experience, and recurrent policies."""
        if algorithm_config.batch < 2:
            message = f"KLPER compares variances: expected a batch of at least 2, got {algorithm_config.batch}"
            yield f"learner.{algorithm}.batch", message
        if algorithm_config.window > 1:
            message = "KLPER evaluates the policy at single observations, but a recurrent policy needs the episode"
            yield "selection.strategy", f"{message}: choose another strategy"


class ProportionalOptions(NamedTuple):
    """Options of proportional prioritised replay, with every option set."""

    alpha: float
    """Exponent of the priorities."""
    beta: float
    """Initial importance-sampling exponent, which grows to 1."""
    scale: Literal["none", "batch_max", "global_max"]
    """Divisor of importance weights (``onrig.learner.samplers.importance.Scale``)."""
    over: Literal["episodes", "updates"]
    """Axis along which beta grows linearly."""


OPTIONS_BY_VARIANT: Final = {
    "schaul2016": ProportionalOptions(0.6, 0.4, "batch_max", "episodes"),
    "oh2021": ProportionalOptions(0.5, 0.4, "none", "updates"),
}
"""Options of each variant: that of Schaul et al. 2016, and the PER of Oh et al. 2021 (eqs. 1, 5)."""


class ProportionalSettings(SamplerSettings, frozen=True, forbid_unknown_fields=True):
    """Proportional prioritised replay (PropPER); ``law`` determines the options that are not set."""

    home = "onrig.learner.samplers.proportional_per:ProportionalPer"
    section = "prop_per"
    corrections = ("IS",)
    bytes_per_slot = 17.0
    law: Literal["schaul2016", "oh2021"] = "schaul2016"
    """Variant: that of Schaul et al. 2016, or that of Oh et al. 2021 (docs/methods.md)."""
    alpha: Exponent | UnsetType = UNSET
    """Exponent of the priorities."""
    beta: Share | UnsetType = UNSET
    """Initial exponent of the importance weights, which grows to 1."""
    scale: Literal["none", "batch_max", "global_max"] | UnsetType = UNSET
    """Divisor of the importance weights: none, or the largest weight in the minibatch or in the memory."""
    over: Literal["episodes", "updates"] | UnsetType = UNSET
    """Axis along which ``beta`` grows linearly."""

    def exponent(self, learner: Any) -> float | None:
        return self.resolved_options.alpha

    @property
    def resolved_options(self) -> ProportionalOptions:
        configured_values = {name: getattr(self, name) for name in ProportionalOptions._fields}
        return OPTIONS_BY_VARIANT[self.law]._replace(
            **{name: value for name, value in configured_values.items() if value is not UNSET}
        )


class PriorSettings(SamplerSettings, frozen=True, forbid_unknown_fields=True):
    """Symmetric sampling of RLPD (Ball et al. 2023): a share of each minibatch comes from the run's initial experiences
    (``selection.seed_from``), the remainder from the run's own; both are drawn by the strategy in brackets."""

    home = "onrig.learner.samplers.prior:Prior"
    parameter = Parameter("share", "share", "prior experiences", 1.0, example=0.5)
    contains_sampling = True
    can_be_contained = False
    keeps_seeds = True


class NersSettings(SamplerSettings, frozen=True, forbid_unknown_fields=True):
    """NERS; the defaults are those of Oh et al. 2021 (Table 3)."""

    home = "onrig.learner.samplers.ners:Ners"
    can_be_contained = False
    section = "ners"
    required_signals = frozenset({Signal.TARGET})
    bytes_per_slot = 26.0
    alpha: Exponent = 0.5
    """Exponent of the scores."""
    beta: Share = 0.4
    """Importance-sampling exponent at the first update, which grows to 1 at the last one."""
    hidden: Hidden = (256, 512, 256, 128)
    """Number of units in each layer of the local and the global network, including the output layer; (64, 64, 32) suits
    a small rig."""
    score: Hidden = (256, 128, 64)
    """Number of units in each hidden layer of the score network; (64, 32) suits a small rig."""
    lr: Positive = 1e-4
    """Adam's learning rate."""
    sample: Sample = 128
    """Number of replayed experiences in the networks' gradient step, which is taken once per episode."""
    embedding: Hidden = (256, 64, 32)
    """For images: number of units in each layer after the convolutions, which have the same sizes as the
    algorithm's."""
    ablation: Literal["none", "few", "local"] = "none"
    """``few``: only reward, TD error and age are features.  ``local``: the global network is omitted (§4.3)."""


class EroSettings(SamplerSettings, frozen=True, forbid_unknown_fields=True):
    """ERO (Zha et al. 2019); the defaults are those of Oh et al. 2021 (Table 3)."""

    home = "onrig.learner.samplers.ero:Ero"
    can_be_contained = False
    section = "ero"
    bytes_per_slot = 25.5
    hidden: Hidden = (64, 64)
    """Number of units in each hidden layer of the network."""
    lr: Positive = 1e-4
    """Adam's learning rate."""
    sample: Sample = 64
    """Number of stored experiences in the network's gradient step, which is taken once per episode."""
