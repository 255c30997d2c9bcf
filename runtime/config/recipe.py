"""The key ``recipe: NAME``: learning settings from a file of ``recipes/``, merged over a run's sections.

The recipe's ``learner`` replaces the run's.  Other sections are merged, so that settings absent from the recipe
(exploration budgets, say) are kept. The resulting configuration holds the values instead of the key.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from onrig.runtime.config.document import Document, find_config, load_document, problem_at, with_value_from
from onrig.runtime.config.problem import ConfigError, NodePath
from onrig.runtime.config.yaml_nodes import value_at, without_key

KEY: Final = "recipe"
FOLDER: Final = "recipes"
SECTIONS: Final = ("learner", "selection", "exploration", "episodes", "evaluate_every")
"""Sections that a recipe may set; rig, device, task and limits belong to the run."""
_LEARNER_PATH: Final[NodePath] = ("learner",)
"""Section replaced completely, because one algorithm's settings may be wrong for another."""
_EXPLORATION_PATH: Final[NodePath] = ("exploration",)
_COMMON_SETTINGS: Final = ("budgets", "over", "amplitude", "near_envelope", "back_off", "quiet")
"""Exploration settings kept when the recipe changes the noise process; the others depend on the process."""


def with_recipe(document: Document, base: Path) -> Document:
    """Merge the configuration's recipe into it; return the document unchanged if it names none.

    ``base`` is the configuration's folder; a path on the command line is relative to the working directory.
    Raises ConfigError.
    """
    if not isinstance(document.data, dict) or KEY not in document.data:
        return document
    name = document.data[KEY]
    merged = dataclasses.replace(document, data=without_key(document.data, (KEY,)))
    if name is None:
        return merged
    if not isinstance(name, str):
        raise ConfigError([problem_at(document, (KEY,), f"expected the name or file of a recipe at {KEY}")])
    try:
        path = find_config(name, FOLDER, Path() if (KEY,) in document.overrides else base)
    except FileNotFoundError as error:
        raise ConfigError([problem_at(document, (KEY,), f"{error} at {KEY}")]) from None
    recipe = load_document(path)
    if not isinstance(recipe.data, dict):
        raise ConfigError([problem_at(recipe, (), "expected sections of a run, such as learner")])
    unknown_keys = [key for key in recipe.data if key not in SECTIONS]
    if unknown_keys:
        text = f"cannot be set by a recipe, only {', '.join(SECTIONS)}"
        raise ConfigError([problem_at(recipe, (key,), f"'{key}' {text}", at_key=True) for key in unknown_keys])
    merged = _drop_incompatible_noise(merged, recipe)
    for section in recipe.data:
        merged = _merge_section(merged, recipe, (section,))
    return merged


def _drop_incompatible_noise(document: Document, recipe: Document) -> Document:
    """Drop the run's noise settings if the recipe uses a different process, in which ``friction``, for example, may
    have a different meaning."""
    run_section, recipe_section = (
        value_at(d.data, _EXPLORATION_PATH) if _is_mapping(d, _EXPLORATION_PATH) else {} for d in (document, recipe)
    )
    assert isinstance(run_section, dict)
    assert isinstance(recipe_section, dict)
    if "process" in recipe_section and recipe_section["process"] != run_section.get("process"):
        for key in run_section.keys() - set(_COMMON_SETTINGS) - recipe_section.keys():
            document = dataclasses.replace(document, data=without_key(document.data, (*_EXPLORATION_PATH, key)))
    return document


def _merge_section(document: Document, recipe: Document, node_path: NodePath) -> Document:
    value = value_at(recipe.data, node_path)
    if node_path == _LEARNER_PATH or not (isinstance(value, dict) and _is_mapping(document, node_path)):
        return with_value_from(document, recipe, node_path)
    for key in value:
        document = _merge_section(document, recipe, (*node_path, key))
    return document


def _is_mapping(document: Document, node_path: NodePath) -> bool:
    try:
        return isinstance(value_at(document.data, node_path), dict)
    except KeyError:
        return False
