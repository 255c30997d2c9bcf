"""Configuration of trials that advance step by step in a world; reading it needs neither torch nor gymnasium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from onrig.hw.bounds import NotNegative, Share
from onrig.learner.settings import (
    LearnerSettings,
    process_problem,
    settings_problems,
    settings_type,
    strategy_problems,
)
from onrig.runtime.config.registered import WithRegistered, resolve_later
from onrig.runtime.explore.schedule import depends_on_episode_only
from onrig.runtime.explore.settings import Exploration, ParameterNoise
from onrig.runtime.memory.layout import Layout
from onrig.runtime.memory.settings import Selection, capacity_for, selection_findings
from onrig.runtime.run_config import Pieces

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
_ROUNDING: Final = 1e-9
GYM_PREFIX: Final = "gym:"
"""Prefix of gymnasium tasks."""
PLANT_PREFIX: Final = "plant:"
"""Prefix of the plants of our own runs."""
READINGS: Final = ("covariance", "std")
"""Readings of KLPER's sigma (``onrig.learner.sampler_settings.KlperSettings``)."""
ORIGINS: Final = ("random", "old", "present")
"""Origins of stored experiences: the random steps at the start, the first half of learning, and recent steps."""
DIVERGENCES: Final = ("kl behaviour", "far share")
"""Measures over the memory for Gaussian policies: mean KL divergence of the current policy from the policies that
acted, and share of experiences that are far from it (``onrig.learner.algorithms.refer``)."""
REPLAY_MEASURES: Final = (
    "td error",
    "target",
    *(f"kl {reading}" for reading in READINGS),
    *(f"kl {reading} {origin}" for origin in ORIGINS for reading in READINGS),
    *DIVERGENCES,
)
"""Measures between evaluations: mean |TD error|, mean target (units of the scaled reward) and KLPER's score of the
minibatches; KLPER's score of batches of stored experiences by origin; and ``DIVERGENCES``."""

SHIELD_COUNTS: Final = ("interventions", "trips")
"""Counts between evaluations: training steps in which a shield changed the action, and steps in which it switched to
its fallback."""


if TYPE_CHECKING:
    _Learner = LearnerSettings
else:
    _Learner = Annotated[Any, resolve_later(settings_type)]


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Noise-free episodes in separate environments."""

    every: Count = 1000
    """Number of environment steps of training between evaluations."""
    episodes: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5


class StepRun(WithRegistered, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Trials of one task, in which each step in the world is followed by its updates."""

    world: str
    """``gym:`` and the name of a gymnasium task, or ``plant:`` and the name of a run with a twin."""
    steps: Count
    """Number of environment steps of training."""
    evaluation: Evaluation = Evaluation()
    horizon: Count | None = None
    """Number of steps in an episode; null: the task's limit."""
    options: dict[str, object] = {}
    """Arguments of the task, such as ``use_contact_forces``; for a plant, ``worlds.plants.PlantOptions``."""
    random_steps: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 1000
    """Number of initial steps without updates, in which actions are uniformly random or come from a Gaussian policy; 0
    for on-policy algorithms."""
    updates_per_step: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    update_every: Count = 1
    """Number of environment steps after which the updates for all these steps are made at once."""
    exploration_std: NotNegative = 0.1
    """Standard deviation of the Gaussian exploration of deterministic policies, per normalised action."""
    exploration_friction: Share = 1.0
    """Friction of Gaussian exploration: below 1, the noise is correlated, u <- (1 - friction) u + N(0, std), and starts
    at 0 in each episode.  If learning uses the density of the noise, the noise is scaled to the policy's std in every
    step, as in the process ``own``."""
    exploration: Exploration | msgspec.UnsetType = msgspec.UNSET
    """Exploration process and schedule as in a run, in place of the previous two settings; only for a plant."""
    selection: Selection = Selection("FULL[Uniform]")
    learner: _Learner = msgspec.field(default_factory=lambda: settings_type()())
    python: Pieces | msgspec.UnsetType = msgspec.UNSET
    """Plugins in files, like a run's ``python``."""

    @property
    def task(self) -> str:
        return self.world.removeprefix(GYM_PREFIX).removeprefix(PLANT_PREFIX)

    @property
    def points(self) -> int:
        return self.steps // self.evaluation.every

    @property
    def updates(self) -> int:
        """Number of updates made after every ``update_every`` steps."""
        return round(self.updates_per_step * self.update_every)

    def updates_until(self, steps: int) -> int:
        """Return the number of updates in a trial's first ``steps`` steps; for on-policy algorithms, the number of
        iterations."""
        batch = self.learner.algorithm_config.batch_steps
        return steps // batch if batch else max(0, steps - self.random_steps) // self.update_every * self.updates

    def capacity(self, n: int, m: int) -> int:
        """Return the capacity of a trial's memory; raise ValueError if the configured bytes cannot hold an
        experience."""
        return capacity_for(self.selection, Layout(n, m), run_length=self.steps)


def step_problems(run: StepRun) -> Iterator[tuple[str, str]]:
    """List contradictory settings of a run, without creating its world, as (path, message)."""
    learner, selection = run.learner, run.selection
    if not run.world.startswith((GYM_PREFIX, PLANT_PREFIX)) or not run.task:
        expected = f"{GYM_PREFIX} and a gymnasium task, such as {GYM_PREFIX}Pendulum-v1, or {PLANT_PREFIX} and a run"
        yield "world", f"'{run.world}' is not a world: expected {expected}"
    if run.steps % run.evaluation.every:
        yield "evaluation.every", f"expected a divisor of the {run.steps} steps, got {run.evaluation.every}"
    if abs(run.updates_per_step * run.update_every - run.updates) > _ROUNDING:
        message = (
            f"expected a whole number of updates, got {run.updates_per_step:g} for each of {run.update_every} steps"
        )
        yield "updates_per_step", message
    batch_steps, actors = learner.algorithm_config.batch_steps, learner.algorithm_config.parallel
    if batch_steps:
        yield from _on_policy_problems(run, batch_steps, actors)
    elif run.random_steps + learner.batch > run.steps:
        yield (
            "random_steps",
            f"{run.random_steps} random steps out of {run.steps} leave too few for a minibatch: reduce this number",
        )
    if learner.updates_per_episode is not None or learner.updates_per_transition is not None:
        yield "learner", "trials in a world learn after every step: set updates_per_step instead"
    if learner.learning_starts is not msgspec.UNSET:
        yield "learner.learning_starts", "trials in a world learn from the first minibatch on: set random_steps instead"
    if run.exploration is not msgspec.UNSET:
        yield from _process_problems(run, run.exploration)
    elif run.exploration_friction < 1.0 and not takes_noise(learner) and learner.effective_refer is None:
        yield "exploration_friction", f"{learner.algorithm} explores with its own noise here: omit it"
    given_settings = {
        "synthetic": selection.synthetic is not None,
        "intervened": selection.intervened != "keep",
        "capacity_bytes": selection.capacity_bytes is not None,
        "seed_from": selection.seeds is not None,
    }
    for name, is_given in given_settings.items():
        if is_given:
            yield f"selection.{name}", "a world does not support this setting: omit it"
    for path_, message in selection_findings(selection, Layout(1, 1), run_length=run.steps):
        path = ".".join(map(str, path_))
        yield path, message.removesuffix(f" at {path}")
    if selection.capacity is not None and selection.capacity < learner.batch:
        message = f"a memory of {selection.capacity} experiences is smaller than a batch of {learner.batch}"
        yield "selection.capacity", message
    yield from strategy_problems(learner, selection.strategy)
    updates = None if batch_steps else 1
    replay_settings = msgspec.structs.replace(learner, updates_per_episode=updates, updates_per_transition=None)
    yield from ((f"learner.{path_}", message) for path_, message in settings_problems(replay_settings))


def _process_problems(run: StepRun, exploration: Exploration) -> Iterator[tuple[str, str]]:
    """List settings that prevent trials from exploring as a run does."""
    if not run.world.startswith(PLANT_PREFIX):
        yield (
            "exploration",
            f"only a plant's world uses a run's exploration process: omit it, or set world to {PLANT_PREFIX} and a run",
        )
    elif run.learner.algorithm_config.batch_steps or run.learner.algorithm_config.noisy_weights:
        yield "exploration", f"{run.learner.algorithm} explores by itself here: omit it"
    elif isinstance(exploration, ParameterNoise) or not depends_on_episode_only(exploration):
        yield (
            "exploration",
            "exploration in trials depends only on the number of the episode: omit gates, budgets and 'over'",
        )
    elif problem := process_problem(run.learner, exploration):
        key, message = problem
        yield f"exploration.{key}", message


def takes_noise(learner: LearnerSettings) -> bool:
    """Return whether noise is added to the policy's actions and learning does not use the density of this noise."""
    refer, algorithm_config = learner.effective_refer, learner.algorithm_config
    if refer is not None and algorithm_config.home_under_refer != algorithm_config.home:
        return refer.rules == "none"
    return not learner.stochastic and not algorithm_config.single_action


def _on_policy_problems(run: StepRun, steps: int, actors: int) -> Iterator[tuple[str, str]]:
    name = run.learner.algorithm
    if steps > run.steps:
        yield f"learner.{name}.steps", f"a batch of {steps} is longer than the {run.steps} steps"
    if run.evaluation.every % actors:
        yield "evaluation.every", f"expected a multiple of the number of actors ({actors}), got {run.evaluation.every}"
    if run.selection != Selection("FULL[Uniform]"):
        yield "selection", f"{name} learns from batches of its own policies, not from a memory: omit it"
