"""Configuration sections of the on-policy algorithms: PPO, PPO-ER, TRPO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from onrig.hw.bounds import NotNegative, Positive, Share
from onrig.learner.algorithm_config import AlgorithmConfig, Batch, Fraction, Hidden, LogStd
from onrig.runtime.explore.schedule import min_amplitude
from onrig.runtime.explore.settings import OwnNoise
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps

Steps = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class OnPolicyConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """Common settings of PPO and TRPO: Gaussian policies, values, advantages."""

    hidden: Hidden = (64, 64)
    """Number of tanh units in each hidden layer of the networks for the policy's mean and for the value."""
    steps: Steps = 2048
    """N: number of experiences in a batch, from all actors together."""
    actors: Count = 1
    """K: number of actors; each gathers N / K experiences."""
    batch: Batch = 64
    """M: number of experiences in a minibatch."""
    gamma: Fraction = 0.99
    """Discount factor of the return."""
    gae_lambda: Share = 0.95
    """Lambda of generalised advantage estimation."""
    truncations: Literal["bootstrap", "terminate"] = "bootstrap"
    """How a return truncated by the time limit is completed: with the value of the last state, or with 0."""
    log_std: LogStd = 0.0
    """Initial log standard deviation of the policy, which is learned and the same in all states."""
    filter: bool = True
    """Whether observations are standardised by their running mean and standard deviation, and clipped at 5 deviations.
    """
    initial: Literal["normc", "orthogonal"] = "normc"
    """Initial weights: columns with random directions and norm 1 (``normc``), or orthogonal with gain sqrt(2) in hidden
    layers (``orthogonal``); the last layer of the policy's mean is scaled by 0.01."""
    reward_scale: Positive = 1.0
    """Factor applied to rewards before learning (docs/methods.md, "Reward scale")."""

    @property
    def batch_steps(self) -> int:
        """N, the number of experiences in a batch."""
        return self.steps

    @property
    def parallel(self) -> int:
        """K, the number of actors."""
        return self.actors

    def problems(self) -> Iterator[tuple[str, str]]:
        """List sizes that do not divide evenly."""
        if self.steps % self.batch:
            yield "batch", f"expected a divisor of the {self.steps} steps, got {self.batch}"
        for path, size in (("steps", self.steps), ("batch", self.batch)):
            if size % self.actors:
                yield path, f"expected a multiple of the {self.actors} actors, got {size}"

    def run_problems(self, name: str, run: RunConfig, capacity: int) -> Iterator[tuple[str, str]]:
        """List settings that prevent a rig from gathering batches, or the algorithm from learning from them."""
        selection, section = run.selection, f"learner.{name}"
        if self.actors != 1:
            yield f"{section}.actors", f"a rig has only one actor: remove this setting, got {self.actors}"
        if self.truncations != "bootstrap":
            yield f"{section}.truncations", "chains on a rig also end at missing experiences: expected 'bootstrap'"
        if selection.write_probability < 1.0:
            yield "selection.write_probability", f"{name} needs every step of an episode: remove this setting"
        if selection.intervened != "keep":
            message = f"the policy of {name} cannot learn from actions that are not its own, but its value needs them"
            yield "selection.intervened", f"{message}: remove this setting"
        if isinstance(run.exploration, OwnNoise) and min_amplitude(run.exploration) < 1.0:
            yield "exploration.amplitude", f"{name} cannot learn from actions with reduced noise: remove this setting"
        if isinstance(run.exploration, OwnNoise) and run.exploration.quiet is not None:
            yield "exploration.quiet", f"{name} cannot learn from actions without noise: remove this setting"
        try:
            strategy = parse_strategy(selection.strategy)
        except ValueError:  # reported as a separate finding
            return
        if not strategy.keeper.cyclic or strategy.sampling != "Uniform":
            message = f"{name} learns from the latest experiences in order, and draws its own minibatches"
            yield "selection.strategy", f"{message}: expected FIFO[Uniform], got {strategy}"
            return
        needed_capacity = self.steps + episode_steps(run.task, run.rate_hz) - 1
        if 0 < capacity < needed_capacity:
            key = "capacity" if selection.capacity_bytes is None else "capacity_bytes"
            message = (
                f"a batch of {self.steps} and the rest of its last episode need up to {needed_capacity} experiences"
            )
            yield f"selection.{key}", f"{message}, but the memory holds {capacity}: set it to {needed_capacity} or more"


class PpoConfig(OnPolicyConfig, frozen=True, forbid_unknown_fields=True):
    """PPO with a clipped objective (Schulman et al. 2017), and with replay (PPO-ER); the defaults are those of Han and
    Sung 2017.

    PPO-ER is ``depth: 2, draw: uniform``.
    """

    home = "onrig.learner.algorithms.ppo:Ppo"
    stochastic = True
    depth: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    """L: number of batches in the replay memory, including the current one."""
    draw: Literal["permutation", "uniform"] = "permutation"
    """How an epoch's minibatches are sampled: every experience once, or uniform draws with the same number from each
    actor."""
    epochs: Count = 10
    """T: number of epochs per iteration; an epoch's minibatches together contain as many experiences as the memory."""
    lr: Positive = 3e-4
    """Adam's learning rate."""
    value_lr: Positive | None = None
    """Adam's learning rate for the value; null: the same as ``lr``."""
    lr_decay: NotNegative = 0.0
    """A: after k gradient steps both learning rates are divided by 1 + A k (Novati and Koumoutsakos 2019, eq. 13)."""
    clip: Positive = 0.2
    """epsilon: maximum distance of the importance ratio from 1."""
    anneal: bool = True
    """Whether ``lr`` and ``clip`` decrease linearly to 0 over the steps of the run."""
    value_weight: NotNegative = 1.0
    """c: weight of the value's squared error in the loss."""
    standardise: Literal["batch", "minibatch", "none"] = "batch"
    """Set of experiences over which advantages are standardised."""
    max_norm: Positive | None = None
    """Maximum norm of a gradient; larger gradients are scaled down to it."""
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
    """Target mean KL divergence of a full step."""
    cg_steps: Count = 10
    """Number of conjugate gradient steps."""
    damping: NotNegative = 0.1
    """Damping: multiple of the identity matrix that is added to the Fisher matrix."""
    fisher_every: Count = 5
    """Subsampling factor for Fisher products: one in this many experiences is used."""
    halvings: Count = 10
    """Maximum number of step lengths tried in the line search, each half as long as the previous one."""
    value_epochs: Count = 5
    """Number of passes over the batch to fit the value."""
    value_lr: Positive = 1e-3
    """Adam's learning rate for the value."""

    @property
    def replays(self) -> int:
        """Number of passes over a batch to fit the value; a single pass updates the policy."""
        return self.value_epochs

    def problems(self) -> Iterator[tuple[str, str]]:
        """List sizes that do not divide evenly, and a ``fisher_every`` that leaves too few experiences for Fisher
        products."""
        yield from super().problems()
        if -(-self.steps // self.fisher_every) < 4:
            max_interval = (self.steps - 1) // 3
            message = f"expected at most {max_interval}, to use four of the {self.steps} steps, got {self.fisher_every}"
            yield "fisher_every", message
