"""``recipe: NAME``: how to learn, kept in a file of ``recipes/`` and laid over a run's own sections.

The recipe's ``learner`` replaces the run's.  Other sections are merged, so that what the recipe does not mention
(budgets of exploration, say) stays.  The key is gone from the resulting configuration, which holds the values.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from onrig.runtime.config.document import Document, find, grafted, load_document, problem_at
from onrig.runtime.config.problem import ConfigError, NodePath
from onrig.runtime.config.yaml_nodes import value_at, without

KEY: Final = "recipe"
FOLDER: Final = "recipes"
SECTIONS: Final = ("learner", "selection", "exploration", "episodes", "evaluate_every")
"""What a recipe may say: nothing of rig, device, task and limits."""
_REPLACED: Final[NodePath] = ("learner",)
"""One algorithm's settings may be wrong for another."""
_NOISE: Final[NodePath] = ("exploration",)
_OF_ANY_PROCESS: Final = ("budgets", "over", "amplitude", "near_envelope", "back_off", "quiet")
"""What stays of a run's exploration where the recipe explores by another process; the rest may mean something else."""


def with_recipe(document: Document, beside: Path) -> Document:
    """Configuration with its recipe laid over it; unchanged if it names none.

    ``beside`` is the configuration's folder; a path on the command line is relative to the working directory.
    Raises ConfigError.
    """
    if not isinstance(document.data, dict) or KEY not in document.data:
        return document
    name = document.data[KEY]
    rest = dataclasses.replace(document, data=without(document.data, (KEY,)))
    if name is None:
        return rest
    if not isinstance(name, str):
        raise ConfigError([problem_at(document, (KEY,), f"expected the name of a recipe, or its file, at {KEY}")])
    try:
        path = find(name, FOLDER, Path() if (KEY,) in document.overrides else beside)
    except FileNotFoundError as error:
        raise ConfigError([problem_at(document, (KEY,), f"{error} at {KEY}")]) from None
    recipe = load_document(path)
    if not isinstance(recipe.data, dict):
        raise ConfigError([problem_at(recipe, (), "expected sections of a run, as learner")])
    foreign = [key for key in recipe.data if key not in SECTIONS]
    if foreign:
        said = f"is not for a recipe, which has {', '.join(SECTIONS)}"
        raise ConfigError([problem_at(recipe, (key,), f"'{key}' {said}", at_key=True) for key in foreign])
    rest = _without_another_noise(rest, recipe)
    for section in recipe.data:
        rest = _laid_over(rest, recipe, (section,))
    return rest


def _without_another_noise(document: Document, recipe: Document) -> Document:
    """Drop the settings of the run's noise process where the recipe has another: ``friction`` means two things."""
    own, new = (value_at(d.data, _NOISE) if _is_mapping(d, _NOISE) else {} for d in (document, recipe))
    assert isinstance(own, dict)
    assert isinstance(new, dict)
    if "process" in new and new["process"] != own.get("process"):
        for key in own.keys() - set(_OF_ANY_PROCESS) - new.keys():
            document = dataclasses.replace(document, data=without(document.data, (*_NOISE, key)))
    return document


def _laid_over(document: Document, recipe: Document, at: NodePath) -> Document:
    value = value_at(recipe.data, at)
    if at == _REPLACED or not (isinstance(value, dict) and _is_mapping(document, at)):
        return grafted(document, recipe, at)
    for key in value:
        document = _laid_over(document, recipe, (*at, key))
    return document


def _is_mapping(document: Document, at: NodePath) -> bool:
    try:
        return isinstance(value_at(document.data, at), dict)
    except KeyError:
        return False
