"""Recipe ``start.yaml``, with which a run starts from a pretraining's networks and experiences."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from onrig.learner.settings import learner_settings
from onrig.runtime import registry
from onrig.runtime.config.document import load_document
from onrig.runtime.config.identified import FILE_NAME
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.config.yaml_nodes import dump_yaml, value_at
from onrig.runtime.explore.schedule import interpolate
from onrig.runtime.explore.settings import ScheduledNoise
from onrig.runtime.files import replace_own_file
from onrig.runtime.run_config import RunConfig
from onrig.tools.pretrained import Pretraining, total_improvement

START_FILE: Final = "start.yaml"
N_SCREENING_PLANTS: Final = 8
"""Number of plants on which a run from a pretraining tests each policy; takes about 0.2 s at 50 Hz for 4 s episodes."""


def write_start(folder: Path, config: RunConfig, record: Pretraining) -> None:
    """Write the recipe. Raises OSError."""
    text = f"# Starts a run from the pretraining in this folder: onrig run CONFIG --pretrained {folder}\n"
    replace_own_file(
        folder / START_FILE, (text + dump_yaml(start_recipe(folder, config, record))).encode(), durable=True
    )


def start_recipe(folder: Path, config: RunConfig, record: Pretraining) -> dict[str, Any]:
    """Return a recipe that continues the pretraining's learner, selection and exploration from where it ended."""
    folder_path = str(folder.resolve())
    other_algorithms = set(registry.names(registry.ALGORITHMS)) - {learner_settings(config.learner).algorithm}
    learner = {name: section for name, section in config.learner.items() if name not in other_algorithms}
    selection = msgspec.to_builtins(config.selection)
    if not learner_settings(config.learner).algorithm_config.batch_steps:  # on-policy algorithms cannot be seeded
        selection["seed_from"] = folder_path
        if total_improvement(record.evaluations).low > 0:
            learner["screening"] = N_SCREENING_PLANTS
    exploration = msgspec.to_builtins(config.exploration)
    exploration.pop("budgets")
    if isinstance(config.exploration, ScheduledNoise) and config.exploration.over == "episodes":
        exploration["amplitude"] = shift_schedule(exploration["amplitude"], record.evaluations[-1].episode)
    return {
        "learner": {**learner, "start_from": folder_path},
        "selection": selection,
        "exploration": exploration,
    }


def start_settings(folder: Path) -> tuple[str, ...]:
    """Return the settings of a run that begins with the pretraining in ``folder``, which may have been moved."""
    recipe = folder / START_FILE
    settings: tuple[str, ...] = (f"recipe={_quote(recipe)}", f"identified={_quote(folder / FILE_NAME)}")
    try:
        data = load_document(recipe).data
    except ConfigError:  # reported when the run reads its recipe
        return settings
    for section, key in (("learner", "start_from"), ("selection", "seed_from")):
        with suppress(KeyError, TypeError):
            value_at(data, (section, key))
            settings += (f"{section}.{key}={_quote(folder)}",)
    return settings


def _quote(path: Path) -> str:
    return msgspec.json.encode(str(path)).decode()


def shift_schedule(amplitude: Any, episodes: int) -> Any:
    """Return an amplitude schedule, or one per actuator, shifted for a run that begins ``episodes`` later."""
    if isinstance(amplitude, dict):
        return {name: shift_schedule(points, episodes) for name, points in amplitude.items()}
    return [
        [1.0, interpolate(amplitude, 1.0 + episodes)],
        *([x - episodes, y] for x, y in amplitude if x - episodes > 1.0),
    ]
