"""Sections of ReF-ER, NAF, V-RACER and ACER, with the settings of Novati and Koumoutsakos 2019."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from onrig.hw.bounds import NormalisedStd, NotNegative, Positive, Share
from onrig.learner.algorithm_config import AlgorithmConfig, Batch, Fraction, Hidden, Rate


class ReferSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ReF-ER (Novati and Koumoutsakos 2019); the defaults are the paper's, for 1e7 steps."""

    note_bytes: ClassVar[float] = 9.0
    """Bytes of its notes per experience."""
    rules: Literal["both", 1, 2, "none"] = "both"
    """1: no gradient from far experiences.  2: the KL divergence's is mixed in.  With ``none`` replay is plain, and the
    distance from the policies that acted is still measured."""
    c: Positive = 4.0
    """The largest importance ratio of a near experience is 1 + c at the start."""
    anneal: NotNegative = 5e-7
    """c and the step size fall as 1 / (1 + anneal k) over the updates k; 5 / T suits T updates."""
    far_share: Share = 0.1
    """D: the share of far experiences that rule 2 aims at."""
    kl: Literal["mu_pi", "pi_mu"] = "mu_pi"
    """Direction of the divergence between the policy that acted, mu, and the present one: the paper's, or that of the
    authors' code."""
    std: NormalisedStd = 0.2
    """Standard deviation of the exploration of policies that have none of their own, per normalised action."""
    standardise: bool = True
    """Whether states and rewards are scaled by what the memory holds (App. B), rewards instead of ``reward_scale``."""

    @property
    def masks(self) -> bool:
        """Whether rule 1 is in force."""
        return self.rules in ("both", 1)

    @property
    def mixes(self) -> bool:
        """Whether rule 2 is in force."""
        return self.rules in ("both", 2)


class NafConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """NAF; the defaults are those of Novati and Koumoutsakos 2019, but for the reward scale."""

    home = home_under_refer = "onrig.learner.algorithms.naf:Naf"
    provides_targets = True
    hidden: Hidden = (128, 128)
    """Units, softsign."""
    batch: Batch = 256
    """Experiences in a minibatch."""
    gamma: Fraction = 0.995
    """Discount of the return."""
    tau: Rate = 1e-2
    """Step of the targets towards the networks at each update."""
    lr: Positive = 1e-4
    """Step size of Adam."""
    beta_on: Literal["mean", "all"] = "mean"
    """Which part of the gradient the coefficient of ReF-ER's rule 2 scales: that of the mean, as in the authors' code,
    or all of it, as in the paper."""
    reward_scale: Positive = 1e-3
    """Factor of the rewards in learning (docs/methods.md, "Reward scale")."""


class RecurrentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """LSTM cells in place of hidden layers; the defaults are those of Novati and Koumoutsakos 2019 (§5.4), but for
    ``start``."""

    units: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=4, le=512, multiple_of=4)], ...], msgspec.Meta(min_length=1, max_length=4)
    ] = (32, 32)
    """Units of each cell, in series."""
    window: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 16
    """Steps that a gradient passes back through, the drawn one included."""
    start: Literal["stored", "zero"] = "stored"
    """Hidden state at the start of a window: as stored when its first experience was new, or zero, as in the
    paper."""

    @property
    def hidden_width(self) -> int:
        """Size of the hidden state: output and state of each unit."""
        return 2 * sum(self.units)


class VracerConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """V-RACER; the defaults are those of Novati and Koumoutsakos 2019, but for the reward scale."""

    home = home_under_refer = "onrig.learner.algorithms.vracer:Vracer"
    follows_episodes = True
    hidden: Hidden = (128, 128)
    """Units, softsign."""
    recurrent: RecurrentSettings | UnsetType = UNSET
    """Cells for a policy that remembers its episode.  Giving the section turns them on, even an empty one."""
    batch: Batch = 256
    """Experiences in a minibatch."""
    gamma: Fraction = 0.995
    """Discount of the return."""
    lr: Positive = 1e-4
    """Step size of Adam."""
    std: NormalisedStd = 0.2**0.5
    """Standard deviation of the policy at the start, the same in all states; it is learned from then on."""
    advantage: Literal["none", "quadratic", "gaussian"] = "none"
    """The advantage as a function of the action (App. E)."""
    retrace_every: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10
    """Updates between retraces of all episodes; a new episode is retraced at once."""
    reward_scale: Positive = 1e-3
    """Factor of the rewards in learning (docs/methods.md, "Reward scale")."""

    @property
    def window(self) -> int:
        """Window of recurrent networks."""
        return 1 if self.recurrent is UNSET else self.recurrent.window

    @property
    def note_bytes(self) -> float:
        """Five numbers, a flag and the hidden state of cells."""
        return 21.0 + (0.0 if self.recurrent is UNSET else 4.0 * self.recurrent.hidden_width)

    @property
    def size(self) -> str:
        """Units, of cells in recurrent networks."""
        return super().size if self.recurrent is UNSET else f"LSTM {'-'.join(map(str, self.recurrent.units))}"

    def home_of(self, *, refers: bool) -> str:
        """Home of the recurrent algorithm, if there are cells."""
        recurrent = "onrig.learner.algorithms.recurrent_vracer:RecurrentVracer"
        return super().home_of(refers=refers) if self.recurrent is UNSET else recurrent

    def problems(self) -> Iterator[tuple[str, str]]:
        """List hidden layers given together with LSTM cells."""
        if self.recurrent is not UNSET and self.hidden != VracerConfig().hidden:
            yield "hidden", "the cells of 'recurrent' take the place of hidden layers: give recurrent.units instead"


class AcerConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """ACER with continuous actions (Wang et al. 2017); the defaults are those of Novati and Koumoutsakos 2019 (App. A),
    but for the reward scale."""

    home = home_under_refer = "onrig.learner.algorithms.acer:Acer"
    follows_episodes = True
    bounds_its_steps = True
    hidden: Hidden = (128, 128)
    """Units of policy, value and advantage, each a network of its own; softsign."""
    batch: Batch = 24
    """Segments of episodes in a minibatch, one around each experience drawn."""
    segment: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 200
    """The longest segment: longer episodes are cut to as much."""
    gamma: Fraction = 0.995
    """Discount of the return."""
    lr: Positive = 1e-4
    """Learning rate of value and advantage."""
    policy_lr: Positive = 1e-5
    """Step size of Adam for the policy."""
    std: NormalisedStd = 0.2**0.5
    """Standard deviation of the policy at the start, the same in all states; it is learned from then on."""
    samples: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
    """Actions of the policy whose mean advantage is taken off that of an action."""
    truncation: Positive = 5.0
    """c: importance weights are cut to it, and a sample of the policy makes up for what is cut off."""
    divergence: Positive = 1.0
    """delta: how far an update may go from the average policy, to first order."""
    tau: Rate = 1e-3
    """Step of the average policy towards the present one."""
    reward_scale: Positive = 1e-3
    """Factor of the rewards in learning (docs/methods.md, "Reward scale")."""
