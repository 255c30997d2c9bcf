"""The ``learner`` section of a run's configuration, and its validation; reading it loads no algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from onrig.hw.rig import Camera, Observation
from onrig.learner.algorithm_config import AlgorithmConfig, algorithm_names, default_section, format_algorithm_names
from onrig.learner.refer_settings import ReferSettings
from onrig.learner.sampler_settings import Exponent, NersSettings, SamplerSettings
from onrig.runtime import registry
from onrig.runtime.explore.settings import EpsilonGreedy, Exploration, NoExploration, OwnNoise
from onrig.runtime.images import holds_pixels
from onrig.runtime.memory.keepers.keeper import FEEDBACK, Signal
from onrig.runtime.memory.strategy import parse_sampling, parse_strategy, sampling_class

_DEFAULT_ALGORITHM: Final = "ddpg"
ALWAYS_PRESENT_SECTIONS: Final = ("ddpg", "dqn")
"""Sections that every resolved configuration has; the others appear only if selected or given, so that a run's identity
does not depend on how many algorithms are registered."""
_GROUPS: Final = (registry.ALGORITHMS, registry.SAMPLERS)
_S = TypeVar("_S", bound=SamplerSettings)


class StartFrom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Initial networks of a learner, which are the final networks of an earlier run."""

    path: str
    """Folder of the run."""
    sha256: str | UnsetType = UNSET
    """Checksum of the networks; a file with a different checksum is rejected.  A run's recorded configuration contains
    it."""


class _CommonSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Learner settings: algorithm, samplers' options, update rate."""

    algorithm: str = _DEFAULT_ALGORITHM
    """Learning algorithm; its own section applies."""
    per_alpha: Exponent = 0.7
    """Exponent of rank-based prioritised sampling (PER; de Bruin et al. 2018, eq. 7)."""
    refer: ReferSettings | UnsetType = UNSET
    """Options of ReF-ER.  The presence of this section enables ReF-ER, even if it is empty."""
    updates_per_episode: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None = None
    """Number of batch updates after every training episode (for 200 steps and batches of 16, 100 updates replay each
    experience 8 times: de Bruin et al. 2018, §B.1)."""
    updates_per_transition: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] | None = None
    """Number of batch updates per arriving experience, in place of ``updates_per_episode``, for tasks whose episodes
    may end early.  In lockstep, the updates for an episode's experiences follow the episode."""
    learning_starts: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | UnsetType = UNSET
    """Number of experiences that the memory must hold before the first update (default: one minibatch)."""
    backlog: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] = 2000
    """Maximum backlog in real time, in updates or, with ``updates_per_transition``, in experiences with pending
    updates; updates beyond it are dropped."""
    start_from: str | StartFrom | UnsetType = UNSET
    """Run whose networks and optimisers the local learner starts with (docs/data.md)."""
    screening: Annotated[int, msgspec.Meta(ge=0, le=1000)] | UnsetType = UNSET
    """Number of held-out plants from the pretraining in ``start_from`` on which a policy must score almost as well as
    the pretraining's own policy; otherwise it is not offered to the rig (docs/pretraining.md). 0: no test."""

    def __post_init__(self) -> None:
        if getattr(self, self.algorithm, UNSET) is UNSET:
            defaults = default_section(self.algorithm)  # raises ValueError for a package that does not load
            msgspec.structs.force_setattr(self, self.algorithm, defaults)

    @property
    def algorithm_config(self) -> AlgorithmConfig:
        section: AlgorithmConfig = getattr(self, self.algorithm)
        return section

    @property
    def start(self) -> StartFrom | None:
        """``start_from`` as a ``StartFrom``; None for a learner that starts with new networks."""
        if self.start_from is UNSET:
            return None
        return StartFrom(self.start_from) if isinstance(self.start_from, str) else self.start_from

    @property
    def batch(self) -> int:
        return self.algorithm_config.batch

    @property
    def first_update_at(self) -> int:
        """Number of stored experiences at which updates begin."""
        return self.batch if self.learning_starts is UNSET else max(self.batch, self.learning_starts)

    def sampler_section(self, kind: type[_S]) -> _S:
        configured_section: _S | UnsetType = getattr(self, kind.section, UNSET)
        return kind() if configured_section is UNSET else configured_section

    @property
    def effective_refer(self) -> ReferSettings | None:
        """Options of ReF-ER, or None if it is not used; without the section, ``rules: none`` for algorithms built on
        it."""
        refer_home = self.algorithm_config.home_under_refer
        if self.refer is not UNSET:
            return self.refer if refer_home else None
        return ReferSettings(rules="none", standardise=False) if refer_home == self.algorithm_config.home else None

    @property
    def stochastic(self) -> bool:
        """Whether policies sample their actions and so provide their own exploration noise."""
        return self.algorithm_config.stochastic or self.effective_refer is not None

    @property
    def provided_signals(self) -> frozenset[Signal]:
        """Signals that updates provide to samplers and keepers."""
        targets = {Signal.TARGET} if self.algorithm_config.provides_targets else set()
        refer_signals = {Signal.FAR, Signal.KL} if self.effective_refer is not None else set()
        return frozenset({Signal.TD_ERROR} | targets | refer_signals)

    @property
    def note_bytes(self) -> float:
        """Number of bytes of the algorithm's notes per experience."""
        return self.algorithm_config.note_bytes + (
            ReferSettings.note_bytes if self.effective_refer is not None else 0.0
        )


def _section_fields(algorithms: Mapping[str, Any], samplers: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields of the sections, first of the algorithms, then of the samplers that have options."""
    yield "algorithm", Literal[algorithm_names()], _DEFAULT_ALGORITHM
    for name, section in algorithms.items():
        yield (name, section, section()) if name in ALWAYS_PRESENT_SECTIONS else (name, section | UnsetType, UNSET)
    for sampling in samplers.values():
        if sampling.section:
            yield sampling.section, sampling | UnsetType, UNSET


if TYPE_CHECKING:

    class LearnerSettings(_CommonSettings, frozen=True, forbid_unknown_fields=True):
        """The ``learner`` section, with a section for each algorithm and for each sampler with options."""

        def __init__(self, algorithm: str = ..., **settings: object) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    LearnerSettings = msgspec.defstruct(
        "LearnerSettings",
        list(_section_fields(*(registry.load_available(group, registry.builtin_names(group)) for group in _GROUPS))),
        bases=(_CommonSettings,),
        module=__name__,
        namespace={"__doc__": _CommonSettings.__doc__},
        frozen=True,
        forbid_unknown_fields=True,
    )


def learner_settings(section: Mapping[str, object]) -> LearnerSettings:
    """Convert the ``learner`` section of a checked configuration to its type."""
    return msgspec.convert(section, settings_type())


def settings_type() -> type[LearnerSettings]:
    """Return the type of the section, including the sections that other packages and files define; raise ValueError for
    an invalid file."""
    return _extend_settings_type(*(registry.third_party_names(group) for group in _GROUPS))


@cache
def _extend_settings_type(algorithms: Sequence[str], samplers: Sequence[str]) -> type[LearnerSettings]:
    if not algorithms and not samplers:
        return LearnerSettings
    names_by_group = dict(zip(_GROUPS, (algorithms, samplers), strict=True))
    fields = list(_section_fields(*(registry.load_available(group, names) for group, names in names_by_group.items())))
    extended_type = msgspec.defstruct(
        "LearnerSettings",
        fields,
        bases=(LearnerSettings,),
        module=__name__,
        namespace={"__doc__": _CommonSettings.__doc__},
        frozen=True,
        forbid_unknown_fields=True,
    )
    return cast(type[LearnerSettings], extended_type)


def settings_problems(settings: LearnerSettings) -> list[tuple[str, str]]:
    """List contradictory settings, as (path, message)."""
    values = {name: getattr(settings, name, UNSET) for name in algorithm_names()}
    sections = {name: section for name, section in values.items() if section is not UNSET}
    problems = [
        (f"{name}.{path}", message) for name, section in sections.items() for path, message in section.problems()
    ]
    if settings.refer is not UNSET and not settings.algorithm_config.home_under_refer:
        supported_names = format_algorithm_names(
            lambda section: bool(section.home_under_refer) and not section.limits_policy_steps
        )
        problems.append(
            ("refer", f"ReF-ER does not support {settings.algorithm}: remove this section, or use {supported_names}")
        )
    elif (
        settings.refer is not UNSET and settings.algorithm_config.limits_policy_steps and settings.refer.rules != "none"
    ):
        problems.append(("refer.rules", f"{settings.algorithm} limits its own steps: expected 'none'"))
    if settings.algorithm_config.batch_steps:
        for path in ("updates_per_episode", "updates_per_transition", "learning_starts"):
            if getattr(settings, path) not in (None, UNSET):
                message = f"{settings.algorithm} learns from each batch of its policies: remove this setting"
                problems.append((path, message))
        if settings.screening:
            message = f"{settings.algorithm} learns only from its newest policy: remove this setting"
            problems.append(("screening", message))
        return problems
    if (settings.updates_per_episode is None) == (settings.updates_per_transition is None):
        problems.append(("", "expected exactly one of 'updates_per_episode' and 'updates_per_transition'"))
    return problems


def strategy_problems(settings: LearnerSettings, strategy: str) -> Iterator[tuple[str, str]]:
    """List reasons why a strategy does not fit an algorithm, as (path, message); none for an unknown strategy."""
    try:
        parsed_strategy = parse_strategy(strategy)
    except ValueError:
        return
    for sampling in parse_sampling(parsed_strategy.sampling).nested:
        yield from _sampling_problems(settings, sampling.name)
    for signal in parsed_strategy.keeper.required_signals.intersection(FEEDBACK.values()) - settings.provided_signals:
        supported_names = format_algorithm_names(lambda section: bool(section.home_under_refer))
        needs = f"{parsed_strategy.retention} needs the {signal.value}"
        message = f"{needs}, which only ReF-ER provides ({supported_names}): set learner.refer"
        yield "selection.strategy", message


def _sampling_problems(settings: LearnerSettings, name: str) -> Iterator[tuple[str, str]]:
    sampling = sampling_class(name)
    assert issubclass(sampling, SamplerSettings)
    yield from settings.sampler_section(sampling).problems(settings.algorithm, settings.algorithm_config)
    if Signal.TARGET in sampling.required_signals - settings.provided_signals:
        supported_names = format_algorithm_names(lambda section: section.provides_targets)
        message = (
            f"{name} needs the critic's targets, which {settings.algorithm} does not provide: use {supported_names}"
        )
        yield "selection.strategy", message


def unread_sections(settings: LearnerSettings, strategy: str) -> Iterator[tuple[str, str]]:
    """List sections that neither the algorithm nor the sampling of a run uses, as (path, message).

    This is for runs, not for experiments, which may set sections that only some of their cells use.  The sections of
    ``ddpg`` and ``dqn`` are never listed, because every run has them.
    """
    used_samplings = parse_sampling(parse_strategy(strategy).sampling).nested
    used_sections = {settings.algorithm, *(sampling_class(sampling.name).section for sampling in used_samplings)}
    readers = {
        name: f"{settings.algorithm} does not use this section"
        for name in algorithm_names()
        if name not in ALWAYS_PRESENT_SECTIONS
    }
    samplings: dict[str, type[SamplerSettings]] = registry.load_available(registry.SAMPLERS)
    readers |= {s.section: f"{strategy} does not use this section" for s in samplings.values() if s.section}
    for name, message in readers.items():
        if name not in used_sections and getattr(settings, name, UNSET) is not UNSET:
            yield f"learner.{name}", f"{message}: remove it"


def rig_problems(settings: LearnerSettings, actuators: int) -> list[tuple[str, str]]:
    """List settings that do not fit a rig, as (path, message)."""
    name, algorithm_config = settings.algorithm, settings.algorithm_config
    if not algorithm_config.on_rig:
        return [("algorithm", f"a rig cannot run the policies of {name}: use it with `onrig experiment`")]
    if algorithm_config.single_action and actuators != 1:
        supported_names = format_algorithm_names(lambda section: section.on_rig and not section.single_action)
        return [("algorithm", f"{name} supports one actuator, but this rig has {actuators}: use {supported_names}")]
    return [(f"{name}.{path}", message) for path, message in algorithm_config.rig_problems()]


def image_problems(
    settings: LearnerSettings, cameras: Sequence[Camera], signals: Sequence[Observation], strategy: str
) -> Iterator[tuple[str, str]]:
    """List conflicts of the algorithm's ``images`` setting, or of its absence, with a rig's policy inputs ``signals``,
    its ``cameras`` and a strategy, as (path in the run, message).

    An unknown strategy adds none.
    """
    name, image = settings.algorithm, settings.algorithm_config.image
    if image is not None:
        yield from _packed_state_problems(settings, strategy)
    n_pixels = sum(map(holds_pixels, signals))
    if image is None:
        if n_pixels:
            supported_names = format_algorithm_names(lambda section: section.on_rig and section.supports_images)
            advice = f"select an algorithm that supports images ({supported_names})"
            if settings.algorithm_config.supports_images:
                advice = f"set learner.{name}.images"
            yield (
                "task.inputs",
                f"{n_pixels} inputs are camera pixels, from which {name} without images cannot learn: {advice}, "
                "or remove the camera from the inputs",
            )
    elif (n_pixels, len(signals)) != (image.packed_values, image.packed_values):
        rows, columns = image.size
        yield (
            f"learner.{name}.images",
            f"{image.frames} frames of {rows} by {columns} pixels need {image.packed_values} inputs, but the task has "
            f"{n_pixels} pixel inputs and {len(signals) - n_pixels} others: change images.size and images.frames, or "
            f"task.inputs",
        )
    elif mismatched_camera := next(
        (camera for camera in cameras if (camera.rows, camera.columns) != tuple(image.size)), None
    ):
        rows, columns = image.size
        yield (
            f"learner.{name}.images.size",
            f"expected images of {rows} by {columns} pixels, but camera '{mismatched_camera.name}' has "
            f"{mismatched_camera.rows} by {mismatched_camera.columns} pixels: change one of the two",
        )


def _packed_state_problems(settings: LearnerSettings, strategy: str) -> Iterator[tuple[str, str]]:
    try:
        samplings = {sampling.name for sampling in parse_sampling(parse_strategy(strategy).sampling).nested}
    except ValueError:
        return
    if "NERS" in samplings and settings.sampler_section(NersSettings).ablation != "few":
        message = "NERS reads the states, which on a rig are packed images: choose another strategy"
        yield "selection.strategy", f"{message}, or set learner.ners.ablation to few"


def process_problem(settings: LearnerSettings, exploration: Exploration) -> tuple[str, str] | None:
    """Describe why the exploration process does not fit the algorithm on a rig, as (path in ``exploration``, message);
    None if it fits."""
    name, tag = settings.algorithm, exploration.__struct_config__.tag
    if settings.stochastic and not isinstance(exploration, OwnNoise):
        algorithm = name if settings.refer is UNSET else f"{name} under ReF-ER"
        return "process", f"the policies of {algorithm} sample their actions: expected 'own', got {tag!r}"
    levels = getattr(settings.algorithm_config, "levels", None)
    if levels is not None:
        if not isinstance(exploration, EpsilonGreedy | NoExploration):
            return "process", f"the actions of {name} are discrete: expected 'epsilon_greedy' or 'none', got {tag!r}"
        if isinstance(exploration, EpsilonGreedy) and exploration.levels != levels:
            return "levels", f"{name} has {levels} action levels: expected {levels}, got {exploration.levels}"
    elif not settings.stochastic and isinstance(exploration, OwnNoise | EpsilonGreedy):
        missing_feature = "noise of their own" if isinstance(exploration, OwnNoise) else "discrete actions"
        return (
            "process",
            f"the policies of {name} have no {missing_feature}: expected 'ou', 'gaussian', 'parameter' or 'none'",
        )
    return None
