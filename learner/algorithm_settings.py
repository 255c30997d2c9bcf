"""Sections of the algorithms in the ``learner`` section, hyper-parameters included; reading them needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, get_args, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from onrig.hw.bounds import NotNegative, Positive, Share
from onrig.learner.algorithm_config import AlgorithmConfig, Batch, Fraction, LogStd, Rate
from onrig.learner.on_policy_settings import PpoConfig, TrpoConfig
from onrig.learner.sampler_settings import Hidden


class ReferSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ReF-ER (Novati and Koumoutsakos 2019); the defaults are the paper's, for 1e7 steps."""

    note_bytes: ClassVar[float] = 9.0
    """Bytes that it notes beside each experience."""
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
    std: Positive = 0.2
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


class DdpgConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """DDPG of de Bruin et al. 2018; the defaults are those of its pendulum."""

    implementation = "ddpg:Ddpg"
    under_refer = "refer_ddpg:ReferDdpg"
    gives_targets = True
    network: Literal["small", "ddpg_original", "medium"] = "small"
    """Sizes of Table 8, and 128-128 (Novati and Koumoutsakos 2019)."""
    batch: Batch = 16
    gamma: Fraction = 0.95
    tau: Rate = 1e-2
    """Target update per step; the paper does not state it."""
    actor_lr: Positive = 1e-4
    critic_lr: Positive = 1e-3
    critic_decay: NotNegative = 5e-3
    """Weight decay of the critic's weights."""
    decay: Literal["decoupled", "coupled"] = "decoupled"
    """The paper's L2 is ``coupled``; at these reward scales that stops learning."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    adam_eps: Positive = 1e-8
    reward_scale: Positive = 1e-3


class DqnConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """DQN of de Bruin et al. 2018 (§6.3, App. B); unstated parameters as for its DDPG critic."""

    implementation = "dqn:Dqn"
    gives_targets = True
    single_action = True
    network: Literal["small", "ddpg_original"] = "small"
    """Hidden layers of the critic of that size (Table 8): 50-50-20 or 400-300."""
    levels: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 15
    """Discrete actions, uniform on [-1, 1] (§6.3)."""
    batch: Batch = 16
    gamma: Fraction = 0.95
    target_every: Annotated[int, msgspec.Meta(ge=1)] = 200
    """Updates between copies of the network to its target."""
    lr: Positive = 1e-3
    weight_decay: NotNegative = 5e-3
    """Decay of the weights, not of the biases."""
    decay: Literal["decoupled", "coupled"] = "decoupled"
    """As in ``DdpgConfig`` (docs/methods.md)."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    adam_eps: Positive = 1e-8
    reward_scale: Positive = 1e-3
    epsilon: tuple[tuple[NotNegative, Share], ...] = ((1.0, 0.7), (500.0, 0.01))
    """(episode, probability of a uniformly random action) points, linear in between, constant outside (App. B):
    ``onrig.runtime.explore.schedule.interpolate`` reads it."""


def epsilon_problems(config: DqnConfig) -> list[tuple[str, str]]:
    """Problems of the schedule, as (path, message) pairs."""
    problems = [] if config.epsilon else [("epsilon", "expected at least one [episode, probability]")]
    for i, (episode, _) in enumerate(config.epsilon):
        if i and episode <= config.epsilon[i - 1][0]:
            problems.append((f"epsilon[{i}]", f"episodes must increase, got {episode:g}"))
    return problems


class Td3Config(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """TD3; the defaults are those of Fujimoto et al. 2018, but for sizes, batch and reward scale."""

    implementation = "td3:Td3"
    gives_targets = True
    hidden: Hidden = (256, 256)
    """Units of the actor and of each critic."""
    batch: Batch = 256
    gamma: Fraction = 0.99
    tau: Rate = 5e-3
    lr: Positive = 1e-3
    """Of actor and critics."""
    delay: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Critic updates per actor update."""
    targets: Literal["every", "delayed"] = "delayed"
    """Whether targets follow after every update, or with the actor only."""
    target_noise: NotNegative = 0.2
    """Standard deviation of the noise on the target policy's action."""
    noise_clip: NotNegative = 0.5
    reward_scale: Positive = 1e-3


class SacConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """SAC with automatic temperature; the defaults are those of Haarnoja et al. 2018b, but for the reward scale."""

    implementation = "sac:Sac"
    stochastic = True
    gives_targets = True
    hidden: Hidden = (256, 256)
    """Units of the actor and of each critic."""
    batch: Batch = 256
    gamma: Fraction = 0.99
    tau: Rate = 5e-3
    lr: Positive = 3e-4
    """Of actor, critics and temperature."""
    log_std: tuple[LogStd, LogStd] = (-20.0, 2.0)
    """Bounds of the policy's log standard deviation before squashing; some implementations have [-5, 2]."""
    temperature: Positive = 1.0
    """Weight of the entropy at the start; it is learned from then on."""
    reward_scale: Positive = 1e-3


class RainbowConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """Rainbow; the defaults are those of van Hasselt et al. 2019, but for levels and hidden layers."""

    implementation = "rainbow:Rainbow"
    gives_targets = True
    noisy_weights = True
    single_action = True
    hidden: Hidden = (128, 128)
    """Units of the common hidden layers, and, last, of each of the two noisy streams."""
    levels: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 15
    """Discrete actions, uniform on [-1, 1]."""
    atoms: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 51
    returns: tuple[float, float] = (-10.0, 10.0)
    """Lowest and highest atom, in units of the scaled reward."""
    n_steps: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20
    """Rewards in a return before its bootstrap."""
    batch: Batch = 32
    gamma: Fraction = 0.99
    target_every: Annotated[int, msgspec.Meta(ge=1)] = 2000
    """Updates between copies of the network to its target."""
    lr: Positive = 1e-4
    adam_eps: Positive = 1.5e-4
    max_norm: Positive = 10.0
    """Norm to which a gradient is cut."""
    sigma: Positive = 0.1
    """Scale of the noise in the weights at the start, over the root of the layer's inputs."""
    reward_scale: Positive = 1e-3

    @property
    def successors(self) -> int:
        """Those of an n-step return."""
        return self.n_steps


class NafConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """NAF; the defaults are those of Novati and Koumoutsakos 2019, but for the reward scale."""

    implementation = under_refer = "naf:Naf"
    gives_targets = True
    hidden: Hidden = (128, 128)
    """Units, softsign."""
    batch: Batch = 256
    gamma: Fraction = 0.995
    tau: Rate = 1e-2
    lr: Positive = 1e-4
    beta_on: Literal["mean", "all"] = "mean"
    """Which part of the gradient the coefficient of ReF-ER's rule 2 scales: that of the mean, as in the authors' code,
    or all of it, as in the paper."""
    reward_scale: Positive = 1e-3


class RecurrentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """LSTM cells in place of hidden layers; the defaults are those of Novati and Koumoutsakos 2019 (§5.4), but for
    ``start``."""

    units: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=4, le=512, multiple_of=4)], ...], msgspec.Meta(min_length=1, max_length=4)
    ] = (32, 32)
    """Of each cell, one behind the other."""
    window: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 16
    """Steps that a gradient goes back through, the drawn one included."""
    start: Literal["stored", "zero"] = "stored"
    """What is remembered when a window begins: what was when its first experience was new, or nothing, as in the
    paper."""

    @property
    def hidden_width(self) -> int:
        """Numbers that cells remember: output and state of each unit."""
        return 2 * sum(self.units)


class VracerConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """V-RACER; the defaults are those of Novati and Koumoutsakos 2019, but for the reward scale."""

    implementation = under_refer = "vracer:Vracer"
    recurrent_implementation = "recurrent_vracer:RecurrentVracer"
    follows_episodes = True
    hidden: Hidden = (128, 128)
    """Units, softsign."""
    recurrent: RecurrentSettings | UnsetType = UNSET
    """The policy remembers its episode where this is given, be it as ``{}``."""
    batch: Batch = 256
    gamma: Fraction = 0.995
    lr: Positive = 1e-4
    std: Positive = 0.2**0.5
    """Standard deviation of the policy at the start, the same in all states; it is learned from then on."""
    advantage: Literal["none", "quadratic", "gaussian"] = "none"
    """The advantage as a function of the action (App. E)."""
    retrace_every: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10
    """Updates between looks along all episodes; a new episode is looked along at once."""
    reward_scale: Positive = 1e-3

    @property
    def window(self) -> int:
        """That of recurrent networks."""
        return 1 if self.recurrent is UNSET else self.recurrent.window

    @property
    def note_bytes(self) -> float:
        """Five numbers and a flag, and what cells remember."""
        return 21.0 + (0.0 if self.recurrent is UNSET else 4.0 * self.recurrent.hidden_width)

    @property
    def size(self) -> str:
        """Units, of cells where there are any."""
        return super().size if self.recurrent is UNSET else f"LSTM {'-'.join(map(str, self.recurrent.units))}"


def recurrent_problems(config: VracerConfig) -> list[tuple[str, str]]:
    """Problems of cells beside hidden layers, as (path, message) pairs."""
    if config.recurrent is UNSET or config.hidden == VracerConfig().hidden:
        return []
    return [("hidden", "the cells of 'recurrent' take the place of hidden layers: give recurrent.units instead")]


class AcerConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """ACER with continuous actions (Wang et al. 2017); the defaults are those of Novati and Koumoutsakos 2019 (App. A),
    but for the reward scale."""

    implementation = under_refer = "acer:Acer"
    follows_episodes = True
    bounds_its_steps = True
    hidden: Hidden = (128, 128)
    """Units of policy, value and advantage, each a network of its own; softsign."""
    batch: Batch = 24
    """Segments of episodes in a minibatch, one around each experience drawn."""
    segment: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 200
    """The longest segment: longer episodes are cut to as much."""
    gamma: Fraction = 0.995
    lr: Positive = 1e-4
    """Of value and advantage."""
    policy_lr: Positive = 1e-5
    std: Positive = 0.2**0.5
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


def returns_problems(config: RainbowConfig) -> list[tuple[str, str]]:
    """Problems of the atoms, as (path, message) pairs."""
    low, high = config.returns
    return [] if low < high else [("returns", f"expected [low, high], got {low:g} and {high:g}")]


def log_std_problems(config: SacConfig) -> list[tuple[str, str]]:
    """Problems of the bounds, as (path, message) pairs."""
    low, high = config.log_std
    return [] if low < high else [("log_std", f"expected [low, high], got {low:g} and {high:g}")]


class Algorithms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The algorithm that learns, and the settings of every algorithm under its name: the list of all there are.

    A resolved configuration has the newer sections only where they are selected or given, so that what identifies a run
    does not change with the number of algorithms.
    """

    algorithm: AlgorithmName = "ddpg"
    ddpg: DdpgConfig = DdpgConfig()
    dqn: DqnConfig = DqnConfig()
    td3: Td3Config | UnsetType = UNSET
    sac: SacConfig | UnsetType = UNSET
    rainbow: RainbowConfig | UnsetType = UNSET
    naf: NafConfig | UnsetType = UNSET
    vracer: VracerConfig | UnsetType = UNSET
    acer: AcerConfig | UnsetType = UNSET
    ppo: PpoConfig | UnsetType = UNSET
    trpo: TrpoConfig | UnsetType = UNSET

    def __post_init__(self) -> None:
        if getattr(self, self.algorithm) is UNSET:
            section = get_args(get_type_hints(Algorithms)[self.algorithm])[0]
            msgspec.structs.force_setattr(self, self.algorithm, section())

    @property
    def selected(self) -> AlgorithmConfig:
        """Section of the selected algorithm."""
        section: AlgorithmConfig = getattr(self, self.algorithm)
        return section

    @property
    def batch(self) -> int:
        """Minibatch size of the selected algorithm."""
        return self.selected.batch


ALGORITHMS: Final = Algorithms.__struct_fields__[1:]
"""Names of the algorithms."""
if TYPE_CHECKING:
    AlgorithmName = str
else:
    AlgorithmName = Literal[ALGORITHMS]


def algorithms_where(holds: Callable[[AlgorithmConfig], bool]) -> str:
    """Names of the algorithms whose sections are such, as a message lists them."""
    return ", ".join(name for name in ALGORITHMS if holds(Algorithms(algorithm=name).selected))
