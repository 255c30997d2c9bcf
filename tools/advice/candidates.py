"""Candidates of `onrig advise`: recipes of a run, each with its reason, and mutants of the best.

The space is what docs/choosing-a-strategy.md justifies: algorithms that learned on small rigs, each with the retention
and sampling that none was settled to beat, and their nearest rivals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from onrig.runtime.config.yaml_nodes import dump
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
_FACTOR: Final = 0.35
"""Standard deviation of the logarithm of a mutated setting."""

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
        return f"# {self.name}: {self.reason}.\n{dump(self.recipe)}"


def candidates(config: RunConfig) -> Iterator[Candidate]:
    """Candidates for a run of a task with references, the configuration itself first."""
    steps, references = episode_steps(config.task, config.rate_hz), config.task.normalization
    assert references is not None
    scale = _reward_scale(references)
    yield Candidate(AS_IT_IS, "the configuration, unchanged", None)
    ddpg: Recipe = {"reward_scale": scale, "actor_lr": 3e-4}
    td3: Recipe = {
        "hidden": [64, 64],
        "batch": 64,
        "gamma": 0.95,
        "tau": 0.01,
        "lr": 1e-3,
        "delay": 1,
        "target_noise": 0.1,
        "reward_scale": scale,
    }
    sac: Recipe = {
        "hidden": [64, 64],
        "batch": 64,
        "gamma": 0.98,
        "tau": 0.01,
        "lr": 1e-3,
        "temperature": 0.02,
        "reward_scale": scale,
    }
    vracer: Recipe = {"hidden": [64, 64], "batch": 32, "gamma": 0.95, "lr": 1e-3, "std": 0.5}
    refer_ddpg: Recipe = {"batch": 32, "gamma": 0.95, "actor_lr": 5e-4, "critic_lr": 2e-3}
    half, each = max(1, steps // 2), steps
    falling = [[1, 1.0], [max(2, config.episodes // 2), 0.1]]

    def of(algorithm: str, section: Recipe, updates: int, more: Recipe, kept: Recipe, noise: Recipe) -> Recipe:
        return _recipe(config, {"algorithm": algorithm, algorithm: section, **more}, updates, kept, noise)

    fifo = {"strategy": "FIFO[Uniform]", "capacity": 10_000}
    per = {**fifo, "strategy": "FIFO[PER]"}
    correlated = _noise({"process": "ou", "gain": 0.3, "friction": 0.15})
    own, persistent = _noise({"process": "own"}), _noise({"process": "own", "friction": 0.15})
    small = {**fifo, "capacity": 4000}
    near = {"refer": {"anneal": _anneal(config, each)}}
    yield Candidate(
        "V-RACER, 4000", "soonest where the whole state is seen or a part hidden; little memory",
        of("vracer", vracer, each, near, small, persistent),
    )  # fmt: skip
    yield Candidate(
        "V-RACER, 16000", "a larger memory remembers more of the task",
        of("vracer", vracer, each, near, {**fifo, "capacity": 16_000}, persistent),
    )  # fmt: skip
    yield Candidate("SAC", "ends highest where the whole state is seen", of("sac", sac, each, {}, fifo, own))
    yield Candidate("SAC, PER", "prioritised replay makes SAC sooner with FIFO", of("sac", sac, each, {}, per, own))
    yield Candidate("TD3", "sure on narrow paths, at a third of SAC's cost", of("td3", td3, half, {}, fifo, correlated))
    yield Candidate(
        "TD3, falling noise", "exploration that falls off costs less once the task is learned",
        of("td3", td3, half, {}, fifo, {**correlated, "amplitude": falling}),
    )  # fmt: skip
    yield Candidate(
        "TD3, FULL", "with TD3 no retention is settled to be better",
        of("td3", td3, half, {}, {"strategy": "FULL[Uniform]", "capacity": None}, correlated),
    )  # fmt: skip
    yield Candidate(
        "DDPG under ReF-ER", "rejects experiences that are far from its policy",
        of(
            "ddpg", refer_ddpg, each, {"refer": {"anneal": _anneal(config, each, 0.3), "std": 0.5}},
            {**fifo, "capacity": 16_000}, persistent,
        ),
    )  # fmt: skip
    yield Candidate("DDPG", "the cheapest to compute", of("ddpg", ddpg, half, {}, fifo, correlated))
    if config.episodes > _LONG_RUN:
        yield Candidate(
            "DDPG, FULL", "FIFO forgets in long runs",
            of("ddpg", ddpg, half, {}, {"strategy": "FULL[Uniform]", "capacity": None}, correlated),
        )  # fmt: skip
    if config.rate_hz >= _FAST_HZ:
        yield Candidate(
            "TD3, Resv", "a memory spans little time at high rates",
            of("td3", td3, half, {}, {**fifo, "strategy": "Resv[Uniform]"}, correlated),
        )  # fmt: skip


def _recipe(config: RunConfig, learner: Recipe, updates: int, selection: Recipe, noise: Recipe) -> Recipe:
    per_transition = config.learner.get("updates_per_transition") is not None
    steps = episode_steps(config.task, config.rate_hz)
    number = {"updates_per_transition": updates / steps} if per_transition else {"updates_per_episode": updates}
    return {"learner": {**learner, **number}, "selection": _within_bytes(config, selection), "exploration": noise}


def _within_bytes(config: RunConfig, selection: Recipe) -> Recipe:
    """Selection within the bytes that the configuration allows; its capacity is what fits, at most."""
    if config.selection.capacity_bytes is None:
        return selection
    kept = msgspec.structs.replace(config.selection, strategy=selection["strategy"], capacity=None)
    if parse_strategy(kept.strategy).keeper.keeps_all:
        return {"strategy": kept.strategy, "capacity": None}
    fit = capacity_for(kept, layout_of(config), run_length=config.episodes * episode_steps(config.task, config.rate_hz))
    return {**selection, "capacity": min(fit, selection["capacity"]), "capacity_bytes": None}


def _noise(settings: Recipe) -> Recipe:
    """Exploration of constant amplitude; gates and budgets remain the run's."""
    return {"over": "episodes", "amplitude": [[1, 1.0]], **settings}


def _anneal(config: RunConfig, updates: int, share: float = 1.0) -> float:
    """ReF-ER's annealing: 1.7e-5 at the 100 000 updates for which it was chosen, in proportion for other lengths."""
    return _rounded(share * 1.7 / (config.episodes * updates))


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
            section[path[-1]] = changed = kind(value, math.exp(_FACTOR * float(rng.standard_normal())))
            told.append(f"{path[-1]} {value:.4g} -> {changed:.4g}")
        recipe["selection"] = _within_bytes(config, recipe["selection"])
        found.append(Candidate(f"{best.name} ~{k + 1}", f"mutant: {', '.join(told)}", recipe))
    return found


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
