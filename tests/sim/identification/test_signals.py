"""Signals that contradict each other, without a fit: the messages for each kind, and for honest ones."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from onrig.hw.rig import Rig
from onrig.sim.identification.agreement import sensor_pairs, significant_errors
from onrig.sim.identification.identify import significant_defects
from onrig.sim.identification.recording import Stretch
from onrig.sim.identification.signals import signal_problems
from onrig.sim.plants import Magman, Pendulum, Plant
from onrig.sim.plants.integrate import Array
from onrig.sim.twin.options import TwinOptions
from tests.sim.identification.recorded import PERIOD_S, chirped, record
from tests.sim.plants.spring import Spring
from tests.sim.twin.bench import RIG

PLANT = Pendulum(mass=0.06, damping=2e-5, dry_friction=0.8, dead_band=0.15, delay_s=0.01)


@pytest.fixture(scope="module")
def swung() -> Stretch:
    return record(TwinOptions(plant=PLANT, sensor_noise=0.002, sensor_zero={"angle": 0.05}), 2000, chirped())


def late(readings: Array, periods: int) -> Array:
    return np.concatenate([np.repeat(readings[:1], periods), readings[:-periods]])


def second_half(readings: Array, other: Array) -> Array:
    half = len(readings) // 2
    return np.concatenate([readings[:half], other[half:]])


def changed(swung: Stretch, angle: Callable[[Array], Array], velocity: Callable[[Array], Array]) -> Stretch:
    return swung._replace(readings=np.stack([angle(swung.readings[:, 0]), velocity(swung.readings[:, 1])], axis=1))


def problems(seen: Stretch, plant: Plant | None = None, rig: Rig = RIG) -> list[str]:
    return signal_problems(rig, [seen], sensor_pairs(plant or Pendulum(), rig, [seen]))


def same(readings: Array) -> Array:
    return readings


def test_honest_signals_agree(swung: Stretch) -> None:
    assert problems(swung) == []
    assert significant_defects(Pendulum(), RIG, [swung]) == []
    (pair,) = sensor_pairs(Pendulum(), RIG, [swung])
    assert pair.overall is not None
    assert pair.overall.rate.low < 1.0 < pair.overall.rate.high
    assert pair.overall.rate.high - pair.overall.rate.low < 0.03
    assert abs(pair.overall.lag_s.value) < 0.05 * PERIOD_S
    assert significant_errors(RIG, [pair], PERIOD_S) == {}


@pytest.mark.parametrize("noise", [0.001, 0.005])
@pytest.mark.parametrize("seed", range(4))
def test_rest_and_fast_motion_are_not_contradictions(noise: float, seed: int) -> None:
    """In a gentle recording some quarters hardly move, or move so fast that displacements cancel."""
    rng = np.random.default_rng(seed)

    def gentle(k: int) -> tuple[float, ...]:
        t = max(0.0, k * PERIOD_S - 2.0)
        return (0.45 * float(np.sin(2 * np.pi * t * (0.3 + 0.15 * t))),)

    plant = Pendulum(inertia="hardware", dry_friction=rng.uniform(0.4, 1.5), dead_band=rng.uniform(0.03, 0.15))
    recording = record(TwinOptions(plant=plant, sensor_noise=noise), 900, gentle)
    assert significant_defects(Pendulum(inertia="hardware"), RIG, [recording]) == []


@pytest.mark.parametrize(
    ("angle", "velocity", "message_pattern"),
    [
        (same, lambda v: 0.5 * v, r"velocity reads 0\.(5|49)\d* \(0\.49"),
        (lambda a: 0.5 * a, same, r"velocity reads (2|1\.99)\d* \(1\.9"),
        (lambda a: np.degrees(a), same, "check whether one is in degrees"),
        (same, lambda v: late(v, 1), r"velocity lags angle by (1\.0|0\.9)\d periods \("),
        (lambda a: late(a, 1), same, r"velocity lags angle by -(1\.0|0\.9)\d periods \("),
        (same, lambda v: late(v, 3), r"velocity lags angle by .* periods \(.*; limit 0\.5\)"),
        (same, lambda v: v + 1.0, r"rad/s at rest \(at most 0\.6\)"),
        (same, lambda v: v + np.linspace(0.0, 2.0, len(v)), r"rad/s at rest \(at most 0\.6\)"),
        (same, lambda v: second_half(v, -v), "velocity changes with respect to angle in quarter"),
        (same, lambda v: 0.0 * v, "velocity is stuck while angle moves"),
        (lambda a: 0.0 * a, same, "angle is stuck while velocity moves"),
        (same, lambda v: second_half(v, 0.0 * v + 1.0), "velocity is stuck in quarter 3 of the recording"),
        (lambda a: second_half(a, 0.0 * a), same, "angle is stuck in quarter 3 of the recording"),
        (same, lambda v: np.round(v / 1.3) * 1.3, "velocity reads in steps of 1.3 rad/s"),
        (lambda a: np.round(a / 0.1) * 0.1, same, "angle reads in steps of 0.0997 rad"),
    ],
)
def test_contradictions_are_named(
    swung: Stretch, angle: Callable[[Array], Array], velocity: Callable[[Array], Array], message_pattern: str
) -> None:
    assert any(re.search(message_pattern, line) for line in problems(changed(swung, angle, velocity)))


def test_swapped_sensors_are_named(swung: Stretch) -> None:
    assert problems(swung._replace(readings=swung.readings[:, ::-1])) == [
        "velocity and angle are swapped: exchange their wires"
    ]


def test_a_reversed_velocity_is_left_to_the_signs(swung: Stretch) -> None:
    assert problems(changed(swung, same, lambda v: -v)) == []


def test_small_errors_are_estimated(swung: Stretch) -> None:
    (pair,) = sensor_pairs(Pendulum(), RIG, [changed(swung, same, lambda v: 1.03 * (0.6 * v + 0.4 * late(v, 1)) + 0.3)])
    found = significant_errors(RIG, [pair], PERIOD_S)
    assert found["scale_velocity"] == pytest.approx(1.03, abs=0.01)
    assert found["lag_velocity"] == pytest.approx(0.4 * PERIOD_S, abs=0.05 * PERIOD_S)
    assert found["zero_velocity"] == pytest.approx(0.3, abs=0.02)
    assert problems(changed(swung, same, lambda v: 1.03 * (0.6 * v + 0.4 * late(v, 1)) + 0.3)) == []


def test_a_velocity_without_a_sensor_has_no_pair(swung: Stretch) -> None:
    blind = Rig(name="blind", sensors=RIG.sensors[:1], actuators=RIG.actuators, observations=RIG.observations[:1])
    assert sensor_pairs(Pendulum(), blind, [swung._replace(readings=swung.readings[:, :1])]) == []


@pytest.mark.parametrize("plant", [Pendulum(), Magman(), Spring()])
def test_pairs_follow_from_a_plants_equations(plant: Plant) -> None:
    place, velocity = plant.state_names
    sensors = tuple(type(RIG.sensors[0])(name=n, unit="", resolution=1e-4) for n in (velocity, place))
    rig = Rig(name="turned", sensors=sensors, actuators=RIG.actuators, observations=())
    seen = Stretch(PERIOD_S, np.zeros((60, 2)), np.zeros((59, 1)), np.zeros((59, 1)), np.zeros(59))
    (pair,) = sensor_pairs(plant, rig, [seen])
    assert (pair.position, pair.velocity) == (1, 0)
