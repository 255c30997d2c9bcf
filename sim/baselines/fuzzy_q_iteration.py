"""Fuzzy Q-iteration (Busoniu et al., Automatica 46, 2010): a model-based policy for a task with few state dimensions.

theta_ij <- r(x_i, u_j) + gamma max_j' sum_i' phi_i'(f(x_i, u_j)) theta_i'j'      (synchronous)

A triangular partition divides the states: its nodes form a product grid, and the memberships phi are multilinear
weights.
"""

from __future__ import annotations

import itertools
import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.sim.baselines.task_model import TaskModel, Values

SPREAD: Final = 4.0
"""Spread of the nodes of an unbounded or walled quantity: the outermost gap is about cosh(SPREAD) = 27 times the
innermost one."""
SPREAD_PERIODIC: Final = 2.0


class Axis(NamedTuple):
    """Nodes of one dimension, strictly ascending; a periodic axis continues from the last node to the first."""

    nodes: Values
    period: float | None = None

    def memberships(self, x: Values) -> tuple[NDArray[np.intp], NDArray[np.intp], Values]:
        """Return the lower node, the upper node and the upper node's membership for each x, which is clipped to the
        nodes unless the axis is periodic."""
        nodes = self.nodes
        if self.period is None:
            x = np.clip(x, nodes[0], nodes[-1])
            cell_edges = nodes
        else:
            x = nodes[0] + (x - nodes[0]) % self.period
            cell_edges = np.append(nodes, nodes[0] + self.period)
        lower_index = np.clip(np.searchsorted(cell_edges, x, side="right") - 1, 0, len(cell_edges) - 2)
        weight = np.clip(
            (x - cell_edges[lower_index]) / (cell_edges[lower_index + 1] - cell_edges[lower_index]), 0.0, 1.0
        )
        return lower_index, (lower_index + 1) % len(nodes), weight


class Partition(NamedTuple):
    """Product of axes; nodes are numbered in row-major order."""

    axes: tuple[Axis, ...]

    def nodes(self) -> Values:
        """Return all nodes, shape (n_nodes, d)."""
        return np.stack([g.ravel() for g in np.meshgrid(*[a.nodes for a in self.axes], indexing="ij")], axis=1)

    def memberships(self, states: Values) -> tuple[NDArray[np.intp], Values]:
        """Return nodes and weights of states (n, d) as two (n, 2^d) arrays; the weights of a state sum to one."""
        memberships_by_axis = [
            axis.memberships(np.ascontiguousarray(x)) for axis, x in zip(self.axes, states.T, strict=True)
        ]
        indices, weights = [], []
        for corner in itertools.product((0, 1), repeat=len(self.axes)):
            index = np.zeros(len(states), np.intp)
            weight = np.ones(len(states))
            for axis, is_upper, (low, high, upper_weight) in zip(self.axes, corner, memberships_by_axis, strict=True):
                index = index * len(axis.nodes) + (high if is_upper else low)
                weight = weight * (upper_weight if is_upper else 1.0 - upper_weight)
            indices.append(index)
            weights.append(weight)
        return np.stack(indices, axis=1), np.stack(weights, axis=1)


def dense_axis(low: float, high: float, centre: float, nodes: int) -> Axis:
    """Return an axis with nodes from low to high, densest at ``centre``, which is one of them.

    Raises ValueError for fewer than 3 nodes or a centre outside the range.
    """
    if nodes < 3 or not low < centre < high:
        raise ValueError(f"expected at least 3 nodes and a centre within the range, got {nodes}, {centre}")
    n_below = min(max(round((nodes - 1) * (centre - low) / (high - low)), 1), nodes - 2)
    lower_nodes = centre - (centre - low) * _ramp(n_below, SPREAD)[:0:-1]
    upper_nodes = centre + (high - centre) * _ramp(nodes - 1 - n_below, SPREAD)
    return Axis(np.concatenate([lower_nodes, upper_nodes]))


def periodic_axis(centre: float, nodes: int) -> Axis:
    """Return an axis with the nodes of an angle in rad over one turn, densest at ``centre``.

    Raises ValueError unless ``nodes`` is even, so that one node lies opposite ``centre``, and at least 4.
    """
    if nodes < 4 or nodes % 2:
        raise ValueError(f"expected an even number of at least 4 nodes, got {nodes}")
    half_turn_nodes = math.pi * _ramp(nodes // 2, SPREAD_PERIODIC)
    return Axis(np.concatenate([centre - half_turn_nodes[:0:-1], centre + half_turn_nodes[:-1]]), 2.0 * math.pi)


def partition_for(model: TaskModel, nodes: tuple[int, ...]) -> Partition:
    """Lay nodes over a rig's observed ranges, densest around the task's target.

    ``nodes``: number of nodes of each state, in the plant's order.
    """
    observations = {o.sensor or o.name: o for o in model.rig.observations}
    wrapped_sensors = {s.name for s in model.rig.sensors if s.wrap}
    target = model.task.reward.target
    axes = []
    for name, n in zip(model.plant.state_names, nodes, strict=True):
        o = observations[name]
        centre = target.get(o.name, 0.5 * (o.low + o.high))
        axes.append(periodic_axis(centre, n) if name in wrapped_sensors else dense_axis(o.low, o.high, centre, n))
    return Partition(tuple(axes))


def _ramp(steps: int, spread: float) -> Values:
    """Return ``steps + 1`` values from 0 to 1, densest at 0."""
    values: Values = np.sinh(spread * np.linspace(0.0, 1.0, steps + 1)) / math.sinh(spread)
    values[-1] = 1.0
    return values


GAMMA: Final = 0.95
"""Discount of the learners (de Bruin et al. 2018, §4)."""
EPSILON: Final = 1e-2
"""The iteration stops when |change of theta| falls below this value, in units of reward (as in Busoniu's code) or, if
all rewards per step are below 1, as a fraction of the largest reward."""
_BLOCK_PAIRS: Final = 4096
"""State-action pairs per block, so that gathered data fits into the processor's cache."""


class Grid(NamedTuple):
    """Discretisation of states and actions."""

    nodes: tuple[int, ...]
    """Nodes of each state dimension."""
    levels: int
    """Levels of each actuator: see :func:`discrete_actions`."""


class Solution(NamedTuple):
    """Fixed point theta with its model and grid."""

    partition: Partition
    actions: Values
    """(M, m) in SI."""
    theta: Values
    """(n_nodes, M)."""
    iterations: int


class Backup:
    """Synchronous update of theta with precomputed plant transitions."""

    def __init__(self, model: TaskModel, partition: Partition, actions: Values, gamma: float = GAMMA) -> None:
        nodes = partition.nodes()
        self.shape = (len(nodes), len(actions))
        next_states, self._reward = model.advance(np.repeat(nodes, len(actions), 0), np.tile(actions, (len(nodes), 1)))
        self._index, self._weight = partition.memberships(next_states)
        self._gamma = gamma
        self.largest_reward = float(np.abs(self._reward).max())

    def __call__(self, theta: Values) -> Values:
        """Return the theta that follows the given one, (n_nodes, M)."""
        max_values = np.empty(len(self._reward))
        for offset in range(0, len(max_values), _BLOCK_PAIRS):
            block = slice(offset, offset + _BLOCK_PAIRS)
            max_values[block] = interpolate(theta, self._index[block], self._weight[block]).max(axis=1)
        return (self._reward + self._gamma * max_values).reshape(self.shape)


def interpolate(values: Values, index: NDArray[np.intp], weight: Values) -> Values:
    """Interpolate node values (n_nodes, M) at memberships (n, k), and return the result (n, M)."""
    total = values[index[:, 0]] * weight[:, :1]
    for corner in range(1, index.shape[1]):
        rows = values[index[:, corner]]
        rows *= weight[:, corner : corner + 1]
        total += rows
    return total


def discrete_actions(model: TaskModel, levels: int) -> Values:
    """Return candidate actions (M, m): ``levels`` (odd, at least 3) per actuator, densest at its safe value.

    Several actuators get every combination of their limits, for the strongest pull in either direction from any state,
    plus each actuator alone at ``levels - 1`` values above its safe one, for gentle holding forces.  The four coils of
    the manipulator thus have 16 + 4 (levels - 2) actions instead of levels^4.  Since only the total force on the ball
    matters and current costs nothing, intermediate combinations would add little.
    """
    if levels < 3 or levels % 2 == 0:
        raise ValueError(f"expected an odd number of at least 3 levels, got {levels}")
    actuators = model.rig.actuators
    if len(actuators) == 1:
        a, s = actuators[0], np.linspace(-1.0, 1.0, levels)
        span = np.where(s < 0.0, a.safe - a.low, a.high - a.safe)
        return np.unique(a.safe + span * s * np.abs(s))[:, None]
    actions = [np.array(corner) for corner in itertools.product(*[(a.low, a.high) for a in actuators])]
    safe_action = np.array([a.safe for a in actuators])
    for j, a in enumerate(actuators):
        for s in np.linspace(0.0, 1.0, levels):
            action = safe_action.copy()
            action[j] = a.safe + (a.high - a.safe) * s * s
            actions.append(action)
    return np.unique(np.stack(actions), axis=0)


def solve(model: TaskModel, grid: Grid, gamma: float = GAMMA, epsilon: float = EPSILON) -> Solution:
    """Iterate from zero until theta changes by less than ``epsilon`` (max norm); the iteration is a contraction.

    Raises ValueError if a step from a node gives a non-finite state.
    """
    if not (0.0 <= gamma < 1.0 and epsilon > 0.0):
        raise ValueError(f"expected 0 <= gamma < 1 and a positive epsilon, got {gamma} and {epsilon}")
    partition = partition_for(model, grid.nodes)
    actions = discrete_actions(model, grid.levels)
    backup = Backup(model, partition, actions, gamma)
    if not math.isfinite(backup.largest_reward):
        raise ValueError("a step gives a non-finite state: the plant is too stiff; increase device.twin.substeps")
    epsilon *= min(1.0, backup.largest_reward) or 1.0
    theta = np.zeros(backup.shape)
    change, iterations = np.inf, 0
    while change >= epsilon:
        next_theta = backup(theta)
        change = float(np.abs(next_theta - theta).max())
        theta = next_theta
        iterations += 1
    return Solution(partition, actions, theta, iterations)


def look_ahead(model: TaskModel, solution: Solution, state: Values, gamma: float = GAMMA) -> Values:
    """Return the action (m,) with the highest reward plus discounted value (theta) of the exact next state."""
    actions = solution.actions
    next_states, reward = model.advance(np.tile(state, (len(actions), 1)), actions)
    value = interpolate(solution.theta, *solution.partition.memberships(next_states)).max(axis=1)
    best_action: Values = actions[int(np.argmax(reward + gamma * value))]
    return best_action


def interpolate_action(solution: Solution, state: Values) -> Values:
    """Interpolate the action (m,) between the best discrete ones at the nodes around a state (Busoniu et al. 2010)."""
    index, weight = solution.partition.memberships(state[None])
    node_actions = solution.actions[np.argmax(solution.theta[index[0]], axis=1)]
    action: Values = weight[0] @ node_actions
    return action


class PolicyScores(NamedTuple):
    """Mean rewards per step of a solution's two policies, from the task's start."""

    look_ahead: float
    interpolated: float


def mean_rewards(model: TaskModel, solution: Solution, gamma: float = GAMMA) -> PolicyScores:
    """Run one episode with each policy and return their mean rewards per step."""

    def episode(*, uses_look_ahead: bool) -> float:
        state, total_reward = model.start, 0.0
        for _ in range(model.steps):
            action = (
                look_ahead(model, solution, state, gamma) if uses_look_ahead else interpolate_action(solution, state)
            )
            next_states, reward = model.advance(state[None], action[None])
            state, total_reward = next_states[0], total_reward + float(reward[0])
        return total_reward / model.steps

    return PolicyScores(episode(uses_look_ahead=True), episode(uses_look_ahead=False))
