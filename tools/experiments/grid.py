"""Expansion of a spec into cells: every combination is resolved and checked before any trial runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Final

import msgspec

from onrig.learner.trials.step_run import GYM_PREFIX, PLANT_PREFIX, StepRun
from onrig.learner.trials.supported import world_problems
from onrig.learner.trials.worlds.factory import run_of_world
from onrig.runtime.config.document import find_config, problem_at, shipped_names
from onrig.runtime.config.problem import ConfigError, NodePath, Problem
from onrig.runtime.run_config import RunConfig
from onrig.tools.experiments.cell_config import (
    UNLIMITED,
    CellProblem,
    EngineProblems,
    Values,
    WorldProblems,
    as_label,
    run_config_of,
    world_config,
)
from onrig.tools.experiments.spec import (
    Block,
    SpecFile,
    cell_id,
    name_problem,
    paths_set_by,
    short_name,
)
from onrig.tools.experiments.store import CALLED_KEY, AnyCell, Cell, WorldCell
from onrig.tools.load import load

MAX_CELLS: Final = 2000
Label = dict[str, str | float | int]


_CellResolver = Callable[[Values], tuple[RunConfig | StepRun | None, list[CellProblem]]]
"""Function that maps the values of a cell to its configuration, or to problems."""


def expand_spec(
    file: SpecFile, find_engine_problems: EngineProblems, find_world_problems: WorldProblems = world_problems
) -> Sequence[AnyCell]:
    """Return every cell of a spec. Raises ConfigError with every problem and its line.

    Unless the spec sets it, the number of batch updates after an episode is chosen so that every experience is replayed
    eight times on average (de Bruin et al. 2018, App. B.1): 100 for 200 steps and batches of 16, proportionally more at
    higher rates, and fewer if experiences are dropped before storage ([DE], which compensates for a higher rate; §6.4).
    """
    problems: list[Problem] = []
    cells: dict[str, AnyCell] = {}
    labels: set[bytes] = set()
    kind = StepRun if file.spec.steps else RunConfig
    name_problems = list(_name_problems(file, file.spec.set, ("set",), {}, kind))
    for i, block in enumerate(file.spec.blocks):
        path: NodePath = ("blocks", i)
        names_by_path: dict[str, str] = {}
        block_problems = [
            *_name_problems(file, block.set, (*path, "set"), names_by_path, kind),
            *_name_problems(file, block.grid, (*path, "grid"), names_by_path, kind),
            *_duplicates(file, block, path),
        ]
        if name_problems or block_problems:
            problems += block_problems
            continue
        try:
            block_cells = list(_block_cells(file, block, path, find_engine_problems, find_world_problems))
        except ConfigError as error:
            problems += error.problems
            continue
        for cell in block_cells:
            label = msgspec.json.encode(cell.label, order="sorted")
            if cell.id in cells:
                message = f"the cell {cell_text(cell)} is the same as {cell_text(cells[cell.id])}"
                problems.append(_problem_at(file, (*path, "grid"), message))
            elif label in labels:
                message = f"two cells are both {cell_text(cell)}: set the distinguishing value in one of the blocks"
                problems.append(_problem_at(file, path, message))
            cells[cell.id] = cell
            labels.add(label)
    if name_problems or problems:
        raise ConfigError(sorted({*name_problems, *problems}, key=lambda p: (p.mark, p.message)))
    return list(cells.values())


def cell_text(cell: AnyCell) -> str:
    """Return a short description of a cell."""
    return ", ".join(
        str(v) if k in ("config", "world", CALLED_KEY, "strategy") else f"{k} {v}" for k, v in cell.label.items()
    )


def _name_problems(
    file: SpecFile,
    names: Mapping[str, object],
    path: NodePath,
    names_by_path: dict[str, str],
    config: type[RunConfig] | type[StepRun],
) -> Iterator[Problem]:
    """Yield the problems with ``names``. ``names_by_path`` maps each path that is already set to the name that sets it,
    and is extended.
    """
    for name in names:
        message = name_problem(name, config)
        for target in paths_set_by(name) or (name,):
            if target in names_by_path:
                message = f"'{name}' sets {target}, which '{names_by_path[target]}' already sets"
            names_by_path[target] = name
        if message is not None:
            yield problem_at(file.document, (*path, name), message, at_key=True)


def _duplicates(file: SpecFile, block: Block, path: NodePath) -> Iterator[Problem]:
    for name, values in block.grid.items():
        values_by_key: dict[bytes, object] = {}
        for i, value in enumerate(values):
            key = msgspec.json.encode(_normalise(value), order="sorted")
            if key in values_by_key:
                message = f"axis '{name}' has the value {as_label(value)} twice"
                yield problem_at(file.document, (*path, "grid", name, i), message)
            values_by_key[key] = value
    count = 1
    for values in block.grid.values():
        count *= len(values)
    if count > MAX_CELLS:
        yield _problem_at(file, (*path, "grid"), f"{count} combinations exceed the maximum of {MAX_CELLS}")


def _block_cells(
    file: SpecFile,
    block: Block,
    block_path: NodePath,
    find_engine_problems: EngineProblems,
    find_world_problems: WorldProblems,
) -> Iterator[AnyCell]:
    resolve: _CellResolver
    if block.world is None:
        path, base = _run_of(file, block, block_path)
        common_label: Label = {"config": path.stem}
        resolve = partial(run_config_of, str(path), base, file.spec, find_engine_problems)
    else:
        world, name = _world_of(file, block.world, (*block_path, "world"))
        common_label = {"world": name}
        resolve = partial(world_config, world, (*block_path, "world"), file.spec, find_world_problems)
    if block.called is not None:
        common_label[CALLED_KEY] = block.called
    spec_values: Values = {short_name(name): (value, ("set", name)) for name, value in file.spec.set.items()}
    block_set_values: Values = {
        short_name(name): (value, (*block_path, "set", name)) for name, value in block.set.items()
    }
    axes = [
        [(short_name(name), (value, (*block_path, "grid", name, i))) for i, value in enumerate(values)]
        for name, values in block.grid.items()
    ]
    problems: dict[str, Problem] = {}
    for combination in itertools.product(*axes):
        block_values: Values = {**block_set_values, **dict(combination)}
        # Later values take precedence, so values of the spec that the block replaces are removed first.
        values: Values = {
            **{name: value for name, value in spec_values.items() if name not in block_values},
            **block_values,
        }
        config, cell_problems = resolve(values)
        labelled_values = block_values if block.called is None else dict(combination)
        label = common_label | {name: as_label(value) for name, (value, _) in labelled_values.items()}
        if config is not None and not cell_problems:
            yield _cell(label, config)
            continue
        for problem in cell_problems:
            if problem.message not in problems:
                location = problem.location or _find_cause(resolve, values, problem)
                base_key = "config" if block.world is None else "world"
                problems[problem.message] = _problem_at(file, location or (*block_path, base_key), problem.message)
    if problems:
        raise ConfigError(problems.values())


def _run_of(file: SpecFile, block: Block, location: NodePath) -> tuple[Path, RunConfig]:
    """Return the path and the configuration of a block's run, without limits."""
    try:
        path = find_config(str(block.config), base=file.path.parent)
        return path, load(str(path), [UNLIMITED.assignment])
    except FileNotFoundError as error:
        raise ConfigError([_problem_at(file, (*location, "config"), f"{error} at config")]) from None
    except ConfigError as error:
        problems = "; ".join(str(problem) for problem in error.problems)
        raise ConfigError([_problem_at(file, (*location, "config"), problems)]) from None


def _world_of(file: SpecFile, world: str, location: NodePath) -> tuple[str, str]:
    """Return a block's world, with an absolute path if it names a run's file, and the name of its task, which for a
    file ``run.yaml`` is the name of its folder.
    """
    task = world.removeprefix(GYM_PREFIX).removeprefix(PLANT_PREFIX)
    if not world.startswith(PLANT_PREFIX) or not task or task in shipped_names():
        return world, task
    try:
        path = find_config(task, base=file.path.parent)
    except FileNotFoundError as error:
        raise ConfigError([_problem_at(file, location, f"{error} at world")]) from None
    path = path.resolve()
    if path.name == "run.yaml":
        folder = PurePath(task).parent
        task = str(folder) if folder.name else path.parent.name
    return f"{PLANT_PREFIX}{path}", task


def _cell(label: Label, config: RunConfig | StepRun) -> AnyCell:
    if isinstance(config, RunConfig):
        return Cell(cell_id(config), label, config)
    return WorldCell(cell_id(config, run_of_world(config)), label, config)


def _find_cause(resolve: _CellResolver, values: Values, problem: CellProblem) -> NodePath | None:
    """Find the position of the value that causes the problem, trying axes first."""
    for name in reversed(values):
        other_values = {n: v for n, v in values.items() if n != name}
        if problem.message not in {t.message for t in resolve(other_values)[1]}:
            return values[name][1]
    return None


def _normalise(value: object) -> object:
    """Normalise a value, so that 1 and 1.0 are equal."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _problem_at(file: SpecFile, location: NodePath, message: str) -> Problem:
    return problem_at(file.document, location, message)
