"""The ``learner`` section of a run's configuration, hyper-parameters included; reading it needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, get_args, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from onrig.hw.bounds import NotNegative, Positive, Share
from onrig.learner.sampler_settings import (
    EroSettings,
    Exponent,
    Hidden,
    KlperSettings,
    NersSettings,
    ProportionalLaw,
    ProportionalSettings,
)
from onrig.runtime.explore.settings import EpsilonGreedy, Exploration, NoExploration, OwnNoise
from onrig.runtime.replay.memory.keepers.keeper import Signal
from onrig.runtime.replay.memory.strategy import SAMPLERS, parse_strategy, parts_of_sampling

Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1)]
Batch = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
LogStd = Annotated[float, msgspec.Meta(ge=-20.0, le=20.0)]


class AlgorithmConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the section of every algorithm has, and what else is known of the algorithm without torch."""

    implementation: ClassVar[str]
    """Module and class in ``onrig.learner.algorithms``."""
    on_rig: ClassVar[bool] = True
    """Whether a rig can run its policies; trials on plants run those of all."""
    stochastic: ClassVar[bool] = False
    """Whether its policies draw their actions, and so explore by noise of their own."""
    single_action: ClassVar[bool] = False
    """Whether it is limited to one action dimension."""

    @property
    def successors(self) -> int:
        """Consecutive experiences that an update looks at from each one drawn, itself included."""
        return 1

    gives_targets: ClassVar[bool] = False
    """Whether its ``Signals`` hold targets, which some samplings look at."""

    if TYPE_CHECKING:  # fields of every section, each in its own order
        batch: int
        gamma: float
        reward_scale: float
        """Factor on every reward before it is learned from; 1e-3 pendulum, 0.1 magman."""

    @property
    def size(self) -> str:
        """Size of the networks: a name (``network``), or units such as ``256-256`` (``hidden``)."""
        return getattr(self, "network", None) or "-".join(map(str, getattr(self, "hidden", ())))


class DdpgConfig(AlgorithmConfig, frozen=True, forbid_unknown_fields=True):
    """DDPG of de Bruin et al. 2018; the defaults are those of its pendulum."""

    implementation = "ddpg:Ddpg"
    gives_targets = True
    network: Literal["small", "ddpg_original"] = "small"
    """Sizes of Table 8."""
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


class LearnerSettings(Algorithms, frozen=True, forbid_unknown_fields=True):
    """Learner settings: algorithm, update rate, threads."""

    per_alpha: Exponent = 0.7
    """Exponent of rank-based prioritised sampling (PER; de Bruin et al. 2018, eq. 7)."""
    klper: KlperSettings | UnsetType = UNSET
    """Options of a sampling; left out, as the next ones: their defaults."""
    prop_per: ProportionalSettings | UnsetType = UNSET
    ners: NersSettings | UnsetType = UNSET
    ero: EroSettings | UnsetType = UNSET
    updates_per_episode: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None = None
    """Batch updates after every training episode (100 for 200 steps and batches of 16
    replay each experience 8 times: de Bruin et al. 2018, §B.1)."""
    updates_per_transition: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] | None = None
    """Batch updates per experience, as they come in, instead (real time only)."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    """torch threads; always one in lockstep."""
    backlog: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] = 2000
    """Maximum backlog of updates in real time; updates beyond it are dropped."""

    @property
    def klper_settings(self) -> KlperSettings:
        """Options of KLPER."""
        return KlperSettings() if self.klper is UNSET else self.klper

    @property
    def proportional_law(self) -> ProportionalLaw:
        """Options of PropPER."""
        return (ProportionalSettings() if self.prop_per is UNSET else self.prop_per).settled

    @property
    def ners_settings(self) -> NersSettings:
        """Options of NERS."""
        return NersSettings() if self.ners is UNSET else self.ners

    @property
    def ero_settings(self) -> EroSettings:
        """Options of ERO."""
        return EroSettings() if self.ero is UNSET else self.ero


def settings_problems(settings: LearnerSettings, *, lockstep: bool) -> list[tuple[str, str]]:
    """Contradictions between settings, as (path, message) pairs."""
    problems = [(f"dqn.{at}", message) for at, message in epsilon_problems(settings.dqn)]
    if settings.sac is not UNSET:
        problems += [(f"sac.{at}", message) for at, message in log_std_problems(settings.sac)]
    if settings.rainbow is not UNSET:
        problems += [(f"rainbow.{at}", message) for at, message in returns_problems(settings.rainbow)]
    if (settings.updates_per_episode is None) == (settings.updates_per_transition is None):
        problems.append(("", "expected exactly one of 'updates_per_episode' and 'updates_per_transition'"))
    if lockstep and settings.updates_per_transition is not None:
        problems.append(("updates_per_transition", "lockstep learns between episodes: use 'updates_per_episode'"))
    return problems


def sampling_problems(settings: LearnerSettings, strategy: str) -> Iterator[tuple[str, str]]:
    """List (path, message) of what keeps a sampling from an algorithm; nothing for an unknown strategy."""
    try:
        name = parts_of_sampling(parse_strategy(strategy).sampling).name
    except ValueError:
        return
    if name == "KLPER" and settings.batch < 2:
        message = f"KLPER compares the spread of batches: expected at least 2, got {settings.batch}"
        yield f"learner.{settings.algorithm}.batch", message
    if Signal.TARGET in SAMPLERS[name].looks_at and not settings.selected.gives_targets:
        able = ", ".join(a for a in ALGORITHMS if Algorithms(algorithm=a).selected.gives_targets)
        message = f"{name} looks at the critic's targets, which {settings.algorithm} does not tell; {able} do"
        yield "selection.strategy", message


def rig_problems(settings: LearnerSettings, actuators: int) -> list[tuple[str, str]]:
    """Settings that do not fit a rig, as (path, message) pairs."""
    name = settings.algorithm
    if not settings.selected.on_rig:
        return [("algorithm", f"a rig cannot run the policies of {name}; it is for `onrig experiment`")]
    if settings.selected.single_action and actuators != 1:
        return [("algorithm", f"{name} has levels of one actuator, this rig has {actuators}: use ddpg, td3 or sac")]
    if name == "dqn" and settings.dqn.epsilon != DqnConfig().epsilon:
        return [("dqn.epsilon", "it is for trials: the exploration's amplitude is that of a rig")]
    return []


def process_problem(settings: LearnerSettings, exploration: Exploration) -> tuple[str, str] | None:
    """What is wrong with the exploration process for the algorithm's policies on a rig, and where in its section."""
    name, tag = settings.algorithm, exploration.__struct_config__.tag
    if settings.selected.stochastic and not isinstance(exploration, OwnNoise):
        return "process", f"the policies of {name} draw their actions: expected 'own', got {tag!r}"
    levels = getattr(settings.selected, "levels", None)
    if levels is not None:
        if not isinstance(exploration, EpsilonGreedy | NoExploration):
            return "process", f"the actions of {name} are levels: expected 'epsilon_greedy' or 'none', got {tag!r}"
        if isinstance(exploration, EpsilonGreedy) and exploration.levels != levels:
            return "levels", f"{name} acts on {levels} levels: expected {levels}, got {exploration.levels}"
    elif not settings.selected.stochastic and isinstance(exploration, OwnNoise | EpsilonGreedy):
        lacks = "noise of their own" if isinstance(exploration, OwnNoise) else "levels"
        return "process", f"the policies of {name} have no {lacks}: expected 'ou', 'gaussian', 'parameter' or 'none'"
    return None
