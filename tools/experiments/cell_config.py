"""Configuration of one cell of a spec, built from the values that the cell sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from onrig.learner.settings import LearnerSettings, learner_settings
from onrig.learner.trials.step_run import StepRun
from onrig.runtime.config.conversion import convert_by_section
from onrig.runtime.config.document import override, override_origin, parse_document
from onrig.runtime.config.pieces import with_plugins
from onrig.runtime.config.problem import ConfigError, NodePath
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps
from onrig.tools.experiments.spec import PLACEHOLDER, Override, Spec, algorithm_fields, field_of_algorithm, settings_of
from onrig.tools.load import load

REUSE: Final = 8
"""Average number of replays of an experience (de Bruin et al. 2018, App. B.1), which determines the number of updates
unless the spec sets it."""
_UPDATES: Final = "learner.updates_per_episode"
UNLIMITED: Final = Override("limits", {}, ())
"""Override that removes a rig's limits. Trials have no shield (as in de Bruin et al. 2018), and the limits on rate and
lease would stop them.
"""
_PLACEHOLDER_TEXT: Final = f"{{{PLACEHOLDER}}}"

EngineProblems = Callable[[RunConfig, LearnerSettings], list[str]]
"""Reasons why the trials engine cannot run a configuration: ``onrig.learner.trials.supported.trials_problems``."""
WorldProblems = Callable[[StepRun], list[tuple[str, str]]]
"""Reasons why trials cannot run in their world: ``onrig.learner.trials.supported.world_problems``."""
Values = dict[str, tuple[object, NodePath]]
"""Values that a cell sets, by short name, with their positions in the spec; later ones take precedence."""


class CellProblem(NamedTuple):
    """Reason why a combination of values is not a valid configuration."""

    message: str
    location: NodePath | None
    """Position in the spec, if known."""


def world_config(
    world: str, location: NodePath, spec: Spec, find_world_problems: WorldProblems, values: Values
) -> tuple[StepRun | None, list[CellProblem]]:
    """Return the configuration of one cell in a world (None if it cannot be built), and the problems with it."""
    world_values = {"world": world, "steps": spec.steps, "evaluation": spec.evaluation}
    document = parse_document(msgspec.json.encode(world_values).decode(), "")
    try:
        settings = [*_plugin_settings(spec), *_fill_placeholders(None, values)]
    except _AlphaMismatch as error:
        return None, [CellProblem(str(error), error.location)]
    origins = {override_origin(setting.assignment): setting.location for setting in settings}
    try:
        for setting in settings:
            document = override(document, setting.assignment)
        run = convert_by_section(with_plugins(document, None), StepRun)
    except ConfigError as error:
        return None, [CellProblem(problem.message, origins.get(problem.file)) for problem in error.problems]
    origins_by_path = {"world": location, "steps": ("steps",), "evaluation.every": ("evaluation", "every")}
    origins_by_path |= {setting.path: setting.location for setting in settings}
    problems = [
        CellProblem(f"{message} at {path}", origins_by_path.get(path)) for path, message in find_world_problems(run)
    ]
    problems += _unused_axes(values, run.learner)
    if not problems:
        strategy = str(parse_strategy(run.selection.strategy))
        run = msgspec.structs.replace(run, selection=msgspec.structs.replace(run.selection, strategy=strategy))
    return run, problems


def run_config_of(
    path: str, base: RunConfig, spec: Spec, find_engine_problems: EngineProblems, values: Values
) -> tuple[RunConfig | None, list[CellProblem]]:
    """Return the configuration of one cell (None if it cannot be built), and the problems with it."""
    try:
        settings = [Override("episodes", spec.episodes, ("episodes",)), UNLIMITED, *_plugin_settings(spec)]
        settings += _fill_placeholders(base, values)
    except _AlphaMismatch as error:
        return None, [CellProblem(str(error), error.location)]
    origins = {f"--set {setting.assignment}": setting.location for setting in settings}
    try:
        config = load(path, [setting.assignment for setting in settings])
    except ConfigError as error:
        return None, [CellProblem(problem.message, origins.get(problem.file)) for problem in error.problems]
    learner = learner_settings(config.learner)
    steps = episode_steps(config.task, config.rate_hz)
    if not _sets_updates(values):
        updates = max(1, round(REUSE * steps * config.selection.write_probability / learner.batch))
        learner = msgspec.structs.replace(learner, updates_per_episode=updates, updates_per_transition=None)
    selection = msgspec.structs.replace(config.selection, strategy=str(parse_strategy(config.selection.strategy)))
    synthetic = selection.synthetic
    if synthetic is not None and synthetic.states == synthetic.actions == 0:
        selection = msgspec.structs.replace(selection, synthetic=None)
    config = msgspec.structs.replace(
        config,
        seed=0,
        selection=selection,
        learner=msgspec.json.decode(msgspec.json.encode(learner)),  # lists instead of tuples, as `load` returns them
    )
    problems = [CellProblem(message, None) for message in find_engine_problems(config, learner)]
    problems += _unused_axes(values, learner)
    if config.episodes * steps < learner.batch:
        message = f"{config.episodes} episodes of {steps} steps do not fill a batch of {learner.batch} at episodes"
        problems.append(CellProblem(message, ("episodes",)))
    return config, problems


def _sets_updates(values: Values) -> bool:
    """Return whether the number of updates is set, directly or within ``learner``."""
    learner, _ = values.get("learner", (None, ()))
    section = learner if isinstance(learner, Mapping) else {}
    return _UPDATES in values or "updates_per_episode" in section or "updates_per_transition" in section


def _unused_axes(values: Values, learner: LearnerSettings) -> Iterator[CellProblem]:
    """Yield a problem for each axis whose setting the algorithm does not have."""
    for name, (_, location) in values.items():
        field = field_of_algorithm(name)
        if field is not None and field not in algorithm_fields(learner.algorithm):
            yield CellProblem(f"'{name}' sets learner.{learner.algorithm}.{field}, which does not exist", location)


def _algorithm(base: RunConfig | None, values: Values) -> str:
    """Return the name of a cell's algorithm, which may be unknown."""
    learner, _ = values.get("learner", (None, ()))
    section_algorithm = learner.get("algorithm") if isinstance(learner, Mapping) else None
    base_algorithm = None if base is None else base.learner.get("algorithm")
    algorithm, _ = values.get("algorithm", (section_algorithm or base_algorithm or LearnerSettings().algorithm, ()))
    return str(algorithm)


def _plugin_settings(spec: Spec) -> Iterator[Override]:
    """Yield the settings for the plugin files of the spec."""
    for key, files in ({} if spec.python is msgspec.UNSET else spec.python).items():
        for name, path in files.items():
            yield Override(f"python.{key}.{name}", path, ("python", key, name))


class _AlphaMismatch(ValueError):
    """A strategy and the axis ``alpha`` do not match."""

    def __init__(self, message: str, location: NodePath) -> None:
        super().__init__(message)
        self.location = location


def _fill_placeholders(base: RunConfig | None, values: Values) -> list[Override]:
    """Return a cell's settings in the order of ``values``, with placeholders filled; later ones take precedence."""
    alpha = values.get(PLACEHOLDER)
    settings: list[Override] = []
    algorithm = _algorithm(base, values)
    for name, (value, location) in values.items():
        if name == "strategy" and isinstance(value, str) and _PLACEHOLDER_TEXT in value:
            if alpha is None:
                message = f"'{value}' has a placeholder for the missing axis '{PLACEHOLDER}' at strategy"
                raise _AlphaMismatch(message, location)
            value = value.replace(_PLACEHOLDER_TEXT, str(as_label(alpha[0])))
        settings += settings_of(name, value, location, base, algorithm)
    return settings


def as_label(value: object) -> str | float | int:
    """Convert a value for use in a cell's label. Numbers and text are unchanged, and other values become JSON."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    return msgspec.json.encode(value).decode()
