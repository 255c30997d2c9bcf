"""``recipe: NAME`` in a run's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import UNSET

from onrig.runtime.config.document import find_config
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.explore.settings import Gaussian, OrnsteinUhlenbeck, OwnNoise
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved, load_run, save_resolved

RECIPE = """\
learner: {updates_per_transition: 2}
selection: {strategy: "FIFO[PER]"}
exploration: {process: gaussian, amplitude: [[1, 0.5]]}
episodes: 7
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipes" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(RECIPE)
    return path


def loading_message(*overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_run("pendulum", overrides)
    (problem,) = error.value.problems
    return str(problem)


def build_components(config: RunConfig) -> tuple[object, ...]:
    return config.learner, config.selection, config.exploration, config.episodes


def test_its_learner_replaces_the_runs_and_the_rest_is_merged(recipe: Path) -> None:
    run = recipe.parent.parent / "run.yaml"
    budgets = "{episode: {trips: 3}}"
    text = find_config("pendulum").read_text().replace("  process: ou", f"  budgets: {budgets}\n  process: ou")
    run.write_text(text + "recipe: mine\n")
    config, expected = load_run(str(run)), load_run("pendulum", [f"exploration.budgets={budgets}"])
    assert config.learner == {"updates_per_transition": 2}
    assert config.selection.strategy == "FIFO[PER]"
    assert isinstance(config.exploration, Gaussian)
    assert config.exploration.amplitude == ((1.0, 0.5),)
    assert config.exploration.budgets == expected.exploration.budgets, "limits on the noise are kept"
    assert config.episodes == 7
    assert (config.rig, config.task, config.limits) == (expected.rig, expected.task, expected.limits)


def test_other_overrides_take_precedence(recipe: Path) -> None:
    config = load_run("pendulum", ["episodes=9", f"recipe={recipe}", "learner.updates_per_transition=3"])
    assert config.episodes == 9
    assert config.learner == {"updates_per_transition": 3}


def test_a_resolved_run_holds_the_values_and_names_no_recipe(recipe: Path, tmp_path: Path) -> None:
    config = load_run("pendulum", [f"recipe={recipe}"])
    save_resolved(config, tmp_path / "resolved.yaml")
    assert "recipe" not in (tmp_path / "resolved.yaml").read_text()
    assert build_components(load_resolved(tmp_path / "resolved.yaml")) == build_components(config)


def test_null_removes_the_recipe(recipe: Path) -> None:
    run = recipe.parent.parent / "run.yaml"
    run.write_text(find_config("pendulum").read_text() + "recipe: mine\n")
    assert build_components(load_run(str(run), ["recipe=null"])) == build_components(load_run("pendulum"))


def test_problems_of_a_recipe_are_reported_in_its_file(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("episodes: 7", "episodes: many"))
    assert loading_message(f"recipe={recipe}").startswith(f"{recipe}:4:11: ")
    recipe.write_text(RECIPE + "limits: {unguarded: true}\n")
    message = loading_message(f"recipe={recipe}")
    assert message.startswith(f"{recipe}:5:1: 'limits' cannot be set by a recipe, only learner, ")
    recipe.write_text("[1]\n")
    assert loading_message(f"recipe={recipe}").startswith(f"{recipe}:1:1: expected sections of a run")


def test_a_missing_recipe_is_reported_where_it_is_named() -> None:
    assert "no 'pendulum-td33' (did you mean 'pendulum-td3'?)" in loading_message("recipe=pendulum-td33")
    assert "expected the name or file of a recipe" in loading_message("recipe=3")


def test_settings_of_another_noise_are_not_mixed_with_the_recipes(recipe: Path) -> None:
    """Friction is the decay in ``ou``, and shortens the persistence in ``own``."""
    run = recipe.parent.parent / "run.yaml"
    noise = "exploration: {process: ou, friction: 0.4, gain: 2.0, quiet: {every: 5}}\n"
    sections = find_config("pendulum").read_text().split("exploration:")
    run.write_text(sections[0] + noise + sections[1].partition("\n\n")[2] + "\nrecipe: mine\n")
    recipe.write_text("exploration: {process: own, amplitude: [[1, 1.0]]}\n")
    config = load_run(str(run), ["learner={algorithm: sac}"])
    assert isinstance(config.exploration, OwnNoise)
    assert config.exploration.friction is UNSET
    assert config.exploration.quiet is not None
    recipe.write_text("exploration: {process: ou, gain: 3.0}\n")
    config = load_run(str(run))
    assert isinstance(config.exploration, OrnsteinUhlenbeck)
    assert (config.exploration.friction, config.exploration.gain) == (0.4, 3.0)
