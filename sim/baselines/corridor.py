"""Polishing of an episode's actions: backward induction in a narrowing corridor around its own trajectory.

On a deterministic plant the best sequence of actions from a known start is the optimum.  Each pass lays a small grid
around every visited state, applies backward induction to these grids with actions near those taken, runs the result
from the start, and keeps it if it scores higher (iterative dynamic programming, after Luus 1990).  The interpolation
error shrinks with the corridor, and the method needs no derivatives of the reward, which is not smooth.  The result is
a local optimum: its swings are still those found by the induction over all states.
"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.sim.baselines.finite_horizon import Progress, Trajectory, run
from onrig.sim.baselines.fuzzy_q_iteration import partition_for
from onrig.sim.baselines.task_model import TaskModel, Values

N_PASSES: Final = 20
_N_NODES: Final = 9
"""Number of nodes per state dimension across the corridor; odd, so that the middle one is the trajectory."""
_N_LEVELS: Final = 7
"""Levels of each actuator around the action taken; odd, to include the action itself."""
_LEVEL_FACTOR: Final = 8
"""Factor by which the number of levels increases when the result is run."""
_INITIAL_FRACTION: Final = 0.1
"""Initial half-width of the corridor and of the actions in it, as a share of half the range."""
_SHRINK_FACTOR: Final = 0.6
"""Factor on the corridor's width after a pass without improvement."""
_OUTSIDE_COST: Final = 10.0
"""Penalty per half-width outside the corridor, as a multiple of the initial trajectory's absolute return."""


class _Corridor(NamedTuple):
    """Small grids around the states of a trajectory."""

    centres: Values
    """States of the trajectory, (T + 1, d)."""
    half_widths: Values
    """(d,): half-widths of each grid."""
    period: Values
    """(d,): one turn for a periodic dimension, otherwise inf."""
    outside_cost: float
    """Cost per half-width of distance from the corridor."""

    def nodes(self) -> Values:
        """Return the offsets of a grid's nodes from its centre, shape (n, d)."""
        unit_nodes = np.linspace(-1.0, 1.0, _N_NODES)
        return np.array(list(itertools.product(unit_nodes, repeat=len(self.half_widths)))) * self.half_widths

    def grid_positions(self, t: NDArray[np.intp], states: Values) -> tuple[Values, Values]:
        """Return the positions of states (n, d) in the grids t (n,), counted in nodes, and the cost (n,) of being
        outside."""
        deviation = states - self.centres[t]
        for k, period in enumerate(self.period):
            if np.isfinite(period):
                deviation[:, k] -= period * np.round(deviation[:, k] / period)
        deviation /= self.half_widths
        clipped_deviation = np.clip(deviation, -1.0, 1.0)
        return (clipped_deviation + 1.0) * (0.5 * (_N_NODES - 1)), np.abs(deviation - clipped_deviation).sum(
            axis=1
        ) * self.outside_cost


def polish(
    model: TaskModel, trajectory: Trajectory, passes: int = N_PASSES, progress: Progress | None = None
) -> Trajectory:
    """Improve a trajectory and return one whose mean reward on the exact plant is at least as high."""
    axes = partition_for(model, (4,) * len(model.plant.state_names)).axes
    span = np.array([a.period or a.nodes[-1] - a.nodes[0] for a in axes])
    period = np.array([a.period or np.inf for a in axes])
    outside_cost = _OUTSIDE_COST * max(1.0, abs(trajectory.mean_reward) * model.steps)
    range_fraction = _INITIAL_FRACTION
    for pass_index in range(passes):
        corridor = _Corridor(trajectory.states, 0.5 * range_fraction * span, period, outside_cost)
        candidate = _look_ahead(
            model, trajectory, corridor, range_fraction, _induce(model, trajectory, corridor, range_fraction)
        )
        if candidate.mean_reward > trajectory.mean_reward:
            trajectory = candidate
        else:
            range_fraction *= _SHRINK_FACTOR
        if progress is not None:
            progress(pass_index + 1, passes)
    return trajectory


def _actions_near(model: TaskModel, actions: Values, range_fraction: float, levels: int) -> Values:
    """Return variants (n, M, m) of actions (n, m), each different in one actuator.

    That actuator is shifted by up to a share of its half-range, or set to a limit or its safe value.
    """
    variants_by_actuator = []
    for j, a in enumerate(model.rig.actuators):
        neighbours = actions[:, j : j + 1] + 0.5 * (a.high - a.low) * range_fraction * np.linspace(-1.0, 1.0, levels)
        fixed_levels = np.broadcast_to(np.array([a.low, a.safe, a.high]), (len(actions), 3))
        variant_values = np.concatenate([np.clip(neighbours, a.low, a.high), fixed_levels], axis=1)
        variants = np.repeat(actions[:, None, :], variant_values.shape[1], axis=1)
        variants[:, :, j] = variant_values
        variants_by_actuator.append(variants)
    return np.concatenate(variants_by_actuator, axis=1)


def _induce(model: TaskModel, trajectory: Trajectory, corridor: _Corridor, range_fraction: float) -> Values:
    """Return the values (T + 1, n) at the nodes of each grid, by backward induction."""
    offsets = corridor.nodes()
    n = len(offsets)
    values = np.zeros((model.steps + 1, n))
    for t in range(model.steps - 1, -1, -1):
        actions = _actions_near(model, trajectory.actions[t : t + 1], range_fraction, _N_LEVELS)[0]
        states = np.repeat(trajectory.states[t] + offsets, len(actions), axis=0)
        gain = _step_values(model, corridor, values[t + 1], t, states, np.tile(actions, (n, 1)))[1]
        values[t] = gain.reshape(n, len(actions)).max(axis=1)
    return values


def _step_values(
    model: TaskModel, corridor: _Corridor, next_values: Values, t: int, states: Values, actions: Values
) -> tuple[Values, Values]:
    """Return the next states (n, d) after step t, and the rewards plus the values of those states (n,)."""
    next_states, reward = model.advance(states, actions)
    position, cost = corridor.grid_positions(np.full(len(next_states), t + 1), next_states)
    return next_states, reward + _interpolate(next_values, position) - cost


def _interpolate(values: Values, position: Values) -> Values:
    lower_index = np.minimum(position.astype(np.intp), _N_NODES - 2)
    upper_weight = position - lower_index
    total = np.zeros(len(position))
    for corner in itertools.product((0, 1), repeat=position.shape[1]):
        index, weight = np.zeros(len(position), np.intp), np.ones(len(position))
        for k, is_upper in enumerate(corner):
            index = index * _N_NODES + (lower_index[:, k] + is_upper)
            weight = weight * (upper_weight[:, k] if is_upper else 1.0 - upper_weight[:, k])
        total += weight * values[index]
    return total


def _look_ahead(
    model: TaskModel, trajectory: Trajectory, corridor: _Corridor, range_fraction: float, values: Values
) -> Trajectory:
    """Run one-step look-ahead from the start, with finer action levels and the values of the corridor."""
    state, applied_actions = model.start, []
    levels = _LEVEL_FACTOR * (_N_LEVELS - 1) + 1
    for t in range(model.steps):
        actions = _actions_near(model, trajectory.actions[t : t + 1], range_fraction, levels)[0]
        next_states, gain = _step_values(model, corridor, values[t + 1], t, np.tile(state, (len(actions), 1)), actions)
        best_index = int(np.argmax(gain))
        state = next_states[best_index]
        applied_actions.append(actions[best_index])
    return run(model, np.stack(applied_actions))
