"""Kinds of configuration files, recognised by their content, and advice for a user who passes one in place of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from onrig.hw.rig import Rig
from onrig.runtime.config.document import is_file, shipped_names
from onrig.runtime.config.recipe import SECTIONS
from onrig.runtime.config.yaml_nodes import Data
from onrig.runtime.task import Task

RIG: Final = "rig"
TASK: Final = "task"
_RECIPE: Final = "recipe"
_EXPERIMENT: Final = "experiment"
_IDENTIFIED: Final = "result of onrig identify"
_NAMES: Final = {
    RIG: {field.encode_name for field in msgspec.structs.fields(Rig)},
    TASK: {field.encode_name for field in msgspec.structs.fields(Task)},
}
_DISTINCTIVE_KEYS: Final = {_EXPERIMENT: {"blocks"}, _IDENTIFIED: {"twin", "predicted"}}
_FOLDERS: Final = {"rigs": RIG, "tasks": TASK, "recipes": _RECIPE, "experiments": _EXPERIMENT}


def kind_of(data: Data) -> str | None:
    """Return the kind of a configuration that is not a run, such as a rig or a task; None for a run or unknown
    content."""
    if not isinstance(data, dict) or not data or {RIG, TASK} & set(data):
        return None
    if distinct_kind := next((kind for kind, names in _DISTINCTIVE_KEYS.items() if names & set(data)), None):
        return distinct_kind
    n_matches = {kind: len(names & set(data)) for kind, names in _NAMES.items()}
    kind = max(n_matches, key=lambda k: n_matches[k])
    if n_matches[kind] >= 2:
        return kind
    return _RECIPE if set(data) <= set(SECTIONS) else None


def explain_kind(kind: str, name: str, path: Path | None = None) -> str:
    """Explain what a file of this kind is, and how to use it."""
    example_run = path.parent / "run.yaml" if path is not None else None
    example = f", such as {example_run}" if example_run is not None and is_file(example_run) else ""
    return f"this is {'an' if kind[0] in 'aeiou' else 'a'} {kind}; " + {
        _RECIPE: f"apply it to a run: onrig run RUN --set recipe={name}",
        _EXPERIMENT: f"run it with onrig experiment {name}",
        _IDENTIFIED: f"use it in a run: onrig run RUN --set identified={name}",
    }.get(kind, f"give a run that uses it{example}")


def shipped_kind(name: str) -> str | None:
    """Return the kind of a shipped configuration that is not a run; None for an unknown name."""
    return next((kind for folder, kind in _FOLDERS.items() if name in shipped_names(folder)), None)
