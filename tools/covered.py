"""Whether a twin's plant is one of those the shield answers for (``limits.predicted``)."""

from __future__ import annotations

from collections.abc import Iterator

from onrig.runtime.safety.magman import MagmanBox
from onrig.runtime.safety.pendulum import PendulumBox
from onrig.runtime.safety.plant_box import PlantBox
from onrig.sim.plants import Plant
from onrig.sim.plants.magman import Magman
from onrig.sim.plants.pendulum import Pendulum

_ROUNDING = 1e-9


def uncovered(plant: Plant, plants: PlantBox) -> Iterator[str]:
    """Say which lumped parameters of ``plant`` lie outside the box around ``plants`` (ARCHITECTURE §5); nothing when
    all lie inside."""
    reach = plants.spread + _ROUNDING
    for name, nominal, actual in _parameters(plant, plants):
        low, high = nominal * (1.0 - plants.spread), nominal * (1.0 + plants.spread)
        if abs(actual - nominal) > reach * nominal:
            yield f"the twin's plant has {name} {actual:.6g}, the shield answers for {low:.6g} to {high:.6g}"


def _parameters(plant: Plant, plants: PlantBox) -> list[tuple[str, float, float]]:
    """(name, in the configuration, of the plant); plants of another kind have none in common."""
    if isinstance(plant, Pendulum) and isinstance(plants, PendulumBox):
        inertia, K, R = plant.inertia_kg_m2, plant.torque_constant, plant.resistance
        return [
            ("gravity_per_s2", plants.gravity_per_s2, plant.mass * plant.gravity * plant.length / inertia),
            ("damping_per_s", plants.damping_per_s, (plant.damping + K * K / R) / inertia),
            ("gain_per_v_s2", plants.gain_per_v_s2, K / (R * inertia)),
        ]
    if isinstance(plant, Magman) and isinstance(plants, MagmanBox):
        return [
            ("pull_m6_per_a2_s2", plants.pull_m6_per_a2_s2, plant.c1 / plant.mass),
            ("friction_per_s", plants.friction_per_s, plant.friction / plant.mass),
        ]
    return []
