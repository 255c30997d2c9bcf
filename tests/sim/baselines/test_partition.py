"""The fuzzy partition: memberships, saturation, the periodic angle, where nodes lie."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.sim.baselines.partition import Axis, Partition, dense_axis, partition_for, periodic_axis
from tests.sim.baselines.models import MAGMAN, PENDULUM

PARTITION = partition_for(PENDULUM, (8, 7))


@settings(max_examples=60, deadline=None)
@given(st.floats(-50, 50), st.floats(-200, 200))
def test_weights_are_none_negative_and_sum_to_one(angle: float, velocity: float) -> None:
    index, weight = PARTITION.memberships(np.array([[angle, velocity]]))
    assert weight.min() >= 0.0
    assert weight.sum() == pytest.approx(1.0, abs=1e-12)
    assert index.min() >= 0
    assert index.max() < 8 * 7


def test_a_node_belongs_to_itself_alone() -> None:
    for partition in (PARTITION, partition_for(MAGMAN, (7, 5))):
        nodes = partition.nodes()
        index, weight = partition.memberships(nodes)
        share = np.zeros((len(nodes), len(nodes)))
        np.add.at(share, (np.arange(len(nodes))[:, None], index), weight)
        assert share == pytest.approx(np.eye(len(nodes)), abs=1e-9)


def test_a_bilinear_function_is_interpolated_exactly() -> None:
    partition = Partition((Axis(np.array([-1.0, 0.5, 2.0])), Axis(np.array([0.0, 0.1, 3.0]))))

    def f(x: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.asarray(1.0 + 2.0 * x[:, 0] - 3.0 * x[:, 1] + 0.5 * x[:, 0] * x[:, 1])

    x = np.random.default_rng(0).uniform([-1, 0], [2, 3], (50, 2))
    index, weight = partition.memberships(x)
    assert (weight * f(partition.nodes())[index]).sum(axis=1) == pytest.approx(f(x))


def test_beyond_the_nodes_the_outermost_holds() -> None:
    lower, upper, share = dense_axis(-2.0, 2.0, 0.0, 5).memberships(np.array([-9.0, 9.0]))
    assert lower[0] == 0
    assert share[0] == 0.0
    assert upper[1] == 4
    assert share[1] == 1.0


@settings(max_examples=60, deadline=None)
@given(st.floats(-math.pi, math.pi), st.integers(-2, 2))
def test_an_angle_is_the_same_after_whole_turns(angle: float, turns: int) -> None:
    axis = periodic_axis(math.pi, 8)
    values = np.random.default_rng(0).normal(size=8)

    def value(x: float) -> float:
        lower, upper, share = axis.memberships(np.array([x]))
        return float((values[lower] * (1 - share) + values[upper] * share)[0])

    assert value(angle + 2 * math.pi * turns) == pytest.approx(value(angle), abs=1e-9)


def test_between_the_last_node_and_the_first_of_a_turn_both_count() -> None:
    axis = Axis(np.array([0.0, 1.0, 4.0]), 2 * math.pi)
    lower, upper, share = axis.memberships(np.array([4.0 + 0.25 * (2 * math.pi - 4.0)]))
    assert (int(lower[0]), int(upper[0])) == (2, 0)
    assert share[0] == pytest.approx(0.25)


def test_nodes_are_densest_at_the_target_and_one_lies_on_it() -> None:
    for axis, target in (
        (PARTITION.axes[1], 0.0),
        (dense_axis(-0.035, 0.105, 0.035, 21), 0.035),
        (dense_axis(0.0, 10.0, 2.0, 11), 2.0),
        (periodic_axis(math.pi, 12), math.pi),
    ):
        gaps = np.diff(axis.nodes)
        assert (gaps > 0).all()
        (at,) = np.flatnonzero(axis.nodes == target)
        assert (np.diff(gaps[:at]) < 0).all()
        assert (np.diff(gaps[at:]) > 0).all()


def test_nodes_span_the_range_in_the_number_asked_for() -> None:
    axis = dense_axis(-0.4, 0.4, 0.1, 9)
    assert (len(axis.nodes), axis.nodes[0], axis.nodes[-1]) == (9, pytest.approx(-0.4), pytest.approx(0.4))
    turn = periodic_axis(0.0, 10)
    assert len(turn.nodes) == 10
    assert turn.nodes[0] == pytest.approx(-math.pi)


@pytest.mark.parametrize(("around", "nodes"), [(0.0, 2), (2.0, 9), (-1.0, 9)])
def test_an_axis_that_cannot_be_is_refused(around: float, nodes: int) -> None:
    with pytest.raises(ValueError, match="at least 3 nodes"):
        dense_axis(-1.0, 1.0, around, nodes)


def test_a_turn_takes_an_even_number_of_nodes() -> None:
    with pytest.raises(ValueError, match="even number"):
        periodic_axis(0.0, 7)
