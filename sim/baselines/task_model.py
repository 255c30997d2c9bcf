"""Exact model of a task and its plant, batched over states and actions, for all baselines; also the random baseline."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.runtime.random_streams import Role, device_seed
from onrig.runtime.rewards import uses_previous_action
from onrig.runtime.starts import are_starts_random, draw_start, middle_start
from onrig.runtime.task import Task, batched_reward, batched_termination
from onrig.runtime.tracking import EpisodeTargets
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import SUBSTEPS, step
from onrig.sim.synthetic.model import UNSEEN_STATE, model_problems

Values = NDArray[np.float64]

EPISODES: Final = 10_000
"""Number of episodes of the random controller."""
_SEED: Final = 0
"""Seed for the starts and targets, which equal those of the evaluation episodes in a run with this seed."""


class Draws(NamedTuple):
    """Starts and targets of episodes."""

    starts: Values
    """(E, d): states, in the plant's order."""
    targets: Values
    """(E, steps + 1, q): values at the samples of the episodes, SI units."""


class TaskModel(msgspec.Struct, frozen=True):
    """One period of a plant and its reward, in SI units and float64, without noise, quantisation or delay.

    Requires a rig, task and plant without :func:`task_model_problems`.
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
        start = middle_start(self.task.all_starts)
        return np.array([start[name] for name in self.plant.state_names])

    @property
    def has_varying_episodes(self) -> bool:
        """Whether episodes have different starts or targets."""
        return bool(self.task.targets) or are_starts_random(self.task.all_starts)

    def draw(self, episodes: int) -> Draws:
        """Draw starts and targets of episodes."""
        starts = np.tile(self.start, (episodes, 1))
        if are_starts_random(self.task.all_starts):
            for i in range(episodes):
                start = draw_start(self.task.all_starts, device_seed(_SEED, Role.PLANT_EVAL, i))
                starts[i] = [start[name] for name in self.plant.state_names]
        if not self.task.targets:
            return Draws(starts, np.zeros((episodes, self.steps + 1, 0)))
        episode_targets = EpisodeTargets(self.task, self.rig, round(self.period_s * 1e6), self.steps)
        return Draws(
            starts, np.stack([episode_targets.values_for_role(_SEED, Role.PLANT_EVAL, i) for i in range(episodes)])
        )

    @property
    def action_low(self) -> Values:
        """Lower action limits, shape (m,)."""
        return np.array([a.low for a in self.rig.actuators])

    @property
    def action_high(self) -> Values:
        """Upper action limits, shape (m,)."""
        return np.array([a.high for a in self.rig.actuators])

    @property
    def safe_action(self) -> Values:
        """Safe output, shape (m,)."""
        return np.array([a.safe for a in self.rig.actuators])

    def advance(self, states: Values, actions: Values) -> tuple[Values, Values]:
        """Return next states (n, d) and rewards (n,) for states (n, d) under actions (n, m)."""
        next_states, observations = self._step(states, actions)
        return next_states, batched_reward(self.task, self.rig)(observations, actions)

    def follow(
        self, states: Values, actions: Values, previous_actions: Values, targets: Values
    ) -> tuple[Values, Values, NDArray[np.bool_]]:
        """Advance like ``advance``; also return whether each next state ends its episode (n,).

        ``previous_actions``: actions (n, m) in force before these; ``targets``: (n, q) at the next samples.
        """
        next_states, observations = self._step(states, actions)
        if targets.shape[-1]:
            observations = np.concatenate([observations, targets], axis=1)
        has_ended = batched_termination(self.task, self.rig)(observations)
        return next_states, batched_reward(self.task, self.rig)(observations, actions, previous_actions), has_ended

    def _step(self, states: Values, actions: Values) -> tuple[Values, Values]:
        """Return the next states (n, d) and their observations (n, o)."""
        state_columns: tuple[Values, ...] = tuple(np.ascontiguousarray(column) for column in states.T)
        action_columns: tuple[Values, ...] = tuple(np.ascontiguousarray(column) for column in actions.T)
        next_states = step(self.plant, state_columns, action_columns, self.period_s, self.substeps)
        state_by_name = dict(zip(self.plant.state_names, next_states, strict=True))
        observations = np.stack([state_by_name[o.sensor or o.name] for o in self.rig.observations], axis=1)
        return np.stack(next_states, axis=1), observations


def task_model_problems(rig: Rig, task: Task, plant: Plant) -> list[str]:
    """Return the reasons why no baseline can be computed; empty if one can."""
    problems = [problem for problem in model_problems(rig, plant) if not problem.startswith(UNSEEN_STATE)]
    if rig.previous_command:
        problems.append("the rig observes the previous command, which is not a state of the plant")
    return problems


def grid_problems(rig: Rig, task: Task, plant: Plant) -> list[str]:
    """Return the reasons why the grid methods for two states (fuzzy Q-iteration, finite-horizon optimum) cannot solve a
    task; empty if they can."""
    problems = [problem for problem in model_problems(rig, plant) if problem.startswith(UNSEEN_STATE)]
    if uses_previous_action(task.reward.terms, rig):
        problems.append("the reward depends on the previous action")
    if task.may_terminate:
        problems.append("the task terminates")
    if task.targets:
        problems.append("the task has targets, which are not states of the plant")
    if are_starts_random(task.all_starts):
        problems.append("episodes of the task have different starts")
    if len(plant.state_names) != 2:
        problems.append(f"the grids cover two states, but this plant has {len(plant.state_names)}")
    wrapped_sensors = {s.name for s in rig.sensors if s.wrap}
    if len(rig.actuators) > 1 and wrapped_sensors.intersection(plant.state_names):
        problems.append("grids for several actuators do not support a wrapped angle")
    for o in rig.observations:
        centre = task.reward.target.get(o.name, 0.5 * (o.low + o.high))
        if (o.sensor or o.name) not in wrapped_sensors and not o.low < centre < o.high:
            problems.append(f"the task's target {centre:g} lies outside {o.name}'s range of {o.low:g} to {o.high:g}")
    return problems


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    standard_error: float


class Episodes(NamedTuple):
    """Outcome of episodes, some of which may have ended by termination."""

    total: Values
    """(E,): sum of rewards."""
    n_steps: Values
    """(E,): steps."""

    def mean_rewards(self, steps: int, cut_off_reward: float) -> Values:
        """Return the mean reward over ``steps`` steps, (E,), with ``cut_off_reward`` for each step that a termination
        cuts off."""
        means: Values = (self.total + (steps - self.n_steps) * cut_off_reward) / steps
        return means


def random_reward(model: TaskModel, episodes: int = EPISODES, seed: int = 0) -> Estimate:
    """Estimate the mean reward per step of independent uniform actions over episodes of the task.

    It defines a normalised performance of 0 (de Bruin et al. 2018, §5.1).  If the task terminates, it is the mean over
    the steps before termination: if each remaining step counts with the same reward, these episodes also score 0.

    Episodes are independent, and the standard error is taken over them.  Raises ValueError for fewer than two.
    """
    if episodes < 2:
        raise ValueError(f"a standard error needs at least 2 episodes, got {episodes}")
    rng = np.random.default_rng(seed)
    states, targets = model.draw(episodes)
    total, n_steps, is_active = np.zeros(episodes), np.zeros(episodes), np.ones(episodes, bool)
    previous_actions = np.tile(model.safe_action, (episodes, 1))
    for t in range(model.steps):
        actions = rng.uniform(model.action_low, model.action_high, (episodes, len(model.action_low)))
        n_steps += is_active
        states[is_active], reward, has_ended = model.follow(
            states[is_active], actions[is_active], previous_actions[is_active], targets[is_active, t + 1]
        )
        previous_actions = actions
        total[is_active] += reward
        is_active[is_active] = ~has_ended
        if not is_active.any():
            break
    if not model.task.may_terminate:
        means = total / model.steps
        return Estimate(float(means.mean()), float(means.std(ddof=1) / np.sqrt(episodes)))
    mean = float(total.sum() / n_steps.sum())
    spread = (total - mean * n_steps).std(ddof=1) / n_steps.mean()
    return Estimate(mean, float(spread / np.sqrt(episodes)))
