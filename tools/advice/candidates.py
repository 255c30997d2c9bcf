"""Candidates of `onrig advise`: recipes with their reasons, and mutants of the best one.

docs/choosing-a-strategy.md justifies the search space: algorithms that learned on small rigs, each with the retention
and sampling that no alternative has been shown to beat, and their nearest rivals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from onrig.learner.settings import learner_settings
from onrig.runtime.config.yaml_nodes import dump_yaml
from onrig.runtime.memory.settings import capacity_for
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.run_config import RunConfig, layout_of
from onrig.runtime.task import Normalization, episode_steps

UNCHANGED_NAME: Final = "as configured"
"""Name of the candidate with the unchanged configuration."""
_SCALED_RANGE: Final = 0.25
"""Difference in scaled reward between the reference and the random controller.  Learning succeeded with 0.12 on the
pendulum and 0.5 on the magman (docs/methods.md, "Reward scale").
"""
_LONG_RUN_EPISODES: Final = 1000
"""Number of episodes above which runs with FIFO were observed to forget."""
_FAST_RATE_HZ: Final = 100.0
_FEW_STEPS: Final = 25_000
"""Number of steps in a run up to which a method with many updates per step is raced; DroQ learned within 10 000 steps
(docs/methods.md).
"""
_FACTOR_RANGE: Final = (1.25, 2.0)
"""Smallest and largest factor by which a mutated setting is multiplied or divided."""

Recipe = dict[str, Any]


class Candidate(NamedTuple):
    """A recipe that takes part in a race."""

    name: str
    reason: str
    """Reason to race the candidate; also the comment in the recipe file."""
    recipe: Recipe | None
    """Sections ``learner``, ``selection`` and ``exploration``, as in a recipe; None for the unchanged configuration."""

    @property
    def file(self) -> str:
        """Name of the recipe file."""
        return "".join(c if c.isalnum() else "-" for c in self.name.lower()).strip("-").replace("--", "-") + ".yaml"

    @property
    def text(self) -> str:
        """The recipe as YAML, with the reason as a comment."""
        return f"# {self.name}: {self.reason}.\n{dump_yaml(self.recipe)}"


_HIDDEN_LAYERS: Final = {"hidden": [64, 64]}
_SECTIONS: Final[dict[str, Recipe]] = {
    "vracer": {**_HIDDEN_LAYERS, "batch": 32, "gamma": 0.95, "lr": 1e-3, "std": 0.5},
    "sac": {**_HIDDEN_LAYERS, "batch": 64, "gamma": 0.98, "tau": 0.01, "lr": 1e-3, "temperature": 0.02},
    "droq": {"gamma": 0.98, "temperature": 0.02},
    "td3": {**_HIDDEN_LAYERS, "batch": 64, "gamma": 0.95, "tau": 0.01, "lr": 1e-3, "delay": 1, "target_noise": 0.1},
    "ddpg": {"actor_lr": 3e-4},
    "ddpg under refer": {"batch": 32, "gamma": 0.95, "actor_lr": 5e-4, "critic_lr": 2e-3},
}
"""Settings with which each algorithm has learned (configs/recipes; strategies.yaml and fast-learners.yaml in
configs/experiments).
"""
_ANNEAL_TIMES_UPDATES: Final = {"vracer": 1.7, "ddpg under refer": 0.5}
"""ReF-ER annealing rate times the number of updates in a run, for the algorithms that standardise rewards. The rates
were chosen as 1.7e-5 and 5e-6 at 100 000 updates.
"""
_OWN_NOISE: Final[Recipe] = {"process": "own", "friction": 1.0}
_PERSISTENT_NOISE: Final[Recipe] = {"process": "own", "friction": 0.15}
_CORRELATED_NOISE: Final[Recipe] = {"process": "ou", "gain": 0.3, "friction": 0.15}
_FALLING_NOISE: Final[Recipe] = {**_CORRELATED_NOISE, "amplitude": "falling"}
"""Noise whose amplitude falls to a tenth by the middle of the run."""


class _Row(NamedTuple):
    name: str
    reason: str
    algorithm: str
    updates: float
    """Updates per step."""
    strategy: str
    capacity: int | None
    noise: Recipe
    applies_to: Callable[[RunConfig], bool] = lambda config: True
    """Condition that a run must meet for the candidate to be raced."""


def _longer_than(steps: int) -> Callable[[RunConfig], bool]:
    """Return a condition that selects runs of more than ``steps`` steps; shorter ones overwrite no experiences."""
    return lambda config: _max_steps(config) > steps


def _max_steps(config: RunConfig) -> int:
    return config.episodes * episode_steps(config.task, config.rate_hz)


_ROWS: Final = tuple(
    _Row(*row)
    for row in (
        ("V-RACER", "learns fastest on most rigs, with little memory", "vracer", 1, "FIFO[Uniform]", 4000,
         _PERSISTENT_NOISE),
        ("V-RACER, 16000", "remembers more", "vracer", 1, "FIFO[Uniform]", 16_000, _PERSISTENT_NOISE,
         _longer_than(16_000)),
        ("SAC", "highest final score if the full state is observed", "sac", 1, "FIFO[Uniform]", 10_000, _OWN_NOISE),
        ("SAC, PER", "SAC learned faster with prioritised replay", "sac", 1, "FIFO[PER]", 10_000, _OWN_NOISE),
        ("SAC, persistent noise", "independent noise may not move a rig against dry friction", "sac", 1,
         "FIFO[Uniform]", 10_000, _PERSISTENT_NOISE),
        ("DroQ", "learns from the fewest steps, with 20 updates for each", "droq", 20, "FIFO[Uniform]", _FEW_STEPS,
         _PERSISTENT_NOISE, lambda config: _max_steps(config) <= _FEW_STEPS),
        ("TD3", "reliable on narrow paths, cheaper than SAC", "td3", 0.5, "FIFO[Uniform]", 10_000, _CORRELATED_NOISE),
        ("TD3, falling noise", "noise lowers the score once the task is learned", "td3", 0.5, "FIFO[Uniform]",
         10_000, _FALLING_NOISE),
        ("TD3, FULL", "no retention method is known to be better", "td3", 0.5, "FULL[Uniform]", None,
         _CORRELATED_NOISE, _longer_than(10_000)),
        ("TD3, Resv", "a memory spans only a short time at high rates", "td3", 0.5, "Resv[Uniform]", 10_000,
         _CORRELATED_NOISE,
         lambda config: config.rate_hz >= _FAST_RATE_HZ),
        ("DDPG under ReF-ER", "rejects experiences far from its policy", "ddpg under refer", 1, "FIFO[Uniform]",
         16_000, _PERSISTENT_NOISE),
        ("DDPG", "the cheapest to compute", "ddpg", 0.5, "FIFO[Uniform]", 10_000, _CORRELATED_NOISE),
        ("DDPG, FULL", "FIFO forgets in long runs", "ddpg", 0.5, "FULL[Uniform]", None, _CORRELATED_NOISE,
         lambda config: config.episodes > _LONG_RUN_EPISODES),
    )
)  # fmt: skip


def candidates(config: RunConfig) -> Iterator[Candidate]:
    """Yield the candidates for a configuration with task.normalization; the first is the configuration itself."""
    yield Candidate(UNCHANGED_NAME, "the configuration, unchanged", None)
    for row in _ROWS:
        if row.applies_to(config):
            yield Candidate(row.name, row.reason, _recipe(config, row))


def _recipe(config: RunConfig, row: _Row) -> Recipe:
    references, steps = config.task.normalization, episode_steps(config.task, config.rate_hz)
    assert references is not None
    algorithm, updates = row.algorithm.partition(" ")[0], max(1, round(row.updates * steps))
    learner: Recipe = {"algorithm": algorithm}
    if row.algorithm in _ANNEAL_TIMES_UPDATES:
        anneal = _round_to_two_digits(_ANNEAL_TIMES_UPDATES[row.algorithm] / (config.episodes * updates))
        learner["refer"] = {"anneal": anneal, **({} if algorithm == "vracer" else {"std": 0.5})}
        learner[algorithm] = _SECTIONS[row.algorithm]
    else:
        learner[algorithm] = {**_SECTIONS[row.algorithm], "reward_scale": _reward_scale(references)}
    if config.learner.get("updates_per_transition") is not None:
        learner["updates_per_transition"] = updates / steps
    else:
        learner["updates_per_episode"] = updates
    # In real time, the default backlog is less than one episode of many updates, which would then be dropped.
    learner["backlog"] = max(learner_settings({}).backlog, 4 * updates)
    noise = {"over": "episodes", "amplitude": [[1, 1.0]], **row.noise}
    if row.noise is _FALLING_NOISE:
        noise["amplitude"] = [[1, 1.0], [max(2, config.episodes // 2), 0.1]]
    selection = _within_bytes(config, {"strategy": row.strategy, "capacity": row.capacity})
    return {"learner": learner, "selection": selection, "exploration": noise}


def _within_bytes(config: RunConfig, selection: Recipe) -> Recipe:
    """Return a selection whose capacity fits into the bytes that the configuration allows."""
    if config.selection.capacity_bytes is None:
        return selection
    resized_selection = msgspec.structs.replace(config.selection, strategy=selection["strategy"], capacity=None)
    if parse_strategy(resized_selection.strategy).keeper.keeps_all:
        return {"strategy": resized_selection.strategy, "capacity": None}
    max_capacity = capacity_for(resized_selection, layout_of(config), run_length=_max_steps(config))
    return {**selection, "capacity": min(max_capacity, selection["capacity"]), "capacity_bytes": None}


def _reward_scale(references: Normalization) -> float:
    return _round_to_two_digits(_SCALED_RANGE / abs(references.reference_reward - references.random_reward))


def _round_to_two_digits(value: float) -> float:
    return float(f"{value:.1e}")


def mutants(config: RunConfig, parent: Candidate, resolved_config: RunConfig, number: int) -> list[Candidate]:
    """Return mutants of the best candidate, whose configuration is ``resolved_config``. Each mutant changes up to two
    settings, each by a random factor.

    The factors depend only on the candidate's name, so that a repeated race has the same mutants.
    """
    rng = np.random.default_rng([ord(c) for c in parent.name])
    base_recipe = parent.recipe or _recipe_of(resolved_config)
    settings = list(_mutable_settings(base_recipe))
    new_mutants = []
    for k in range(number):
        indices = sorted(rng.choice(len(settings), size=min(2, len(settings)), replace=False).tolist())
        recipe, changes = msgspec.json.decode(msgspec.json.encode(base_recipe)), []
        for index in indices:
            path, scale = settings[index]
            section = recipe
            for key in path[:-1]:
                section = section[key]
            value = section[path[-1]]
            section[path[-1]] = new_value = scale(value, _random_factor(rng))
            changes.append(f"{path[-1]} {value} -> {new_value}")
        recipe["selection"] = _within_bytes(config, recipe["selection"])
        new_mutants.append(Candidate(f"{parent.name} ~{k + 1}", f"mutant: {', '.join(changes)}", recipe))
    return new_mutants


def _random_factor(rng: np.random.Generator) -> float:
    return math.exp(float(rng.choice((-1.0, 1.0)) * rng.uniform(*np.log(_FACTOR_RANGE))))


def _recipe_of(config: RunConfig) -> Recipe:
    """Return a configuration's sections as a recipe, without exploration gates and budgets."""
    selection = {"strategy": config.selection.strategy, "capacity": config.selection.capacity}
    noise = msgspec.to_builtins(config.exploration)
    for name in ("budgets", "near_envelope", "back_off", "quiet"):
        noise.pop(name, None)
    algorithm = config.learner.get("algorithm", "ddpg")
    other_algorithms = {"ddpg", "dqn"} - {algorithm}
    return {
        "learner": {name: value for name, value in config.learner.items() if name not in other_algorithms},
        "selection": selection,
        "exploration": noise,
    }


def _scale_horizon(gamma: float, factor: float) -> float:
    """Return the discount whose horizon 1 / (1 - gamma) is ``factor`` times as long."""
    return round(min(0.999, max(0.5, 1.0 - (1.0 - gamma) / factor)), 4)


def _scale_value(value: float, factor: float) -> float:
    return _round_to_two_digits(value * factor)


def _scale_count(value: float, factor: float) -> int:
    return max(1, int(_round_to_two_digits(value * factor)))


def _scale_fraction(value: float, factor: float) -> float:
    return min(1.0, _round_to_two_digits(value * factor))


def _mutable_settings(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path of each numeric setting of a recipe, and the function that scales it."""
    learner, algorithm = recipe["learner"], recipe["learner"].get("algorithm", "ddpg")
    section = learner.get(algorithm, {})
    yield from ((("learner", algorithm, name), _scale_horizon) for name in ("gamma",) if name in section)
    if "refer" not in learner and algorithm != "vracer":  # both standardise rewards
        yield from ((("learner", algorithm, name), _scale_value) for name in ("reward_scale",) if name in section)
    for name, scale in (("updates_per_episode", _scale_count), ("updates_per_transition", _scale_value)):
        if learner.get(name) is not None:
            yield ("learner", name), scale
    if recipe["selection"].get("capacity") is not None:
        yield ("selection", "capacity"), _scale_count
    if isinstance(friction := recipe["exploration"].get("friction"), float) and friction < 1.0:
        yield ("exploration", "friction"), _scale_fraction
