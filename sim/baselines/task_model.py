"""A task on its exact plant, for many states and actions at once: the basis of every baseline, with the random one."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.runtime.random_streams import Role, device_seed
from onrig.runtime.rewards import uses_previous_action
from onrig.runtime.starts import are_drawn, drawn_start, middle_of
from onrig.runtime.task import Task, batched_reward, batched_terminated
from onrig.runtime.tracking import EpisodeTargets
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import SUBSTEPS, step
from onrig.sim.synthetic.model import UNSEEN, model_problems

Values = NDArray[np.float64]

EPISODES: Final = 10_000
"""Episodes of the random controller."""
_SEED: Final = 0
"""Seed of the run whose evaluation episodes have the starts and targets that are drawn here."""


class Draws(NamedTuple):
    """Starts and targets of episodes."""

    starts: Values
    """(E, d): states, in the plant's order."""
    targets: Values
    """(E, steps + 1, q): values at the samples of the episodes, SI units."""


class TaskModel(msgspec.Struct, frozen=True):
    """One period of a plant and the reward it earns, in SI units and float64; no noise, no counts, no delay.

    Expects a combination without :func:`task_model_problems`.
    """

    rig: Rig
    task: Task
    plant: Plant
    period_s: float
    steps: int
    """Transitions in an episode."""
    substeps: int = SUBSTEPS
    """Runge-Kutta steps per period."""

    @property
    def start(self) -> Values:
        """State at the start of an episode, shape (d,), in the plant's order."""
        start = middle_of(self.task.all_starts)
        return np.array([start[name] for name in self.plant.state_names])

    @property
    def varies(self) -> bool:
        """Whether episodes have different starts or targets."""
        return bool(self.task.targets) or are_drawn(self.task.all_starts)

    def draw(self, episodes: int) -> Draws:
        """Draw starts and targets of episodes."""
        starts = np.tile(self.start, (episodes, 1))
        if are_drawn(self.task.all_starts):
            for i in range(episodes):
                drawn = drawn_start(self.task.all_starts, device_seed(_SEED, Role.PLANT_EVAL, i))
                starts[i] = [drawn[name] for name in self.plant.state_names]
        if not self.task.targets:
            return Draws(starts, np.zeros((episodes, self.steps + 1, 0)))
        course = EpisodeTargets(self.task, self.rig, round(self.period_s * 1e6), self.steps)
        return Draws(starts, np.stack([course.of_role(_SEED, Role.PLANT_EVAL, i) for i in range(episodes)]))

    @property
    def action_low(self) -> Values:
        """Lower action limits, shape (m,)."""
        return np.array([a.low for a in self.rig.actuators])

    @property
    def action_high(self) -> Values:
        """Upper action limits, shape (m,)."""
        return np.array([a.high for a in self.rig.actuators])

    @property
    def safe(self) -> Values:
        """Safe output, shape (m,)."""
        return np.array([a.safe for a in self.rig.actuators])

    def advance(self, states: Values, actions: Values) -> tuple[Values, Values]:
        """Return next states (n, d) and rewards (n,) of states (n, d) under actions (n, m)."""
        after, seen = self._moved(states, actions)
        return after, batched_reward(self.task, self.rig)(seen, actions)

    def follow(
        self, states: Values, actions: Values, previous: Values, targets: Values
    ) -> tuple[Values, Values, NDArray[np.bool_]]:
        """Return what ``advance`` does, and whether each next state ends its episode (n,).

        ``previous``: actions (n, m) in force before; ``targets`` (n, q) at the next samples.
        """
        after, seen = self._moved(states, actions)
        if targets.shape[-1]:
            seen = np.concatenate([seen, targets], axis=1)
        over = batched_terminated(self.task, self.rig)(seen)
        return after, batched_reward(self.task, self.rig)(seen, actions, previous), over

    def _moved(self, states: Values, actions: Values) -> tuple[Values, Values]:
        """Next states (n, d), and their observations (n, o)."""
        before: tuple[Values, ...] = tuple(np.ascontiguousarray(column) for column in states.T)
        held: tuple[Values, ...] = tuple(np.ascontiguousarray(column) for column in actions.T)
        after = step(self.plant, before, held, self.period_s, self.substeps)
        named = dict(zip(self.plant.state_names, after, strict=True))
        seen = np.stack([named[o.sensor or o.name] for o in self.rig.observations], axis=1)
        return np.stack(after, axis=1), seen


def task_model_problems(rig: Rig, task: Task, plant: Plant) -> list[str]:
    """Reasons why no baseline can be computed; empty if one can."""
    problems = [problem for problem in model_problems(rig, plant) if not problem.startswith(UNSEEN)]
    if rig.previous_command:
        problems.append("the rig observes the previous command, which is not a state of the plant")
    return problems


def grid_problems(rig: Rig, task: Task, plant: Plant) -> list[str]:
    """Reasons why a task is none for grids of two states: fuzzy Q-iteration and the finite-horizon optimum."""
    problems = [problem for problem in model_problems(rig, plant) if problem.startswith(UNSEEN)]
    if uses_previous_action(task.reward.terms, rig):
        problems.append("the reward depends on the previous action")
    if task.terminates:
        problems.append("the task terminates")
    if task.targets:
        problems.append("the task has targets, which are not states of the plant")
    if are_drawn(task.all_starts):
        problems.append("episodes of the task have different starts")
    if len(plant.state_names) != 2:
        problems.append(f"grids have two states, this plant has {len(plant.state_names)}")
    wrapped = {s.name for s in rig.sensors if s.wrap}
    if len(rig.actuators) > 1 and wrapped.intersection(plant.state_names):
        problems.append("grids for several actuators have no angle that wraps")
    for o in rig.observations:
        around = task.reward.target.get(o.name, 0.5 * (o.low + o.high))
        if (o.sensor or o.name) not in wrapped and not o.low < around < o.high:
            problems.append(f"the task's target {around:g} lies outside {o.name}'s range of {o.low:g} to {o.high:g}")
    return problems


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    standard_error: float


class Episodes(NamedTuple):
    """Outcome of episodes that a termination may have cut short."""

    total: Values
    """(E,): sum of the rewards earned."""
    lived: Values
    """(E,): steps."""

    def mean_rewards(self, steps: int, unlived: float) -> Values:
        """Mean reward per step of ``steps``, (E,); each step that a termination cut off counts as ``unlived``."""
        means: Values = (self.total + (steps - self.lived) * unlived) / steps
        return means


def random_reward(model: TaskModel, episodes: int = EPISODES, seed: int = 0) -> Estimate:
    """Mean reward per step of independent uniform actions over episodes of the task.

    It is the zero of the normalised performance (de Bruin et al. 2018, §5.1).  Where the task terminates it is the
    mean over the steps lived, so that such episodes score 0, too, when the steps cut off count as much.

    Episodes are independent, so that the standard error is taken over them; raises ValueError below two.
    """
    if episodes < 2:
        raise ValueError(f"a standard error needs at least 2 episodes, got {episodes}")
    rng = np.random.default_rng(seed)
    states, targets = model.draw(episodes)
    total, lived, alive = np.zeros(episodes), np.zeros(episodes), np.ones(episodes, bool)
    before = np.tile(model.safe, (episodes, 1))
    for t in range(model.steps):
        actions = rng.uniform(model.action_low, model.action_high, (episodes, len(model.action_low)))
        lived += alive
        states[alive], reward, over = model.follow(states[alive], actions[alive], before[alive], targets[alive, t + 1])
        before = actions
        total[alive] += reward
        alive[alive] = ~over
        if not alive.any():
            break
    if not model.task.terminates:
        means = total / model.steps
        return Estimate(float(means.mean()), float(means.std(ddof=1) / np.sqrt(episodes)))
    mean = float(total.sum() / lived.sum())
    spread = (total - mean * lived).std(ddof=1) / lived.mean()
    return Estimate(mean, float(spread / np.sqrt(episodes)))
