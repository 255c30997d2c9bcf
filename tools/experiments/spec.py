"""Specification of an experiment: its YAML file, its axes, and the identity of its cells.

``onrig.tools.experiments.grid`` expands it into cells.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from onrig.learner.algorithm_config import algorithm_names, default_section
from onrig.learner.sampler_settings import SamplerSettings
from onrig.learner.settings import ALWAYS_PRESENT_SECTIONS, learner_settings
from onrig.learner.trials.step_run import PLANT_PREFIX, Evaluation, StepRun
from onrig.runtime import registry
from onrig.runtime.config.conversion import convert_by_section
from onrig.runtime.config.document import Document, load_document, problem_at
from onrig.runtime.config.pieces import KEY as PYTHON
from onrig.runtime.config.pieces import holds_results, with_plugins
from onrig.runtime.config.problem import ConfigError, NodePath, Problem, suggestion
from onrig.runtime.config.yaml_nodes import without_key
from onrig.runtime.run_config import Pieces, RunConfig
from onrig.sim.twin.options import TwinOptions

MAX_TRIALS: Final = 100_000
_MAX_SEED: Final = (1 << 63) - 1
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All combinations of the values of some axes, for the configuration of one run or one world."""

    config: str | None = None
    """Name of a shipped run, or a path relative to the spec's folder."""
    world: str | None = None
    """Alternative to ``config``: a task of ``onrig.learner.trials.step_run``, such as ``gym:Pendulum-v1``; a path after
    ``plant:`` is relative to the spec's folder."""
    called: str | None = None
    """Name of the block's cells in tables and figures; replaces the values of ``set``."""
    set: dict[str, object] = {}
    """Values of this block by axis or dotted path of the run's configuration."""
    grid: dict[str, list[object]] = {}
    """Values by axis or dotted path; without axes the block is a single cell."""


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One experiment: blocks of cells, each cell run as ``trials`` independent trials."""

    name: _Name
    title: str
    trials: int
    blocks: tuple[Block, ...]
    episodes: int = 0
    """Number of episodes per trial of a run."""
    steps: int = 0
    """Number of steps per trial in a world, in place of episodes."""
    evaluation: Evaluation = Evaluation()
    """How trials in a world are evaluated."""
    figures: tuple[int | str, ...] = ()
    """Figures of de Bruin et al. 2018 by number, and tables as ``table-6``, for the report; only for runs."""
    first_seed: int = 0
    """First of the trials' consecutive seeds, which are the same in every cell, so that trials are paired."""
    set: dict[str, object] = {}
    """Values for every cell, like a block's ``set``, which takes precedence."""
    python: Pieces | msgspec.UnsetType = msgspec.UNSET
    """Plugin files for every cell, like a run's ``python``; paths are relative to the spec."""

    @property
    def seeds(self) -> range:
        """Seeds of the trials of every cell."""
        return range(self.first_seed, self.first_seed + self.trials)


class SpecFile(NamedTuple):
    """A spec with the positions of its values in the file."""

    spec: Spec
    document: Document
    path: Path


def load_spec(path: Path) -> SpecFile:
    """Read a spec. Raises ConfigError with every problem in the file itself."""
    document = with_plugins(load_document(path), None if holds_results(path) else path.parent)
    return _spec_file(document, path)


def load_copied_spec(path: Path) -> SpecFile:
    """Read the spec in an experiment's folder, without its plugins, since the stored cells name them. Raises
    ConfigError.
    """
    document = load_document(path)
    if isinstance(document.data, dict) and PYTHON in document.data:
        document = dataclasses.replace(document, data=without_key(document.data, (PYTHON,)))
    return _spec_file(document, path)


def _spec_file(document: Document, path: Path) -> SpecFile:
    spec = convert_by_section(document, Spec)
    problems = list(_problems(spec, document))
    if problems:
        raise ConfigError(sorted(problems, key=lambda p: p.mark))
    return SpecFile(spec, document, path)


def _problems(spec: Spec, document: Document) -> list[Problem]:
    problems = []
    if not 1 <= spec.trials <= MAX_TRIALS:
        problems.append(problem_at(document, ("trials",), f"expected 1 to {MAX_TRIALS}, got {spec.trials} at trials"))
    in_world = any(block.world is not None for block in spec.blocks)
    length_key, other_key = ("steps", "episodes") if in_world else ("episodes", "steps")
    if getattr(spec, length_key) < 1:
        problems.append(
            problem_at(document, (length_key,), f"expected at least 1, got {getattr(spec, length_key)} at {length_key}")
        )
    if getattr(spec, other_key):
        problem = (
            "for trials in a world, set 'steps' instead of 'episodes'"
            if in_world
            else "for trials of a run, set 'episodes' instead of 'steps'"
        )
        problems.append(problem_at(document, (other_key,), f"{problem}, at {other_key}", at_key=True))
    if not in_world and ("evaluation",) in document.marks:
        problem = "trials of a run are evaluated once per episode"
        problems.append(problem_at(document, ("evaluation",), f"{problem} at evaluation", at_key=True))
    if in_world and spec.figures:
        problem = "figures of de Bruin et al. 2018 apply to runs; a report of worlds draws all available ones"
        problems.append(problem_at(document, ("figures",), f"{problem} at figures", at_key=True))
    if not 0 <= spec.first_seed <= _MAX_SEED - MAX_TRIALS:
        message = f"expected 0 to 2^63 - {MAX_TRIALS + 1}, got {spec.first_seed} at first_seed"
        problems.append(problem_at(document, ("first_seed",), message))
    if not spec.blocks:
        problems.append(problem_at(document, ("blocks",), "expected at least one block at blocks"))
    for i, block in enumerate(spec.blocks):
        if (block.config is None) == (block.world is None):
            problems.append(problem_at(document, ("blocks", i), f"expected either 'config' or 'world' at blocks[{i}]"))
        elif in_world and block.world is None:
            message = "an experiment consists of either runs or worlds"
            problems.append(problem_at(document, ("blocks", i, "config"), f"{message} at blocks[{i}].config"))
        for axis, values in block.grid.items():
            if not values:
                problems.append(problem_at(document, ("blocks", i, "grid", axis), f"axis '{axis}' has no values"))
    return problems


PLACEHOLDER: Final = "alpha"
"""Axis that only fills ``{alpha}`` in a strategy."""

_AXES: Final[Mapping[str, tuple[str, ...]]] = {
    "strategy": ("selection.strategy",),
    PLACEHOLDER: (),
    "capacity": ("selection.capacity",),
    "write_probability": ("selection.write_probability",),
    "synthetic_states": ("selection.synthetic.states",),
    "synthetic_actions": ("selection.synthetic.actions",),
    "refresh": ("selection.synthetic.refresh",),
    "rate_hz": ("rate_hz",),
    "noise": ("device.twin.sensor_noise", "device.twin.actuator_noise"),
    "inertia": ("device.twin.plant.inertia",),
    "algorithm": ("learner.algorithm",),
    "network": ("learner.*.network",),
    "gamma": ("learner.*.gamma",),
}
"""Configuration paths that each axis sets, by short name; ``*`` stands for the section of the cell's algorithm and for
the sections that every configuration has.
"""

_ANY: Final = "learner.*."
_PATH: Final = re.compile(r"[A-Za-z_]\w*(\[\d{1,6}\])*(\.[A-Za-z_]\w*(\[\d{1,6}\])*)*")
_SPEC_KEYS: Final = {"seed": "first_seed", "episodes": "episodes", "steps": "steps", "world": "world"}
"""Paths for which the spec or its blocks have keys of their own."""
_INERTIA: Final = {
    "paper": {"rig": "pendulum", "task": "swingup"},
    "hardware": {"rig": "pendulum-hardware", "task": "swingup-hardware"},
}


class Override(NamedTuple):
    """A value that a spec sets in a run's configuration."""

    path: str
    value: object
    location: NodePath
    """Position in the spec."""

    @property
    def assignment(self) -> str:
        """Format for ``onrig.runtime.config.document.override`` (JSON is YAML)."""
        return f"{self.path}={msgspec.json.encode(self.value).decode()}"


def axes() -> dict[str, tuple[str, ...]]:
    """Return the configuration paths that each axis sets, by short name, including the axes of sampling methods."""
    return {**_AXES, **{name: (f"learner.{name}",) for sampling in _samplings() for name in sampling.common}}


def _samplings() -> Iterable[type[SamplerSettings]]:
    return registry.load_available(registry.SAMPLERS).values()


def is_sampling_option(axis: str) -> bool:
    """Return whether an axis sets an option of a sampling method, in any section."""
    section = axis.removeprefix("learner.").partition(".")[0]
    return any(section in (sampling.section, *sampling.common) for sampling in _samplings())


def short_name(name: str) -> str:
    """Return the canonical name of an axis, which may also be given as a path."""
    return next((short for short, paths in axes().items() if paths == (name,)), name)


def field_of_algorithm(name: str) -> str | None:
    """Return the setting that an axis represents in any algorithm, or None for other axes."""
    paths = axes().get(name, ())
    return paths[0].removeprefix(_ANY) if paths and paths[0].startswith(_ANY) else None


def name_problem(name: str, config: type[RunConfig] | type[StepRun]) -> str | None:
    """Return what is wrong with the name of an axis or of a value to set in a configuration, or None if it is valid."""
    if name in _SPEC_KEYS:
        return f"'{name}' is set by the key '{_SPEC_KEYS[name]}' of the spec"
    first_key = re.split(r"[.\[]", name, maxsplit=1)[0]
    fields = config.__struct_fields__
    if name in axes() or (_PATH.fullmatch(name) and first_key in fields):
        return None
    hint = suggestion(name, list(axes()))
    return f"unknown axis '{name}' ({hint if hint.startswith('did') else f'paths of the configuration, and {hint}'})"


def paths_set_by(name: str, algorithm: str | None = None) -> tuple[str, ...]:
    """Return the configuration paths that a value with this name sets in cells of ``algorithm`` (None: of any
    algorithm).
    """
    field = field_of_algorithm(name)
    if field is None:
        return axes().get(name, (name,))
    sections = algorithm_names() if algorithm is None else dict.fromkeys((*ALWAYS_PRESENT_SECTIONS, algorithm))
    return tuple(f"learner.{s}.{field}" for s in sections if algorithm is None or field in algorithm_fields(s))


def algorithm_fields(algorithm: str) -> tuple[str, ...]:
    """Return the names of an algorithm's settings; empty for an unknown algorithm."""
    return default_section(algorithm).__struct_fields__ if algorithm in algorithm_names() else ()


def settings_of(
    name: str, value: object, location: NodePath, base: RunConfig | None, algorithm: str
) -> Iterator[Override]:
    """Yield the settings for a value with this name in a cell of ``algorithm``, for the run ``base`` or in a world.

    The pendulum's inertia belongs to the plant, but the task has reference scores for it: for the two shipped presets,
    rig and task change together with the inertia.
    """
    pendulums = ("pendulum", "pendulum-hw")
    if name == "inertia" and base and base.rig.name in pendulums and base.task.name.startswith("swingup"):
        preset = _INERTIA.get(value) if isinstance(value, str) else None
        yield from (Override(path, preset_value, location) for path, preset_value in (preset or {}).items())
    yield from (Override(path, value, location) for path in paths_set_by(name, algorithm))


def cell_id(config: RunConfig | StepRun, plant: RunConfig | None = None) -> str:
    """Return the digest of a resolved configuration without its seed: 12 hexadecimal digits.

    ``plant`` is the run that defines a plant's world; only the parts that the world uses are included, without its
    name. Default values are ignored, so that a later version with more settings can resume an experiment;
    `equal_settings` detects changed defaults, except in the run of a world.
    """
    parts = [_drop_defaults(part) for part in _identifying_parts(config)]
    if plant is not None:
        world_parts = (plant.rig, plant.task, plant.limits, _identifying_parts(plant)[-1], plant.rate_hz)
        parts += [_drop_defaults(part) for part in world_parts]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:12]


def equal_settings(a: RunConfig | StepRun, b: RunConfig | StepRun) -> bool:
    """Return whether two resolved configurations, including defaults, are equal except for the seed."""
    return _identifying_parts(a) == _identifying_parts(b)


def _identifying_parts(config: RunConfig | StepRun) -> tuple[msgspec.Struct | None, ...]:
    config = msgspec.structs.replace(config, python=_drop_folders(config.python))
    if isinstance(config, StepRun):
        return (
            msgspec.structs.replace(config, world=PLANT_PREFIX) if config.world.startswith(PLANT_PREFIX) else config,
        )
    twin, learner = config.device.twin, learner_settings(config.learner)
    device = msgspec.structs.replace(config.device, twin=None)
    stripped_config = msgspec.structs.replace(config, seed=0, learner={}, device=device)
    return stripped_config, learner, None if twin is None else msgspec.convert(twin, TwinOptions)


def _drop_folders(plugin_files: Pieces | msgspec.UnsetType) -> Pieces | msgspec.UnsetType:
    """Return plugin files without their folders, which must not affect the digest."""
    if plugin_files is msgspec.UNSET:
        return plugin_files
    return {key: {name: Path(path).name for name, path in files.items()} for key, files in plugin_files.items()}


def _drop_defaults(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        changed_values = {
            f.encode_name: getattr(value, f.name) for f in msgspec.structs.fields(value) if not _is_default(value, f)
        }
        tag = value.__struct_config__.tag
        return {"": tag} | {name: _drop_defaults(v) for name, v in changed_values.items()}
    if isinstance(value, dict):
        return {name: _drop_defaults(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_drop_defaults(v) for v in value]
    return value


def _is_default(struct: msgspec.Struct, field: msgspec.structs.FieldInfo) -> bool:
    if field.default_factory is not msgspec.NODEFAULT:
        return bool(getattr(struct, field.name) == field.default_factory())
    return field.default is not msgspec.NODEFAULT and bool(getattr(struct, field.name) == field.default)
