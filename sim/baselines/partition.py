"""Triangular fuzzy partition of a state space: nodes on a product grid, memberships that are multilinear weights."""

from __future__ import annotations

import itertools
import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.sim.baselines.task_model import TaskModel, Values

SPREAD: Final = 4.0
"""Of the nodes of an unbounded or walled quantity: the outermost gap is about cosh(SPREAD) = 27 times the innermost."""
SPREAD_PERIODIC: Final = 2.0


class Axis(NamedTuple):
    """Nodes of one dimension, strictly ascending; a periodic one goes on from the last node to the first."""

    nodes: Values
    period: float | None = None

    def memberships(self, x: Values) -> tuple[NDArray[np.intp], NDArray[np.intp], Values]:
        """Return lower node, upper node and membership of the upper one for each x; outside the nodes it saturates."""
        nodes = self.nodes
        if self.period is None:
            x = np.clip(x, nodes[0], nodes[-1])
            ends = nodes
        else:
            x = nodes[0] + (x - nodes[0]) % self.period
            ends = np.append(nodes, nodes[0] + self.period)
        lower = np.clip(np.searchsorted(ends, x, side="right") - 1, 0, len(ends) - 2)
        weight = np.clip((x - ends[lower]) / (ends[lower + 1] - ends[lower]), 0.0, 1.0)
        return lower, (lower + 1) % len(nodes), weight


class Partition(NamedTuple):
    """The product of some axes; node k has the row-major index of its position on each."""

    axes: tuple[Axis, ...]

    def nodes(self) -> Values:
        """All nodes, shape (n_nodes, d)."""
        return np.stack([g.ravel() for g in np.meshgrid(*[a.nodes for a in self.axes], indexing="ij")], axis=1)

    def memberships(self, states: Values) -> tuple[NDArray[np.intp], Values]:
        """Nodes and weights of states (n, d): two (n, 2^d) arrays; the weights of a state sum to one."""
        found = [axis.memberships(np.ascontiguousarray(x)) for axis, x in zip(self.axes, states.T, strict=True)]
        indices, weights = [], []
        for corner in itertools.product((0, 1), repeat=len(self.axes)):
            index = np.zeros(len(states), np.intp)
            weight = np.ones(len(states))
            for axis, upper, (low, high, share) in zip(self.axes, corner, found, strict=True):
                index = index * len(axis.nodes) + (high if upper else low)
                weight = weight * (share if upper else 1.0 - share)
            indices.append(index)
            weights.append(weight)
        return np.stack(indices, axis=1), np.stack(weights, axis=1)


def dense_axis(low: float, high: float, around: float, nodes: int) -> Axis:
    """Nodes from low to high, one of them at ``around`` and densest there; raises ValueError below 3."""
    if nodes < 3 or not low < around < high:
        raise ValueError(f"needs at least 3 nodes and a centre within the range, got {nodes}, {around}")
    below = min(max(round((nodes - 1) * (around - low) / (high - low)), 1), nodes - 2)
    left = around - (around - low) * _ramp(below, SPREAD)[:0:-1]
    right = around + (high - around) * _ramp(nodes - 1 - below, SPREAD)
    return Axis(np.concatenate([left, right]))


def periodic_axis(around: float, nodes: int) -> Axis:
    """Nodes of an angle in rad over one turn, densest about ``around``; ``nodes`` is even, so that one faces it."""
    if nodes < 4 or nodes % 2:
        raise ValueError(f"needs an even number of at least 4 nodes, got {nodes}")
    half = math.pi * _ramp(nodes // 2, SPREAD_PERIODIC)
    return Axis(np.concatenate([around - half[:0:-1], around + half[:-1]]), 2.0 * math.pi)


def partition_for(model: TaskModel, nodes: tuple[int, ...]) -> Partition:
    """Lay nodes over a rig's observed ranges, densest around the task's target; ``nodes`` in the order of the state."""
    observed = {o.sensor or o.name: o for o in model.rig.observations}
    wrapped = {s.name for s in model.rig.sensors if s.wrap}
    target = model.task.reward.target
    axes = []
    for name, n in zip(model.plant.state_names, nodes, strict=True):
        o = observed[name]
        around = target.get(o.name, 0.5 * (o.low + o.high))
        axes.append(periodic_axis(around, n) if name in wrapped else dense_axis(o.low, o.high, around, n))
    return Partition(tuple(axes))


def _ramp(steps: int, spread: float) -> Values:
    """``steps + 1`` values from 0 to 1, densest at 0."""
    values: Values = np.sinh(spread * np.linspace(0.0, 1.0, steps + 1)) / math.sinh(spread)
    values[-1] = 1.0
    return values
