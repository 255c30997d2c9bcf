"""Configuration sections of ReF-ER, NAF, V-RACER and ACER; the defaults are those of Novati and Koumoutsakos 2019."""

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
    """Number of bytes that ReF-ER's notes take per experience."""
    rules: Literal["both", 1, 2, "none"] = "both"
    """Active rules: with rule 1, far experiences contribute no gradient; with rule 2, the gradient of the KL divergence
    is mixed in.  ``none``: plain replay, but the distance from the behaviour policies is still measured."""
    c: Positive = 4.0
    """c: the initial maximum importance ratio of a near experience is 1 + c."""
    anneal: NotNegative = 5e-7
    """After k updates, c and the learning rate are 1 / (1 + anneal k) times their initial values; 5 / T suits a run of
    T updates."""
    far_share: Share = 0.1
    """D: target share of far experiences for rule 2."""
    kl: Literal["mu_pi", "pi_mu"] = "mu_pi"
    """Direction of the divergence between the behaviour policy mu and the current policy pi: as in the paper
    (``mu_pi``), or as in the authors' code (``pi_mu``)."""
    std: NormalisedStd = 0.2
    """Standard deviation of the exploration noise, per normalised action, for policies that have no noise of their
    own."""
    standardise: bool = True
    """Whether states and rewards are scaled by statistics of the memory (App. B); replaces ``reward_scale``."""

    @property
    def uses_rule_1(self) -> bool:
        """Whether rule 1 is active."""
        return self.rules in ("both", 1)

    @property
    def uses_rule_2(self) -> bool:
        """Whether rule 2 is active."""
        return self.rules in ("both", 2)


class NafConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """NAF; the defaults are those of Novati and Koumoutsakos 2019 except for the reward scale."""

    home = home_under_refer = "onrig.learner.algorithms.naf:Naf"
    provides_targets = True
    hidden: Hidden = (128, 128)
    """Number of softsign units in each hidden layer."""
    batch: Batch = 256
    """Number of experiences in a minibatch."""
    gamma: Fraction = 0.995
    """Discount factor of the return."""
    tau: Rate = 1e-2
    """Step size of the target networks at each update."""
    lr: Positive = 1e-4
    """Adam's learning rate."""
    beta_on: Literal["mean", "all"] = "mean"
    """Part of the gradient that the coefficient of ReF-ER's rule 2 scales: the gradient of the mean, as in the authors'
    code, or all of it, as in the paper."""
    reward_scale: Positive = 1e-3
    """Factor applied to rewards before learning (docs/methods.md, "Reward scale")."""


class RecurrentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """LSTM cells in place of hidden layers; the defaults are those of Novati and Koumoutsakos 2019 (§5.4), except for
    ``start``."""

    units: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=4, le=512, multiple_of=4)], ...], msgspec.Meta(min_length=1, max_length=4)
    ] = (32, 32)
    """Number of units in each of the cells, which are connected in series."""
    window: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 16
    """Number of steps through which a gradient is backpropagated, including the drawn one."""
    start: Literal["stored", "zero"] = "stored"
    """Hidden state at the start of a window: the one stored when its first experience was new, or zero, as in the
    paper."""

    @property
    def hidden_width(self) -> int:
        """Size of the hidden state: output and cell state of each unit."""
        return 2 * sum(self.units)


class VracerConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """V-RACER; the defaults are those of Novati and Koumoutsakos 2019 except for the reward scale."""

    home = home_under_refer = "onrig.learner.algorithms.vracer:Vracer"
    needs_episodes = True
    hidden: Hidden = (128, 128)
    """Number of softsign units in each hidden layer."""
    recurrent: RecurrentSettings | UnsetType = UNSET
    """LSTM cells, for policies with memory.  The presence of this section enables them, even if it is empty."""
    batch: Batch = 256
    """Number of experiences in a minibatch."""
    gamma: Fraction = 0.995
    """Discount factor of the return."""
    lr: Positive = 1e-4
    """Adam's learning rate."""
    std: NormalisedStd = 0.2**0.5
    """Initial standard deviation of the policy, which is learned and the same in all states."""
    advantage: Literal["none", "quadratic", "gaussian"] = "none"
    """Form of the advantage as a function of the action (App. E)."""
    retrace_every: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10
    """Number of updates between two retraces of all episodes; a new episode is retraced immediately."""
    reward_scale: Positive = 1e-3
    """Factor applied to rewards before learning (docs/methods.md, "Reward scale")."""

    @property
    def window(self) -> int:
        """Window of recurrent networks; 1 for others."""
        return 1 if self.recurrent is UNSET else self.recurrent.window

    @property
    def note_bytes(self) -> float:
        """Number of bytes per experience: five numbers, a flag, and the hidden state of the cells."""
        return 21.0 + (0.0 if self.recurrent is UNSET else 4.0 * self.recurrent.hidden_width)

    @property
    def size(self) -> str:
        """Number of units in each hidden layer, or in each cell if recurrent."""
        return super().size if self.recurrent is UNSET else f"LSTM {'-'.join(map(str, self.recurrent.units))}"

    def home_of(self, *, with_refer: bool) -> str:
        """Return the module and class, which are those of the recurrent algorithm if ``recurrent`` is set."""
        recurrent = "onrig.learner.algorithms.recurrent_vracer:RecurrentVracer"
        return super().home_of(with_refer=with_refer) if self.recurrent is UNSET else recurrent

    def problems(self) -> Iterator[tuple[str, str]]:
        """List hidden layers that are set together with LSTM cells."""
        if self.recurrent is not UNSET and self.hidden != VracerConfig().hidden:
            yield "hidden", "the cells of 'recurrent' replace the hidden layers: set recurrent.units instead"


class AcerConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """ACER with continuous actions (Wang et al. 2017); the defaults are those of Novati and Koumoutsakos 2019 (App. A)
    except for the reward scale."""

    home = home_under_refer = "onrig.learner.algorithms.acer:Acer"
    needs_episodes = True
    limits_policy_steps = True
    hidden: Hidden = (128, 128)
    """Number of softsign units in each hidden layer of policy, value and advantage, which are separate networks."""
    batch: Batch = 24
    """Number of episode segments in a minibatch, one around each drawn experience."""
    segment: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 200
    """Maximum length of a segment; longer episodes are cut into several segments."""
    gamma: Fraction = 0.995
    """Discount factor of the return."""
    lr: Positive = 1e-4
    """Adam's learning rate for value and advantage."""
    policy_lr: Positive = 1e-5
    """Adam's learning rate for the policy."""
    std: NormalisedStd = 0.2**0.5
    """Initial standard deviation of the policy, which is learned and the same in all states."""
    samples: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
    """Number of actions sampled from the policy, whose mean advantage is subtracted from an action's advantage."""
    truncation: Positive = 5.0
    """c: bound on importance weights; an action sampled from the policy compensates for the truncated part."""
    divergence: Positive = 1.0
    """delta: maximum growth of the divergence from the average policy in an update, to first order."""
    tau: Rate = 1e-3
    """Step size of the average policy towards the current one."""
    reward_scale: Positive = 1e-3
    """Factor applied to rewards before learning (docs/methods.md, "Reward scale")."""
