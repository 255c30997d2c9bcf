"""Finite-horizon optimum by backward induction over a grid: no discount, one episode, the task's own mean reward.

V_t(x_i) = max_a [ r(x_i, a) + sum_i' phi_i'(f(x_i, a)) V_t+1(x_i') ],   V_T = 0

Interpolation errs in either direction, so V_0 at the start is an estimate, not a bound.  The policy's score on the
exact plant is a lower bound on the optimum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.sim.baselines.fuzzy_q_iteration import Grid, Partition, discrete_actions, partition_for
from onrig.sim.baselines.task_model import TaskModel, Values
from onrig.sim.plants.integrate import BATCHED

LEVEL_FACTOR: Final = 8
"""Factor by which look-ahead, where levels are cheap, uses more levels than the induction."""
_BLOCK_PAIRS: Final = 1 << 15
"""State-action pairs per block, so that gathered data fits into the processor's cache."""

Progress = Callable[[int, int], None]
"""Progress callback: steps done and steps in total."""


class Trajectory(NamedTuple):
    """One episode on the exact plant."""

    states: Values
    """(T + 1, d), from the task's start."""
    actions: Values
    """(T, m) in SI."""
    mean_reward: float
    """Mean reward per step."""


class Induction(NamedTuple):
    """Highest sum of remaining rewards at each node and step."""

    partition: Partition
    values: NDArray[np.float32]
    """(T + 1, n_nodes); the last row is zero."""
    levels: int

    def start_mean(self, model: TaskModel) -> float:
        """Return V_0 at the task's start divided by the number of steps, which estimates the optimum to within the
        interpolation error."""
        index, weight = self.partition.memberships(model.start[None])
        return float((weight * self.values[0][index]).sum()) / model.steps


class _Block(NamedTuple):
    """Precomputed successors of M candidate actions at each of n nodes."""

    reward: NDArray[np.float32]
    """(M, n)."""
    lower_index: NDArray[np.int32]
    """(M, n): lower corner of the next state's cell in the padded grid."""
    upper_weight: NDArray[np.float32]
    """(d, M, n): membership of the upper node on each axis."""


def candidate_actions(model: TaskModel, states: Values, levels: int) -> Values:
    """Return candidate actions (n, M, m) at states (n, d); ``levels`` as in :func:`discrete_actions`.

    If several actuators cost nothing, only their total force matters: the combinations of limits are supplemented by
    ``levels`` actions, from the strongest pull in one direction through the safe action to the strongest pull in the
    other.  These depend on the state, because a coil's pull depends on the ball's position.  If actions have a cost,
    the cheapest way to produce a force matters too, and the fixed actions of fuzzy Q-iteration are used.
    """
    weights = model.task.reward.action_weights
    if len(model.rig.actuators) == 1 or any(weights.values()):
        actions = discrete_actions(model, levels)
        return np.broadcast_to(actions, (len(states), *actions.shape))
    low, high = model.action_low, model.action_high
    safe_action = np.array([a.safe for a in model.rig.actuators])
    effect = _actuator_effects(model, states)
    s = np.linspace(-1.0, 1.0, levels)
    squared_size = (s * s)[None, :, None]
    direction = np.where(s < 0.0, -1.0, 1.0)[None, :, None] * effect[:, None, :]
    joint_actions = safe_action + squared_size * (np.where(direction > 0.0, high, low) - safe_action)
    corners = np.array(list(itertools.product(*zip(low, high, strict=True))))
    return np.concatenate([joint_actions, np.broadcast_to(corners, (len(states), *corners.shape))], axis=1)


def _actuator_effects(model: TaskModel, states: Values) -> Values:
    """Return the acceleration (rate of the last state component) per unit of each actuator, shape (n, m)."""
    columns: tuple[Values, ...] = tuple(np.ascontiguousarray(x) for x in states.T)
    m = len(model.rig.actuators)

    def acceleration(action: Values) -> Values:
        columns_of_action: tuple[Values, ...] = tuple(np.full(len(states), a) for a in action)
        return model.plant.derivative(BATCHED, columns, columns_of_action)[-1]

    free_acceleration = acceleration(np.zeros(m))
    return np.stack([acceleration(unit) - free_acceleration for unit in np.eye(m)], axis=1)


def induce(model: TaskModel, grid: Grid, progress: Progress | None = None) -> Induction:
    """Apply backward induction over a grid.  Raises ValueError for invalid nodes or levels."""
    partition = partition_for(model, grid.nodes)
    nodes = partition.nodes()
    blocks = [*_blocks(model, partition, nodes, grid.levels)]
    corners = _corners(partition)
    values = np.zeros((model.steps + 1, len(nodes)), np.float32)
    next_values = np.zeros(len(nodes))
    for t in range(model.steps - 1, -1, -1):
        padded = _pad(partition, next_values)
        next_values = np.concatenate([(b.reward + _interpolate(padded, b, corners)).max(axis=0) for b in blocks])
        values[t] = next_values
        if progress is not None:
            progress(model.steps - t, model.steps)
    return Induction(partition, values, grid.levels)


def look_ahead(model: TaskModel, induction: Induction) -> Trajectory:
    """Run one episode on the exact plant, choosing each action from a finer set by reward plus V at the exact next
    state."""
    levels = LEVEL_FACTOR * (induction.levels - 1) + 1
    state, applied_actions = model.start, []
    for t in range(model.steps):
        actions = candidate_actions(model, state[None], levels)[0]
        next_states, reward = model.advance(np.tile(state, (len(actions), 1)), actions)
        index, weight = induction.partition.memberships(next_states)
        best_index = int(np.argmax(reward + (weight * induction.values[t + 1][index]).sum(axis=1)))
        state = next_states[best_index]
        applied_actions.append(actions[best_index])
    return run(model, np.stack(applied_actions))


def run(model: TaskModel, actions: Values) -> Trajectory:
    """Apply actions (T, m) from the task's start.  Raises ValueError unless each step has one action."""
    if len(actions) != model.steps:
        raise ValueError(f"expected one action for each of {model.steps} steps, got {len(actions)}")
    states, total_reward = [model.start], 0.0
    for action in actions:
        next_states, reward = model.advance(states[-1][None], action[None])
        states.append(next_states[0])
        total_reward += float(reward[0])
    return Trajectory(np.stack(states), actions, total_reward / model.steps)


def _blocks(model: TaskModel, partition: Partition, nodes: Values, levels: int) -> list[_Block]:
    n_actions = candidate_actions(model, nodes[:1], levels).shape[1]
    size = max(1, _BLOCK_PAIRS // n_actions)
    return [
        _precompute_block(model, partition, nodes[offset : offset + size], levels)
        for offset in range(0, len(nodes), size)
    ]


def _precompute_block(model: TaskModel, partition: Partition, nodes: Values, levels: int) -> _Block:
    actions = candidate_actions(model, nodes, levels).swapaxes(0, 1)
    shape = actions.shape[:2]
    next_states, reward = model.advance(np.tile(nodes, (shape[0], 1)), actions.reshape(-1, actions.shape[2]))
    index, upper_weights = np.zeros(len(next_states), np.intp), []
    for axis, size, x in zip(partition.axes, _padded_shape(partition), next_states.T, strict=True):
        lower_index, _, upper_weight = axis.memberships(np.ascontiguousarray(x))
        index = index * size + lower_index
        upper_weights.append(upper_weight.reshape(shape))
    return _Block(
        reward.reshape(shape).astype(np.float32),
        index.reshape(shape).astype(np.int32),
        np.stack(upper_weights).astype(np.float32),
    )


def _padded_shape(partition: Partition) -> tuple[int, ...]:
    """Return the shape of a grid that repeats the first node of a periodic axis, so a cell's corners are adjacent."""
    return tuple(len(a.nodes) + (a.period is not None) for a in partition.axes)


def _pad(partition: Partition, values: Values) -> Values:
    grid = values.reshape([len(a.nodes) for a in partition.axes])
    pad_widths = [(0, int(a.period is not None)) for a in partition.axes]
    return np.pad(grid, pad_widths, mode="wrap").ravel()


def _corners(partition: Partition) -> list[int]:
    """Return the flat offsets of a cell's corners from its lower corner in the padded grid, the last axis fastest."""
    shape = _padded_shape(partition)
    strides = [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]
    return [sum(itertools.compress(strides, corner)) for corner in itertools.product((0, 1), repeat=len(shape))]


def _interpolate(padded: Values, block: _Block, corners: list[int]) -> Values:
    """Return multilinearly interpolated values (M, n) at the next states of a block."""
    corner_values = [padded[offset:].take(block.lower_index) for offset in corners]
    for upper_weight in block.upper_weight[::-1]:
        corner_values = [
            low + upper_weight * (high - low) for low, high in zip(corner_values[::2], corner_values[1::2], strict=True)
        ]
    return corner_values[0]
