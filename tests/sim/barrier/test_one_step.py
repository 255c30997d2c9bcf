"""One-step residuals: plants covered by a promise explain every measurement, others do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onrig.runtime.run_config import RunConfig
from onrig.sim.barrier.one_step import OneStepCheck, Steps
from onrig.sim.plants.integrate import Array, step
from onrig.sim.plants.plant import Plant
from onrig.sim.plants.registry import plant_type_for
from onrig.tools.load import load
from tests.sim.barrier.beam import beam, with_table

L = 400


def steps_of_plant(config: RunConfig, plant: Plant, low: list[float], high: list[float]) -> Steps:
    """Steps from random states, read in counts."""
    rng, rig = np.random.default_rng(0), config.rig
    state = rng.uniform(np.array(low)[:, None], np.array(high)[:, None], (len(low), L))
    command = np.stack([rng.uniform(a.low, a.high, L) for a in rig.actuators])
    counts = np.array([s.resolution for s in rig.sensors])[:, None]
    after = np.stack(step(plant, tuple(state), tuple(command), config.period_us * 1e-6, 8))

    def read(values: Array) -> Array:
        return np.asarray(np.rint(values / counts) * counts)

    return Steps(read(state), command, command, np.zeros(L), read(after))


@pytest.mark.parametrize("name", ["pendulum", "pendulum-hardware", "magman"])
def test_every_corner_of_a_box_is_explained_and_a_stronger_plant_is_not(name: str) -> None:
    config = load(name)
    box = config.limits.predicted
    assert box is not None
    nominal = plant_type_for(box).of_box(box, config.rig)
    names = [o.name for o in config.rig.observations]
    place, velocity = names.index(box.place), names.index(box.velocity)
    low, high = [0.0, 0.0], [0.0, 0.0]
    o, e = config.rig.observations[place], config.limits.envelope[box.velocity]
    low[place], high[place], low[velocity], high[velocity] = 0.8 * o.low, 0.8 * o.high, e.low, e.high
    check = OneStepCheck(config, box)
    for share in (-1.0, 0.0, 1.0):
        plant = nominal.with_lumped({n: v * (1.0 + share * box.spread) for n, v in box.nominal.items()})
        assert not check.unexplained_steps(steps_of_plant(config, plant, low, high)).any()
    slow = nominal.varied({"dry_friction": 5.0})
    assert not check.unexplained_steps(steps_of_plant(config, slow, low, high)).any(), "friction only takes energy"
    strong = nominal.with_lumped({n: v * (2.5 if "damping" not in n else 1.0) for n, v in box.nominal.items()})
    assert check.unexplained_steps(steps_of_plant(config, strong, low, high)).mean() > 0.1


@pytest.mark.parametrize(("factor", "beyond"), [(0.91, False), (1.0, False), (1.09, False), (1.43, True), (0.63, True)])
def test_a_sampled_promise_is_two_sided(bench: Path, factor: float, beyond: bool) -> None:
    config, box = with_table(bench)
    check = OneStepCheck(config, box)
    plant = check._nominal.varied({"B_velocity_tilt": 7.0 * factor})
    share = check.unexplained_steps(steps_of_plant(config, plant, [-0.3, -0.5], [0.3, 0.5])).mean()
    assert share > 0.5 if beyond else share == 0.0


def test_a_switch_within_the_period_is_taken_into_account(bench: Path) -> None:
    config, box = beam(bench)
    check = OneStepCheck(config, box)
    zero, full = np.zeros((1, 1)), np.full((1, 1), 0.2)
    start = np.zeros((2, 1))
    half = 7.0 * 0.2 * 0.01  # the tilt acts for half a period
    after = np.array([[0.5 * half * 0.01], [half]])
    assert not check.unexplained_steps(Steps(start, zero, full, np.array([0.01]), after))[0]
    assert check.unexplained_steps(Steps(start, zero, full, np.array([0.0]), after))[0]
