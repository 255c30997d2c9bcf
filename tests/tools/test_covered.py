from __future__ import annotations

import msgspec
import pytest

from onrig.runtime.config.problem import ConfigError
from onrig.sim.twin.options import TwinOptions
from onrig.tools.covered import uncovered
from onrig.tools.load import load, load_for_rig


@pytest.mark.parametrize("name", ["pendulum", "pendulum-hardware", "magman"])
def test_shipped_twins_are_plants_the_shield_answers_for(name: str) -> None:
    config = load(name)
    assert config.limits.predicted is not None
    plant = msgspec.convert(config.device.twin, TwinOptions).plant
    assert list(uncovered(plant, config.limits.predicted)) == []


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("pendulum", "device.twin.plant.inertia=hardware", "gravity_per_s2"),
        ("pendulum", "device.twin.plant.damping=1.2e-4", "damping_per_s"),
        ("magman", "device.twin.plant.mass=0.02", "friction_per_s"),
    ],
)
def test_another_plant_is_refused_where_it_could_break_the_promise(name: str, changed: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"{told}.*limits.predicted"):
        load_for_rig(name, [changed])


def test_a_plant_within_the_spread_passes_and_so_does_a_shield_that_promises_nothing() -> None:
    load_for_rig("pendulum", ["device.twin.plant.mass=0.06"])
    load_for_rig("pendulum", ["device.twin.plant.inertia=hardware", "limits.predicted=null"])
