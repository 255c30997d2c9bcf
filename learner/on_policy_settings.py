"""Sections of the algorithms that learn from batches of their own policies: PPO, PPO-ER, TRPO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from onrig.hw.bounds import NotNegative, Positive, Share
from onrig.learner.algorithm_config import AlgorithmConfig, Batch, Fraction, Hidden, LogStd
from onrig.runtime.explore.schedule import least_amplitude
from onrig.runtime.explore.settings import OwnNoise
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps

Steps = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class OnPolicyConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """Common settings of PPO and TRPO: Gaussian policies, values, advantages."""

    hidden: Hidden = (64, 64)
    """Units, tanh, of the policy's mean and of the value."""
    steps: Steps = 2048
    """N: experiences in a batch, of all actors."""
    actors: Count = 1
    """K: each gathers N / K of them."""
    batch: Batch = 64
    """M: experiences in a minibatch."""
    gamma: Fraction = 0.99
    """Discount of the return."""
    gae_lambda: Share = 0.95
    """Lambda of generalised advantage estimation."""
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
    """Factor of the rewards in learning (docs/methods.md, "Reward scale")."""

    @property
    def batch_steps(self) -> int:
        """N."""
        return self.steps

    @property
    def parallel(self) -> int:
        """K."""
        return self.actors

    def problems(self) -> Iterator[tuple[str, str]]:
        """List sizes that do not go into one another."""
        if self.steps % self.batch:
            yield "batch", f"expected a divisor of the {self.steps} steps, got {self.batch}"
        for at, size in (("steps", self.steps), ("batch", self.batch)):
            if size % self.actors:
                yield at, f"expected a multiple of the {self.actors} actors, got {size}"

    def run_problems(self, name: str, run: RunConfig, capacity: int) -> Iterator[tuple[str, str]]:
        """List what keeps a rig from gathering its batches."""
        selection, section = run.selection, f"learner.{name}"
        if self.actors != 1:
            yield f"{section}.actors", f"a rig is one actor: leave it out, got {self.actors}"
        if self.truncations != "bootstrap":
            yield f"{section}.truncations", "chains also end where experiences are missing: expected 'bootstrap'"
        if selection.write_probability < 1.0:
            yield "selection.write_probability", f"{name} follows episodes step by step: leave it out"
        if selection.intervened != "keep":
            message = f"{name} learns nothing from actions that are not its policy's, but its values follow them"
            yield "selection.intervened", f"{message}: leave it out"
        if isinstance(run.exploration, OwnNoise) and least_amplitude(run.exploration) < 1.0:
            yield "exploration.amplitude", f"{name} learns nothing from actions with reduced noise: leave it out"
        if isinstance(run.exploration, OwnNoise) and run.exploration.quiet is not None:
            yield "exploration.quiet", f"{name} learns nothing from actions without noise: leave it out"
        try:
            strategy = parse_strategy(selection.strategy)
        except ValueError:  # reported as a finding of its own
            return
        if not strategy.keeper.cyclic or strategy.sampling != "Uniform":
            message = f"{name} learns from the last experiences in their order, and draws from its batches itself"
            yield "selection.strategy", f"{message}: expected FIFO[Uniform], got {strategy}"
            return
        needed = self.steps + episode_steps(run.task, run.rate_hz) - 1
        if 0 < capacity < needed:
            at = "capacity" if selection.capacity_bytes is None else "capacity_bytes"
            message = f"a batch of {self.steps} and the rest of its last episode are up to {needed} experiences"
            yield f"selection.{at}", f"{message}, the memory holds {capacity}: set it to {needed} or more"


class PpoConfig(OnPolicyConfig, frozen=True, forbid_unknown_fields=True):
    """PPO with a clipped objective (Schulman et al. 2017), and PPO-ER: the defaults are those of Han and Sung 2017.

    PPO-ER is ``depth: 2, draw: uniform``.
    """

    home = "onrig.learner.algorithms.ppo:Ppo"
    stochastic = True
    depth: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    """L: last batches in the replay memory, the present one included."""
    draw: Literal["permutation", "uniform"] = "permutation"
    """Minibatches of an epoch: each experience once, or each at random from those of its actor."""
    epochs: Count = 10
    """Epochs per iteration, T; the minibatches of an epoch hold as many experiences as the memory."""
    lr: Positive = 3e-4
    """Step size of Adam."""
    value_lr: Positive | None = None
    """Step size of the value; null: the same as ``lr``."""
    lr_decay: NotNegative = 0.0
    """A: after k gradient steps both step sizes are divided by 1 + A k (Novati and Koumoutsakos 2019, eq. 13)."""
    clip: Positive = 0.2
    """epsilon: how far the importance ratio may leave 1."""
    anneal: bool = True
    """Whether ``lr`` and ``clip`` fall to 0, linearly over the steps of the run."""
    value_weight: NotNegative = 1.0
    """c, of the squared error of the value."""
    standardise: Literal["batch", "minibatch", "none"] = "batch"
    """Set over which advantages are standardised."""
    max_norm: Positive | None = None
    """Norm to which a gradient is cut."""
    adam_eps: Positive = 1e-5
    """Adam's epsilon."""

    @property
    def replays(self) -> int:
        return self.epochs * self.depth


class TrpoConfig(OnPolicyConfig, frozen=True, forbid_unknown_fields=True):
    """TRPO (Schulman et al. 2015); the defaults are those of OpenAI's baselines for MuJoCo."""

    home = "onrig.learner.algorithms.trpo:Trpo"
    stochastic = True
    hidden: Hidden = (32, 32)
    steps: Steps = 1024
    gae_lambda: Share = 0.98
    max_kl: Positive = 0.01
    """Mean KL divergence that a full step aims at."""
    cg_steps: Count = 10
    """Steps of conjugate gradients."""
    damping: NotNegative = 0.1
    """Multiple of the identity that is added to the Fisher matrix."""
    fisher_every: Count = 5
    """Experiences of which one enters Fisher products."""
    halvings: Count = 10
    """Steps that the line search tries, each half as long as the one before."""
    value_epochs: Count = 5
    """Passes over the batch that fit the value."""
    value_lr: Positive = 1e-3
    """Step size of Adam for the value."""

    @property
    def replays(self) -> int:
        """Passes over the batch by the value; the policy makes one."""
        return self.value_epochs

    def problems(self) -> Iterator[tuple[str, str]]:
        """Those of sizes, and of the experiences in Fisher products."""
        yield from super().problems()
        if -(-self.steps // self.fisher_every) < 4:
            at_most = (self.steps - 1) // 3
            message = f"expected at most {at_most}, for four of the {self.steps} steps, got {self.fisher_every}"
            yield "fisher_every", message
