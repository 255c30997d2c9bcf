"""Candidates of `onrig advise`: recipes of a run, each with its reason, and mutants of the best.

The space is what docs/choosing-a-strategy.md justifies: algorithms that learned on small rigs, each with the retention
and sampling that none was settled to beat, and their nearest rivals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from onrig.runtime.config.yaml_nodes import dump_yaml
from onrig.runtime.memory.settings import capacity_for
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.run_config import RunConfig, layout_of
from onrig.runtime.task import Normalization, episode_steps

AS_IT_IS: Final = "as configured"
"""Name of the candidate that the configuration itself is."""
_SCALED_RANGE: Final = 0.25
"""Scaled reward between the random and the reference controller: between the pendulum's 0.12 and the magman's 0.5, with
which both learned (docs/methods.md, "Reward scale")."""
_LONG_RUN: Final = 1000
"""Episodes from which FIFO was seen to forget."""
_FAST_HZ: Final = 100.0
_FACTORS: Final = (1.25, 2.0)
"""Least and largest factor, or divisor, of a mutated setting."""

Recipe = dict[str, Any]


class Candidate(NamedTuple):
    """Settings to race."""

    name: str
    reason: str
    """Why it takes part; a comment of its recipe."""
    recipe: Recipe | None
    """Sections ``learner``, ``selection`` and ``exploration``, as in a recipe; None for the configuration as it is."""

    @property
    def file(self) -> str:
        """Name of its recipe's file."""
        return "".join(c if c.isalnum() else "-" for c in self.name.lower()).strip("-").replace("--", "-") + ".yaml"

    @property
    def text(self) -> str:
        """Its recipe as YAML, with the reason as a comment."""
        return f"# {self.name}: {self.reason}.\n{dump_yaml(self.recipe)}"


_HIDDEN: Final = {"hidden": [64, 64]}
_SECTIONS: Final[dict[str, Recipe]] = {
    "vracer": {**_HIDDEN, "batch": 32, "gamma": 0.95, "lr": 1e-3, "std": 0.5},
    "sac": {**_HIDDEN, "batch": 64, "gamma": 0.98, "tau": 0.01, "lr": 1e-3, "temperature": 0.02},
    "td3": {**_HIDDEN, "batch": 64, "gamma": 0.95, "tau": 0.01, "lr": 1e-3, "delay": 1, "target_noise": 0.1},
    "ddpg": {"actor_lr": 3e-4},
    "ddpg under refer": {"batch": 32, "gamma": 0.95, "actor_lr": 5e-4, "critic_lr": 2e-3},
}
"""Settings with which the algorithms learned (configs/experiments/strategies.yaml, configs/recipes)."""
_ANNEAL: Final = {"vracer": 1.7, "ddpg under refer": 0.5}
"""Algorithms under ReF-ER, which standardise rewards, and their annealing times the updates of a run: 1.7e-5 and 5e-6
at the 100 000 for which they were chosen."""
_OWN: Final[Recipe] = {"process": "own"}
_PERSISTENT: Final[Recipe] = {"process": "own", "friction": 0.15}
_CORRELATED: Final[Recipe] = {"process": "ou", "gain": 0.3, "friction": 0.15}
_FALLING: Final[Recipe] = {**_CORRELATED, "amplitude": "falling"}
"""Its amplitude falls to a tenth by the middle of the run."""


class _Row(NamedTuple):
    name: str
    reason: str
    algorithm: str
    updates: float
    """Updates for each step."""
    strategy: str
    capacity: int | None
    noise: Recipe
    when: Callable[[RunConfig], bool] = lambda config: True
    """Runs that it is for."""


def _longer_than(steps: int) -> Callable[[RunConfig], bool]:
    """Condition for a run in which another memory keeps something else."""
    return lambda config: config.episodes * episode_steps(config.task, config.rate_hz) > steps


_ROWS: Final = tuple(
    _Row(*row)
    for row in (
        ("V-RACER", "soonest on most rigs, with little memory", "vracer", 1, "FIFO[Uniform]", 4000, _PERSISTENT),
        ("V-RACER, 16000", "remembers more", "vracer", 1, "FIFO[Uniform]", 16_000, _PERSISTENT, _longer_than(16_000)),
        ("SAC", "ends highest where the whole state is seen", "sac", 1, "FIFO[Uniform]", 10_000, _OWN),
        ("SAC, PER", "prioritised replay made SAC sooner", "sac", 1, "FIFO[PER]", 10_000, _OWN),
        ("TD3", "sure on narrow paths, and cheaper than SAC", "td3", 0.5, "FIFO[Uniform]", 10_000, _CORRELATED),
        ("TD3, falling noise", "noise costs once the task is learned", "td3", 0.5, "FIFO[Uniform]", 10_000, _FALLING),
        ("TD3, FULL", "no retention is settled", "td3", 0.5, "FULL[Uniform]", None, _CORRELATED, _longer_than(10_000)),
        ("TD3, Resv", "a memory spans little time at high rates", "td3", 0.5, "Resv[Uniform]", 10_000, _CORRELATED,
         lambda config: config.rate_hz >= _FAST_HZ),
        ("DDPG under ReF-ER", "rejects experiences far from its policy", "ddpg under refer", 1, "FIFO[Uniform]",
         16_000, _PERSISTENT),
        ("DDPG", "the cheapest to compute", "ddpg", 0.5, "FIFO[Uniform]", 10_000, _CORRELATED),
        ("DDPG, FULL", "FIFO forgets in long runs", "ddpg", 0.5, "FULL[Uniform]", None, _CORRELATED,
         lambda config: config.episodes > _LONG_RUN),
    )
)  # fmt: skip


def candidates(config: RunConfig) -> Iterator[Candidate]:
    """Candidates for a run of a task with references, the configuration itself first."""
    yield Candidate(AS_IT_IS, "the configuration, unchanged", None)
    for row in _ROWS:
        if row.when(config):
            yield Candidate(row.name, row.reason, _recipe(config, row))


def _recipe(config: RunConfig, row: _Row) -> Recipe:
    references, steps = config.task.normalization, episode_steps(config.task, config.rate_hz)
    assert references is not None
    algorithm, updates = row.algorithm.partition(" ")[0], max(1, round(row.updates * steps))
    learner: Recipe = {"algorithm": algorithm}
    if row.algorithm in _ANNEAL:
        anneal = _rounded(_ANNEAL[row.algorithm] / (config.episodes * updates))
        learner["refer"] = {"anneal": anneal, **({} if algorithm == "vracer" else {"std": 0.5})}
        learner[algorithm] = _SECTIONS[row.algorithm]
    else:
        learner[algorithm] = {**_SECTIONS[row.algorithm], "reward_scale": _reward_scale(references)}
    if config.learner.get("updates_per_transition") is not None:
        learner["updates_per_transition"] = updates / steps
    else:
        learner["updates_per_episode"] = updates
    noise = {"over": "episodes", "amplitude": [[1, 1.0]], **row.noise}
    if row.noise is _FALLING:
        noise["amplitude"] = [[1, 1.0], [max(2, config.episodes // 2), 0.1]]
    kept = _within_bytes(config, {"strategy": row.strategy, "capacity": row.capacity})
    return {"learner": learner, "selection": kept, "exploration": noise}


def _within_bytes(config: RunConfig, selection: Recipe) -> Recipe:
    """Selection within the bytes that the configuration allows; its capacity is what fits, at most."""
    if config.selection.capacity_bytes is None:
        return selection
    kept = msgspec.structs.replace(config.selection, strategy=selection["strategy"], capacity=None)
    if parse_strategy(kept.strategy).keeper.keeps_all:
        return {"strategy": kept.strategy, "capacity": None}
    fit = capacity_for(kept, layout_of(config), run_length=config.episodes * episode_steps(config.task, config.rate_hz))
    return {**selection, "capacity": min(fit, selection["capacity"]), "capacity_bytes": None}


def _reward_scale(references: Normalization) -> float:
    return _rounded(_SCALED_RANGE / abs(references.reference_reward - references.random_reward))


def _rounded(value: float) -> float:
    """Two significant digits."""
    return float(f"{value:.1e}")


def mutants(config: RunConfig, best: Candidate, resolved: RunConfig, number: int) -> list[Candidate]:
    """Mutants of the best candidate, whose configuration is ``resolved``: two settings each, multiplied.

    The draws depend on the best's name alone: the same race has the same mutants.
    """
    rng = np.random.default_rng([ord(c) for c in best.name])
    base = best.recipe or _recipe_of(resolved)
    settings = list(_mutable(base))
    found = []
    for k in range(number):
        chosen = sorted(rng.choice(len(settings), size=min(2, len(settings)), replace=False).tolist())
        recipe, told = msgspec.json.decode(msgspec.json.encode(base)), []
        for at in chosen:
            path, kind = settings[at]
            section = recipe
            for key in path[:-1]:
                section = section[key]
            value = section[path[-1]]
            section[path[-1]] = changed = kind(value, _factor(rng))
            told.append(f"{path[-1]} {value} -> {changed}")
        recipe["selection"] = _within_bytes(config, recipe["selection"])
        found.append(Candidate(f"{best.name} ~{k + 1}", f"mutant: {', '.join(told)}", recipe))
    return found


def _factor(rng: np.random.Generator) -> float:
    return math.exp(float(rng.choice((-1.0, 1.0)) * rng.uniform(*np.log(_FACTORS))))


def _recipe_of(config: RunConfig) -> Recipe:
    """Sections of a configuration as a recipe, without gates and budgets of the exploration."""
    selection = {"strategy": config.selection.strategy, "capacity": config.selection.capacity}
    noise = msgspec.to_builtins(config.exploration)
    for name in ("budgets", "near_envelope", "back_off", "quiet"):
        noise.pop(name, None)
    algorithm = config.learner.get("algorithm", "ddpg")
    left_out = {"ddpg", "dqn"} - {algorithm}
    return {
        "learner": {name: value for name, value in config.learner.items() if name not in left_out},
        "selection": selection,
        "exploration": noise,
    }


def _horizon(gamma: float, factor: float) -> float:
    """Discount with the horizon 1 / (1 - gamma) multiplied."""
    return round(min(0.999, max(0.5, 1.0 - (1.0 - gamma) / factor)), 4)


def _scaled(value: float, factor: float) -> float:
    return _rounded(value * factor)


def _count(value: float, factor: float) -> int:
    return max(1, int(_rounded(value * factor)))


def _share(value: float, factor: float) -> float:
    return min(1.0, _rounded(value * factor))


def _mutable(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Continuous settings of a recipe by path, and how each is multiplied."""
    learner, algorithm = recipe["learner"], recipe["learner"].get("algorithm", "ddpg")
    section = learner.get(algorithm, {})
    yield from ((("learner", algorithm, name), _horizon) for name in ("gamma",) if name in section)
    if "refer" not in learner and algorithm != "vracer":  # these standardise rewards
        yield from ((("learner", algorithm, name), _scaled) for name in ("reward_scale",) if name in section)
    for name, kind in (("updates_per_episode", _count), ("updates_per_transition", _scaled)):
        if learner.get(name) is not None:
            yield ("learner", name), kind
    if recipe["selection"].get("capacity") is not None:
        yield ("selection", "capacity"), _count
    if isinstance(recipe["exploration"].get("friction"), float):
        yield ("exploration", "friction"), _share
