"""The ``learner`` section of a run's configuration, and what may be wrong with it; reading it needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from onrig.learner.algorithm_settings import (
    Algorithms,
    DqnConfig,
    algorithms_where,
    epsilon_problems,
    log_std_problems,
    returns_problems,
)
from onrig.learner.on_policy_settings import batch_problems
from onrig.learner.refer_settings import ReferSettings, recurrent_problems
from onrig.learner.sampler_settings import (
    EroSettings,
    Exponent,
    KlperSettings,
    NersSettings,
    ProportionalLaw,
    ProportionalSettings,
)
from onrig.runtime.explore.settings import EpsilonGreedy, Exploration, NoExploration, OwnNoise
from onrig.runtime.replay.memory.keepers.keeper import FEEDBACK, Signal
from onrig.runtime.replay.memory.strategy import SAMPLERS, parse_strategy, parts_of_sampling


class LearnerSettings(Algorithms, frozen=True, forbid_unknown_fields=True):
    """Learner settings: algorithm, samplers' options, update rate."""

    per_alpha: Exponent = 0.7
    """Exponent of rank-based prioritised sampling (PER; de Bruin et al. 2018, eq. 7)."""
    klper: KlperSettings | UnsetType = UNSET
    """Options of the sampling KLPER."""
    prop_per: ProportionalSettings | UnsetType = UNSET
    ners: NersSettings | UnsetType = UNSET
    ero: EroSettings | UnsetType = UNSET
    refer: ReferSettings | UnsetType = UNSET
    """Options of ReF-ER.  Giving the section turns it on, even an empty one."""
    updates_per_episode: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None = None
    """Batch updates after every training episode (100 for 200 steps and batches of 16
    replay each experience 8 times: de Bruin et al. 2018, §B.1)."""
    updates_per_transition: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] | None = None
    """Batch updates per experience, as they come in, instead (real time only)."""
    backlog: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] = 2000
    """Maximum backlog of updates in real time; updates beyond it are dropped."""

    @property
    def refers(self) -> ReferSettings | None:
        """Options of ReF-ER, ``rules: none`` in algorithms that are built for it; None where it has no part."""
        hosted = self.selected.under_refer
        if self.refer is not UNSET:
            return self.refer if hosted else None
        return ReferSettings(rules="none", standardise=False) if hosted == self.selected.implementation else None

    @property
    def stochastic(self) -> bool:
        """Whether policies draw their actions, and so explore by noise of their own."""
        return self.selected.stochastic or self.refers is not None

    @property
    def tells(self) -> frozenset[Signal]:
        """What updates tell samplers and keepers of the replayed experiences."""
        targets = {Signal.TARGET} if self.selected.gives_targets else set()
        apart = {Signal.FAR, Signal.KL} if self.refers is not None else set()
        return frozenset({Signal.TD_ERROR} | targets | apart)

    @property
    def note_bytes(self) -> float:
        """Bytes that the algorithm notes beside each experience."""
        return self.selected.note_bytes + (ReferSettings.note_bytes if self.refers is not None else 0.0)

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
    if settings.vracer is not UNSET:
        problems += [(f"vracer.{at}", message) for at, message in recurrent_problems(settings.vracer)]
    for section in (settings.ppo, settings.trpo):
        if section is not UNSET:
            name = section.implementation.partition(":")[0]
            problems += [(f"{name}.{at}", message) for at, message in batch_problems(section)]
    if settings.refer is not UNSET and not settings.selected.under_refer:
        able = algorithms_where(lambda section: bool(section.under_refer) and not section.bounds_its_steps)
        problems.append(("refer", f"ReF-ER does not support {settings.algorithm}: leave it out, or use {able}"))
    elif settings.refer is not UNSET and settings.selected.bounds_its_steps and settings.refer.rules != "none":
        problems.append(("refer.rules", f"{settings.algorithm} bounds its steps itself: expected 'none'"))
    if settings.selected.batch_steps:
        for at in ("updates_per_episode", "updates_per_transition"):
            if getattr(settings, at) is not None:
                problems.append((at, f"{settings.algorithm} learns from each batch of its policies: leave it out"))
        return problems
    if (settings.updates_per_episode is None) == (settings.updates_per_transition is None):
        problems.append(("", "expected exactly one of 'updates_per_episode' and 'updates_per_transition'"))
    if lockstep and settings.updates_per_transition is not None:
        problems.append(("updates_per_transition", "lockstep learns between episodes: use 'updates_per_episode'"))
    return problems


def strategy_problems(settings: LearnerSettings, strategy: str) -> Iterator[tuple[str, str]]:
    """List (path, message) of what keeps a strategy from an algorithm; nothing for an unknown one."""
    try:
        parsed = parse_strategy(strategy)
    except ValueError:
        return
    name = parts_of_sampling(parsed.sampling).name
    if name == "KLPER" and settings.batch < 2:
        message = f"KLPER compares the spread of batches: expected at least 2, got {settings.batch}"
        yield f"learner.{settings.algorithm}.batch", message
    if name == "KLPER" and settings.selected.window > 1:
        message = "KLPER asks the policy at single observations, a recurrent one goes by its episode: choose another"
        yield "selection.strategy", message
    for signal in parsed.keeper.looks_at.intersection(FEEDBACK.values()) - settings.tells:
        able = algorithms_where(lambda section: bool(section.under_refer))
        message = f"{parsed.retention} looks at the {signal.value}, which ReF-ER tells ({able}): give learner.refer"
        yield "selection.strategy", message
    if Signal.TARGET in SAMPLERS[name].looks_at - settings.tells:
        able = algorithms_where(lambda section: section.gives_targets)
        message = f"{name} looks at the critic's targets, which {settings.algorithm} does not tell; {able} do"
        yield "selection.strategy", message


def rig_problems(settings: LearnerSettings, actuators: int) -> list[tuple[str, str]]:
    """Settings that do not fit a rig, as (path, message) pairs."""
    name = settings.algorithm
    if not settings.selected.on_rig:
        return [("algorithm", f"a rig cannot run the policies of {name}; it is for `onrig experiment`")]
    if settings.selected.single_action and actuators != 1:
        able = algorithms_where(lambda section: section.on_rig and not section.single_action)
        return [("algorithm", f"{name} has levels of one actuator, this rig has {actuators}; {able} take several")]
    if name == "dqn" and settings.dqn.epsilon != DqnConfig().epsilon:
        return [("dqn.epsilon", "it is for trials: the exploration's amplitude is that of a rig")]
    return []


def process_problem(settings: LearnerSettings, exploration: Exploration) -> tuple[str, str] | None:
    """What is wrong with the exploration process for the algorithm's policies on a rig, and where in its section."""
    name, tag = settings.algorithm, exploration.__struct_config__.tag
    if settings.stochastic and not isinstance(exploration, OwnNoise):
        who = name if settings.refer is UNSET else f"{name} under ReF-ER"
        return "process", f"the policies of {who} draw their actions: expected 'own', got {tag!r}"
    levels = getattr(settings.selected, "levels", None)
    if levels is not None:
        if not isinstance(exploration, EpsilonGreedy | NoExploration):
            return "process", f"the actions of {name} are levels: expected 'epsilon_greedy' or 'none', got {tag!r}"
        if isinstance(exploration, EpsilonGreedy) and exploration.levels != levels:
            return "levels", f"{name} acts on {levels} levels: expected {levels}, got {exploration.levels}"
    elif not settings.stochastic and isinstance(exploration, OwnNoise | EpsilonGreedy):
        lacks = "noise of their own" if isinstance(exploration, OwnNoise) else "levels"
        return "process", f"the policies of {name} have no {lacks}: expected 'ou', 'gaussian', 'parameter' or 'none'"
    return None
