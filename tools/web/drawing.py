"""How a rig is drawn: as what its plants, its fallback or its reset say it is, else as bars."""

from __future__ import annotations

import msgspec

from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.fallback import Damp, Hold
from onrig.runtime.safety.magman import MagmanBox
from onrig.runtime.safety.pendulum import PendulumBox
from onrig.sim.plants.magman import Magman
from onrig.sim.twin.options import TwinOptions

Drawing = dict[str, object]


def drawing_of(config: RunConfig) -> Drawing:
    """Describe the picture: ``kind`` (pendulum, magman, bars) and indices into observations and actuators.

    Where no plant is stated, an angle that wraps is a pendulum, and coils with a place are a magman.
    """
    names = [o.name for o in config.rig.signals]
    actuators = [a.name for a in config.rig.actuators]
    plants = config.limits.predicted
    if isinstance(plants, PendulumBox):
        return _pendulum(config, names.index(plants.angle), names.index(plants.velocity))
    if isinstance(plants, MagmanBox):
        return _magman(config, names.index(plants.position), plants.magnets)
    fallback, reset = config.limits.fallback, config.task.reset
    if isinstance(fallback, Hold):
        return _magman(config, names.index(fallback.position), fallback.magnets)
    coils = getattr(reset, "coils", None)
    position = getattr(reset, "position", None)
    if isinstance(coils, dict) and position in names:
        return _magman(config, names.index(position), coils)
    if config.device.twin is not None:
        plant = msgspec.convert(config.device.twin, TwinOptions).plant
        if isinstance(plant, Magman) and len(actuators) == plant.n_actions and "position" in names:
            magnets = {a: plant.first_magnet + j * plant.magnet_spacing for j, a in enumerate(actuators)}
            return _magman(config, names.index("position"), magnets)
    wraps = {s.name for s in config.rig.sensors if s.wrap}
    angles = [i for i, o in enumerate(config.rig.observations) if (o.sensor or o.name) in wraps and not o.derivative_of]
    if len(angles) == 1 and len(actuators) == 1:
        braked = names.index(fallback.observation) if isinstance(fallback, Damp) else None
        return _pendulum(config, angles[0], braked)
    return {"kind": "bars"}


def _pendulum(config: RunConfig, angle: int, velocity: int | None) -> Drawing:
    target = config.task.reward.target.get(config.rig.signals[angle].name)
    return {"kind": "pendulum", "angle": angle, "velocity": velocity, "actuator": 0, "target": target}


def _magman(config: RunConfig, position: int, magnets: dict[str, float]) -> Drawing:
    axis = config.rig.signals[position]
    wall = config.task.reward.wall
    walled = wall is not None and wall.observation == axis.name
    low, high = (wall.low, wall.high) if wall is not None and walled else (axis.low, axis.high)
    actuators = [a.name for a in config.rig.actuators]
    return {
        "kind": "magman",
        "position": position,
        "low": low,
        "high": high,
        "walls": walled,
        "target": config.task.reward.target.get(axis.name),
        "magnets": [{"at": at, "actuator": actuators.index(name)} for name, at in magnets.items() if name in actuators],
    }
