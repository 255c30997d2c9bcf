"""A task on its exact plant, for many states and actions at once: what every baseline is computed from."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.runtime.task import Task, batched_reward
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import SUBSTEPS, step
from onrig.sim.synthetic.model import model_problems

Values = NDArray[np.float64]


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
        return np.array([self.task.start[name] for name in self.plant.state_names])

    @property
    def action_low(self) -> Values:
        """Lower action limits, shape (m,)."""
        return np.array([a.low for a in self.rig.actuators])

    @property
    def action_high(self) -> Values:
        """Upper action limits, shape (m,)."""
        return np.array([a.high for a in self.rig.actuators])

    def advance(self, states: Values, actions: Values) -> tuple[Values, Values]:
        """Return next states (n, d) and rewards (n,) of states (n, d) under actions (n, m)."""
        before: tuple[Values, ...] = tuple(np.ascontiguousarray(column) for column in states.T)
        held: tuple[Values, ...] = tuple(np.ascontiguousarray(column) for column in actions.T)
        after = step(self.plant, before, held, self.period_s, self.substeps)
        named = dict(zip(self.plant.state_names, after, strict=True))
        seen = np.stack([named[o.sensor or o.name] for o in self.rig.observations], axis=1)
        return np.stack(after, axis=1), batched_reward(self.task, self.rig)(seen, actions)


def task_model_problems(rig: Rig, task: Task, plant: Plant) -> list[str]:
    """List why no baseline can be computed; empty when one can."""
    problems = model_problems(rig, plant)
    if rig.previous_command:
        problems.append("the rig observes the previous command, which is no state of the plant")
    if task.terminate:
        problems.append("the task terminates, so that the mean over a whole episode is not defined")
    return problems
