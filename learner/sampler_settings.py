"""Options of the samplings, in the ``learner`` section; reading them needs no torch."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from onrig.hw.bounds import Positive, Share
from onrig.runtime.replay.memory.keepers.ranked import MAX_EXPONENT

Exponent = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_EXPONENT)]
Hidden = Annotated[tuple[Annotated[int, msgspec.Meta(ge=1, le=4096)], ...], msgspec.Meta(min_length=1, max_length=8)]
"""Units of each hidden layer."""
Sample = Annotated[int, msgspec.Meta(ge=1, le=65_536)]


class KlperSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """KLPER (Cicek et al. 2021); the number of candidates stands in the strategy: ``FIFO[KLPER(4)]``."""

    sigma: Positive = 0.1
    """Of the Gaussian that batches are compared with: 0.1 for DDPG, 0.2 for TD3 in the paper."""
    reading: Literal["covariance", "std"] = "covariance"
    """What sigma is: a covariance in the paper's equations, a standard deviation in its words (docs/methods.md)."""

    @property
    def variance(self) -> float:
        """Of each normalised action."""
        return self.sigma if self.reading == "covariance" else self.sigma**2


class ProportionalLaw(NamedTuple):
    """Proportional prioritised replay, all options settled."""

    alpha: float
    """Exponent of the priorities."""
    beta: float
    """Importance-sampling exponent at the start; it is 1 at the end."""
    scale: Literal["none", "batch_max", "global_max"]
    """What importance weights are divided by (``onrig.learner.samplers.importance.Scale``)."""
    over: Literal["episodes", "updates"]
    """What beta grows linearly over."""


PROPORTIONAL: Final = {
    "schaul2016": ProportionalLaw(0.6, 0.4, "batch_max", "episodes"),
    "oh2021": ProportionalLaw(0.5, 0.4, "none", "updates"),
}
"""Laws by paper: Schaul et al. 2016, and the PER of Oh et al. 2021 (eqs. 1, 5)."""


class ProportionalSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Proportional prioritised replay (PropPER); what is left out is that of ``law``."""

    law: Literal["schaul2016", "oh2021"] = "schaul2016"
    """Of the paper by Schaul et al. or by Oh et al. (docs/methods.md)."""
    alpha: Exponent | UnsetType = UNSET
    """Exponent of the priorities."""
    beta: Share | UnsetType = UNSET
    """Exponent of the importance weights at the start; it grows to 1."""
    scale: Literal["none", "batch_max", "global_max"] | UnsetType = UNSET
    """What weights are divided by: nothing, or the largest of the minibatch or of the memory."""
    over: Literal["episodes", "updates"] | UnsetType = UNSET
    """What ``beta`` grows over, linearly."""

    @property
    def settled(self) -> ProportionalLaw:
        """All options."""
        given = {name: getattr(self, name) for name in ProportionalLaw._fields}
        return PROPORTIONAL[self.law]._replace(**{name: value for name, value in given.items() if value is not UNSET})


class NersSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """NERS; the defaults are those of Oh et al. 2021 (Table 3)."""

    alpha: Exponent = 0.5
    """Exponent of the scores."""
    beta: Share = 0.4
    """Importance-sampling exponent at the first update; it is 1 at the last."""
    hidden: Hidden = (256, 512, 256, 128)
    """Units of the local and of the global network, outputs included; (64, 64, 32) suits a small rig."""
    score: Hidden = (256, 128, 64)
    """Units of the hidden layers of the score network; (64, 32) suits a small rig."""
    lr: Positive = 1e-4
    """Step size of Adam."""
    sample: Sample = 128
    """Replayed experiences that a step of the networks is taken on, once per episode."""
    ablation: Literal["none", "few", "local"] = "none"
    """``few``: only reward, TD error and age are features.  ``local``: without the global network (§4.3)."""


class EroSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ERO (Zha et al. 2019); the defaults are those of Oh et al. 2021 (Table 3)."""

    hidden: Hidden = (64, 64)
    """Units of the network."""
    lr: Positive = 1e-4
    """Step size of Adam."""
    sample: Sample = 64
    """Stored experiences that a step of the network is taken on, once per episode."""
