"""Built-in drawings of rigs (pendulum, track, bars), and the choice for a rig."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from onrig.runtime import registry
from onrig.runtime.config.registered import chosen
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.fallback import Damp, Hold
from onrig.runtime.safety.plant_box import Sketch
from onrig.runtime.view.drawing import Drawing, Picture, ViewOptions
from onrig.sim.twin.options import TwinOptions


class Pendulum(Drawing, frozen=True, tag="pendulum"):
    """Drawing of an arm that hangs down at 0, with its actuator below."""

    angle: str
    actuator: str
    velocity: str | None = None

    def picture(self, config: RunConfig) -> Picture:
        """Indices of its signals, and the target's angle."""
        names = [o.name for o in config.rig.signals]
        return {
            "kind": "pendulum",
            "angle": names.index(self.angle),
            "velocity": None if self.velocity is None else names.index(self.velocity),
            "actuator": [a.name for a in config.rig.actuators].index(self.actuator),
            "target": config.task.reward.target.get(self.angle),
        }


class Track(Drawing, frozen=True, tag="track"):
    """Drawing of a ball on a track above magnets."""

    position: str
    magnets: Mapping[str, float] = {}
    """Positions in m, by actuator."""

    def picture(self, config: RunConfig) -> Picture:
        """Index and range of the position, walls, target and magnets."""
        position = [o.name for o in config.rig.signals].index(self.position)
        axis, wall = config.rig.signals[position], config.task.reward.wall
        walled = wall is not None and wall.observation == axis.name
        low, high = (wall.low, wall.high) if wall is not None and walled else (axis.low, axis.high)
        actuators = [a.name for a in config.rig.actuators]
        magnets = [(at, actuators.index(name)) for name, at in self.magnets.items() if name in actuators]
        return {
            "kind": "track",
            "position": position,
            "low": low,
            "high": high,
            "walls": walled,
            "target": config.task.reward.target.get(axis.name),
            "magnets": [{"at": at, "actuator": actuator} for at, actuator in magnets],
        }


class Bars(Drawing, frozen=True, tag="bars"):
    """Each observation and each actuator as a bar."""

    def picture(self, config: RunConfig) -> Picture:
        """Only the kind."""
        return {"kind": "bars"}


def drawing_of(config: RunConfig) -> Picture:
    """Return the picture of a rig for pages and terminals; constant over a run."""
    options = msgspec.convert(config.view or {}, ViewOptions)
    if options.drawing is not None:
        return options.drawing.picture(config)
    drawing: Drawing = chosen(registry.DRAWINGS, next(_sketches(config), {"kind": "bars"}))
    return drawing.picture(config)


def _sketches(config: RunConfig) -> Iterator[Sketch]:
    """Yield candidate drawings, most reliable first; last, a single wrapped angle counts as a pendulum."""
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
    measured = [o for o in rig.observations if not o.derivative_of]
    angles = [o.name for o in measured if (o.sensor or o.name) in wraps]
    if len(angles) == len(rig.actuators) == 1 and len(rig.observations) <= 2:  # several: for example, a cart carries it
        velocity = fallback.observation if isinstance(fallback, Damp) else None
        yield {"kind": "pendulum", "angle": angles[0], "velocity": velocity, "actuator": rig.actuators[0].name}
