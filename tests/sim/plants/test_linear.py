"""A linear plant in YAML: steps by the matrix exponential, walls, angles, and mistakes reported by name."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.linalg import expm

from onrig.sim.plants.integrate import step
from onrig.sim.plants.linear import Linear

MOTOR = {
    "kind": "linear",
    "states": ["angle", "velocity"],
    "actions": ["voltage"],
    "A": [[0, 1], [0, -12.5]],
    "B": [[0], [95]],
}


def linear(**changes: Any) -> Linear:
    return msgspec.convert({**MOTOR, **changes}, Linear)


def test_it_moves_according_to_the_matrix_exponential_alone_and_in_batches() -> None:
    A, B, u = np.array(MOTOR["A"]), np.array(MOTOR["B"]), 0.7
    held = expm(0.02 * np.block([[A, B], [np.zeros((1, 3))]]))
    expected = (held @ np.array([0.3, -1.0, u]))[:2]
    found = step(linear(), (0.3, -1.0), (u,), 0.02, 4)
    assert found == pytest.approx(expected, rel=1e-6)
    both = step(linear(), (np.array([0.3, 0.3]), np.array([-1.0, 2.0])), (np.array([u, -u]),), 0.02, 4)
    assert tuple(x[0] for x in both) == found
    assert tuple(x[1] for x in both) == step(linear(), (0.3, 2.0), (-u,), 0.02, 4)


def test_a_wall_stops_the_position_and_the_velocity_into_it() -> None:
    plant = linear(walls={"angle": [-1.0, 1.0]})
    assert step(plant, (0.999, 5.0), (0.0,), 0.02) == (1.0, 0.0)
    angle, velocity = step(plant, (-0.999, 5.0), (0.0,), 0.02)
    assert angle > -0.999
    assert velocity > 0.0
    columns = (np.array([0.999, 0.0]), np.array([5.0, 5.0]))
    assert [x[0] for x in step(plant, columns, (np.zeros(2),), 0.02)] == [1.0, 0.0]
    free = plant.moves_freely((np.array([0.0, 0.995]), np.zeros(2)))
    assert np.array_equal(free, [True, False])


def test_an_angle_wraps() -> None:
    angle, _ = step(linear(wrap=["angle"]), (math.pi - 0.01, 5.0), (0.0,), 0.02)
    assert angle == pytest.approx(step(linear(), (math.pi - 0.01, 5.0), (0.0,), 0.02)[0] - 2.0 * math.pi)


def test_dry_friction_acts_on_the_velocity_wherever_it_is_in_the_state() -> None:
    swapped = {"states": ["velocity", "angle"], "A": [[-12.5, 0], [1, 0]], "B": [[95], [0]], "dry_friction": 2.0}
    for start in (0.0, 1.0):
        angle, velocity = step(linear(dry_friction=2.0), (0.3, start), (0.01,), 0.02)
        assert step(linear(**swapped), (start, 0.3), (0.01,), 0.02) == (velocity, angle)
    assert linear(velocities_of={"angle": "velocity"}).velocities == linear().velocities == ("velocity",)


def test_trials_may_have_their_own_entries() -> None:
    many = linear().varied({"A_velocity_velocity": np.array([10.0, 12.5]), "B_velocity_voltage": 95.0})
    found = step(many, (np.zeros(2), np.ones(2)), (np.full(2, 0.5),), 0.02)
    assert tuple(x[1] for x in found) == step(linear(), (0.0, 1.0), (0.5,), 0.02)
    assert msgspec.to_builtins(linear().varied({"A_velocity_velocity": 10.0}))["A"][1] == (0.0, -10.0)
    with pytest.raises(KeyError):
        linear().varied({"A_angle_velocity": 2.0})


@pytest.mark.parametrize("size", [0.0, -1.0, 1e300, math.nan])
def test_a_size_that_is_not_a_parameter_is_refused(size: float) -> None:
    with pytest.raises(ValueError, match="A_velocity_velocity: expected 1e-12 to"):
        linear().varied({"A_velocity_velocity": np.array([12.5, size])})
    (least,) = [p.low for p in linear().parameters() if p.name == "A_velocity_velocity"]
    varied = linear().varied({"A_velocity_velocity": least})
    assert [p.name for p in varied.parameters()] == [p.name for p in linear().parameters()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"A": [[0, 1]]}, "A: expected 2 rows, one per state, got 1"),
        ({"A": [[0, 1], [0]]}, "A: expected 2 numbers, one per state, for velocity, got 1"),
        ({"B": [[0], [95, 1]]}, "B: expected 1 numbers, one per action, for velocity, got 2"),
        ({"wrap": ["angel"]}, r"wrap: 'angel' is not a state \(known: angle, velocity\)"),
        ({"walls": {"angle": [1, -1]}}, "walls: expected the lower end first for angle, got 1 and -1"),
        ({"velocities_of": {"angle": "speed"}}, "velocities_of: 'speed' is not a state"),
        ({"states": ["angle", "angle"]}, "states: expected one or more distinct names, got angle, angle"),
    ],
)
def test_a_mistake_is_reported_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        linear(**changes)
