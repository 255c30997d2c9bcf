"""Candidates of a race as cells of an experiment; the experiment's folder contains their trials."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from onrig.learner.trials.measures import normalized_curves
from onrig.learner.trials.objectives import Values, fill_diverged
from onrig.learner.trials.step_run import SHIELD_COUNTS
from onrig.learner.trials.worlds.factory import run_of_world
from onrig.runtime.config.document import find_config, override, parse_document, shipped_names
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.config.yaml_nodes import dump_yaml
from onrig.runtime.explore.settings import Quota
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps
from onrig.tools.advice.candidates import Candidate
from onrig.tools.advice.translation import Untranslatable, to_trial
from onrig.tools.experiments.spec import cell_id
from onrig.tools.experiments.store import CALLED_KEY, WorldCell, read_trials, write_atomically
from onrig.tools.load import load_for_rig

RECIPES: Final = "candidates"
"""Folder of the candidates' recipes, within the race's folder."""
_LEARNING_SECTIONS: Final = ("learner", "selection", "exploration", "recipe", "seed", "policy")
"""Sections whose overrides do not change the world."""


class Subject(NamedTuple):
    """Configuration to advise on."""

    name: str
    """Path or shipped name of the configuration."""
    overrides: tuple[str, ...]

    @property
    def label(self) -> str:
        """Name of the configuration's races."""
        return "advice-" + re.sub(r"[^A-Za-z0-9._-]", "-", Path(self.name).stem)

    @property
    def world(self) -> str:
        """Name of the configuration in a trial: a shipped name or an absolute path."""
        return self.name if self.name in shipped_names() else str(find_config(self.name).resolve())

    @property
    def settings(self) -> dict[str, object]:
        """Overrides that change the world, by path."""
        return {
            path.strip(): override(parse_document("{}", ""), f"it={value}").data["it"]  # type: ignore[index, call-overload]
            for path, _, value in (text.partition("=") for text in self.overrides)
            if path.split(".")[0].split("[")[0].strip() not in _LEARNING_SECTIONS
        }


class Entrant(NamedTuple):
    """A candidate in the race, with its configuration and the cell of its trials."""

    candidate: Candidate
    config: RunConfig
    cell: WorldCell


class Field(NamedTuple):
    """Candidates that can run, and the reasons why the others cannot, both by name."""

    entrants: dict[str, Entrant]
    refusal_reasons: dict[str, str]

    def cells(self) -> list[WorldCell]:
        """Return the cells of all entrants."""
        return [entry.cell for entry in self.entrants.values()]


def enter_candidates(
    subject: Subject, folder: Path, plants: Mapping[str, Any], candidates: Iterable[Candidate]
) -> Field:
    """Write the candidates' recipes, and check that each is valid as a run and as trials.  Raises OSError."""
    recipes = folder / RECIPES
    recipes.mkdir(parents=True, exist_ok=True)
    field = Field({}, {})
    ids: dict[str, str] = {}
    for candidate in candidates:
        overrides = list(subject.overrides)
        if candidate.recipe is not None:
            write_atomically(recipes / candidate.file, candidate.text.encode())
            overrides.append(f"recipe={recipes / candidate.file}")
        try:
            config = load_for_rig(subject.name, overrides)
            run = to_trial(config, subject.world, {"set": subject.settings, "plants": plants})
        except ConfigError as error:
            field.refusal_reasons[candidate.name] = "; ".join(problem.message for problem in error.problems)
        except Untranslatable as error:
            field.refusal_reasons[candidate.name] = str(error)
        else:
            cell = WorldCell(cell_id(run, run_of_world(run)), {"world": subject.name, CALLED_KEY: candidate.name}, run)
            if cell.id in ids:
                field.refusal_reasons[candidate.name] = f"the same as {ids[cell.id]}"
                continue
            ids[cell.id] = candidate.name
            field.entrants[candidate.name] = Entrant(candidate, config, cell)
    return field


def spec_of(name: str, cells: Sequence[WorldCell], trials: int) -> bytes:
    """Return the spec of an experiment with these cells, as YAML."""
    first_config = cells[0].config
    blocks = []
    for cell in cells:
        settings = msgspec.to_builtins(cell.config)
        world = settings.pop("world")
        for trial_setting in ("steps", "evaluation", "python"):
            settings.pop(trial_setting, None)
        blocks.append({"world": world, "called": cell.label[CALLED_KEY], "set": settings})
    spec = {
        "name": name,
        "title": f"Candidates of a race: {name}",
        "trials": trials,
        "steps": first_config.steps,
        "evaluation": msgspec.to_builtins(first_config.evaluation),
        "blocks": blocks,
    }
    if first_config.python is not msgspec.UNSET:
        spec["python"] = first_config.python
    return f"# Written by `onrig advise`.\n{dump_yaml(spec)}".encode()


def curves_of(folder: Path, entry: Entrant, n_pairs: int) -> Values:
    """Return the normalised curves (n, P) of the first n pairs, all of which are finished; n is at most ``n_pairs``."""
    trials = read_trials(folder, entry.cell)
    row_of_seed = {seed: row for row, seed in enumerate(trials.seeds.tolist())}
    n = next((k for k in range(n_pairs) if k not in row_of_seed), n_pairs)
    rows = trials.evaluation[[row_of_seed[k] for k in range(n)]]
    steps = episode_steps(entry.config.task, entry.config.rate_hz)
    return fill_diverged(normalized_curves(entry.config.task, rows / steps))


def describe_excess_trips(folder: Path, entry: Entrant, n_pairs: int) -> str | None:
    """Describe by how much a candidate's first pairs exceed the permitted trips. Return None if they do not."""
    budgets, trials = entry.config.exploration.budgets, read_trials(folder, entry.cell)
    if trials.shield is None:
        return None
    trips = trials.shield[trials.seeds < n_pairs, SHIELD_COUNTS.index("trips")].sum(axis=1)
    hours = entry.cell.config.steps / entry.config.rate_hz / 3600.0
    quotas: tuple[tuple[str, Quota, float], ...] = (("session", budgets.session, 1.0), ("hour", budgets.hour, hours))
    for span, quota, length in quotas:
        mean = float(np.mean(trips)) / length
        if quota.trips is not None and mean > quota.trips:
            return f"{mean:.3g} trips per {span} on the twin; exploration.budgets.{span}.trips allows {quota.trips}"
    return None
