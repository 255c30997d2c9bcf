"""Simulated windows equal the twin's trajectories, to the last digit of a sensor."""

from __future__ import annotations

import numpy as np
import pytest

from onrig.hw.rig import Rig
from onrig.sim.identification.recording import HISTORY, windows_of
from onrig.sim.identification.trajectories import delayed_commands, simulate
from onrig.sim.plants import Magman, Pendulum, Plant
from onrig.sim.twin.options import TwinOptions
from tests.sim.identification.recorded import PERIOD_S, chirped, record
from tests.sim.twin.bench import RIG

FINE = Rig(
    name="fine",
    sensors=tuple(type(s)(name=s.name, unit=s.unit, resolution=1e-9) for s in RIG.sensors),
    actuators=RIG.actuators,
    observations=RIG.observations,
)


@pytest.mark.parametrize("late_us", [None, 3000, 14000])
@pytest.mark.parametrize("delay_s", [0.0, 0.004, 0.01, 0.02, 0.047])
def test_trajectories_equal_the_twins(delay_s: float, late_us: int | None) -> None:
    plant = Pendulum().varied({"dead_band": 0.2, **({"delay_s": delay_s} if delay_s else {})})
    recorded = record(TwinOptions(plant=plant, substeps=4), 60, chirped(), FINE, late_us)
    windows = windows_of([recorded], 20)
    starts = windows.readings[None, :, 0]
    states = simulate(plant, starts, windows, np.array([delay_s]), 4)
    np.testing.assert_allclose(states[0], windows.readings, atol=2e-6)


def test_every_period_is_filled_whatever_the_delays() -> None:
    rng = np.random.default_rng(3)
    recorded = record(TwinOptions(plant=Pendulum()), 40, chirped())
    windows = windows_of([recorded], 10)._replace(tau_s=rng.uniform(0, PERIOD_S, (3, HISTORY + 10)))
    pieces = delayed_commands(windows, rng.uniform(0, 4 * PERIOD_S, 7))
    total = sum(pieces.durations_s)
    np.testing.assert_allclose(total, PERIOD_S)
    assert min(float(np.min(d)) for d in pieces.durations_s) >= 0


@pytest.mark.parametrize("plant", [Pendulum(dry_friction=0.5), Magman(mass=0.04)])
def test_batched_variations_equal_each_one_alone(plant: Plant) -> None:
    n_actions = plant.n_actions
    recorded = record(TwinOptions(plant=Pendulum()), 40, chirped())
    windows = windows_of([recorded], 10)
    windows = windows._replace(
        u_start=np.repeat(windows.u_start, n_actions, axis=2), u_end=np.repeat(windows.u_end, n_actions, axis=2)
    )
    starts = np.random.default_rng(0).normal(0.0, 0.01, (2, windows.size, 2))
    delays = np.array([0.008, 0.009])
    factors = np.array([[1.0], [1.2]])
    varied = plant.with_identifiable({name: value * factors for name, value in plant.identifiable.items()})
    together = simulate(varied, starts, windows, delays, 2)
    for v in range(2):
        alone = plant.with_identifiable({n: value * factors[v, 0] for n, value in plant.identifiable.items()})
        single = simulate(alone, starts[v : v + 1], windows, delays[v : v + 1], 2)
        np.testing.assert_allclose(single[0], together[v], rtol=1e-6, atol=1e-9)
