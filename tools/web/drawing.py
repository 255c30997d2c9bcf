"""How a rig is drawn: as its plants, its fallback or its reset say, else as bars."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.fallback import Damp, Hold
from onrig.runtime.safety.plant_box import Sketch
from onrig.sim.twin.options import TwinOptions

Drawing = dict[str, object]


def drawing_of(config: RunConfig) -> Drawing:
    """Describe the picture: ``kind`` (pendulum, track, bars) and indices into observations and actuators."""
    for sketch in _sketches(config):
        if sketch["kind"] == "pendulum":
            return _pendulum(config, sketch)
        if sketch["kind"] == "track":
            return _track(config, sketch)
    return {"kind": "bars"}


def _sketches(config: RunConfig) -> Iterator[Sketch]:
    """What says how the rig looks, the surest first: at last, an angle that wraps is a pendulum."""
    rig, fallback, reset = config.rig, config.limits.fallback, config.task.reset
    if config.limits.predicted is not None:
        yield config.limits.predicted.sketch()
    if isinstance(fallback, Hold):
        yield {"kind": "track", "position": fallback.position, "magnets": fallback.magnets}
    position = getattr(reset, "position", None)
    if isinstance(getattr(reset, "coils", None), dict) and position in [o.name for o in rig.signals]:
        yield {"kind": "track", "position": position, "magnets": getattr(reset, "coils", {})}
    if config.device.twin is not None:
        sketch = msgspec.convert(config.device.twin, TwinOptions).plant.sketch(rig)
        if sketch is not None:
            yield sketch
    wraps = {s.name for s in rig.sensors if s.wrap}
    angles = [o.name for o in rig.observations if (o.sensor or o.name) in wraps and not o.derivative_of]
    if len(angles) == len(rig.actuators) == 1:
        velocity = fallback.observation if isinstance(fallback, Damp) else None
        yield {"kind": "pendulum", "angle": angles[0], "velocity": velocity, "actuator": rig.actuators[0].name}


def _pendulum(config: RunConfig, sketch: Sketch) -> Drawing:
    names = [o.name for o in config.rig.signals]
    angle, velocity = str(sketch["angle"]), sketch["velocity"]
    return {
        "kind": "pendulum",
        "angle": names.index(angle),
        "velocity": None if velocity is None else names.index(str(velocity)),
        "actuator": [a.name for a in config.rig.actuators].index(str(sketch["actuator"])),
        "target": config.task.reward.target.get(angle),
    }


def _track(config: RunConfig, sketch: Sketch) -> Drawing:
    position = [o.name for o in config.rig.signals].index(str(sketch["position"]))
    axis, wall = config.rig.signals[position], config.task.reward.wall
    walled = wall is not None and wall.observation == axis.name
    low, high = (wall.low, wall.high) if wall is not None and walled else (axis.low, axis.high)
    actuators = [a.name for a in config.rig.actuators]
    magnets = msgspec.convert(sketch["magnets"], dict[str, float])
    return {
        "kind": "track",
        "position": position,
        "low": low,
        "high": high,
        "walls": walled,
        "target": config.task.reward.target.get(axis.name),
        "magnets": [{"at": at, "actuator": actuators.index(name)} for name, at in magnets.items() if name in actuators],
    }
