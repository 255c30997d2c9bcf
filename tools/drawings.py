"""Built-in drawings of rotating rigs, the phase plane and bars, and the choice of a drawing for a rig."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from onrig.runtime import registry
from onrig.runtime.config.registered import build_registered
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.fallback import Hold
from onrig.runtime.safety.plant_box import Sketch
from onrig.runtime.view.drawing import Drawing, DrawingData, Point, Scene, Shape, ViewOptions, signal_of
from onrig.sim.twin.options import TwinOptions
from onrig.tools.drawing_parts import (
    TRAIL_DURATION_S,
    Goal,
    box,
    dial,
    goal_of,
    radians_per_unit,
    ring,
    span_of,
    target_translation,
    text_at,
)

_PHASE_TRAIL_DURATION_S: Final = 8.0
_PHASE_HALF_WIDTH: Final = 1.7
"""Half-width of a phase plane with a half-height of 1."""


class Pendulum(Drawing, frozen=True, tag="pendulum"):
    """Drawing of an arm that hangs down at 0, with its actuator below."""

    angle: str
    actuator: str
    velocity: str | None = None

    def scene(self, config: RunConfig) -> Scene:
        """Return the dial, the target on it, and the arm."""
        turn = radians_per_unit(config, self.angle)
        rotation: dict[str, Any] = {"turned_by": self.angle, "turn": turn}
        return Scene(
            (-1.16, -1.16),
            (1.16, 1.16),
            (
                *dial(),
                *_dial_mark(config, self.angle, turn, (0.0, -1.0)),
                Shape(form="line", points=((0.0, 0.0), (0.0, -1.0)), width=5.0, **rotation),
                Shape(form="circle", points=((0.0, 0.0),), radius=0.065),
                Shape(
                    form="circle",
                    points=((0.0, -1.0),),
                    radius=0.1,
                    colour="accent",
                    trail_s=TRAIL_DURATION_S,
                    **rotation,
                ),
            ),
        )


class Wheel(Drawing, frozen=True, tag="wheel"):
    """Drawing of a motor shaft: a disc with a mark that points to the right at angle 0."""

    angle: str

    def scene(self, config: RunConfig) -> Scene:
        """Return the disc, its spokes, and the target of the mark."""
        turn = radians_per_unit(config, self.angle)
        rotation: dict[str, Any] = {"turned_by": self.angle, "turn": turn}
        spokes = [(0.62 * math.cos(k), 0.62 * math.sin(k)) for k in (math.tau / 3, 2 * math.tau / 3)]
        return Scene(
            (-1.16, -1.16),
            (1.16, 1.16),
            (
                *dial(),
                *_dial_mark(config, self.angle, turn, (1.0, 0.0)),
                Shape(form="circle", points=((0.0, 0.0),), radius=0.72, colour="soft", outlined=True, width=5.0),
                *(Shape(form="line", points=((0.0, 0.0), p), colour="soft", **rotation) for p in spokes),
                Shape(form="line", points=((0.0, 0.0), (1.0, 0.0)), width=5.0, **rotation),
                Shape(form="circle", points=((0.0, 0.0),), radius=0.1),
                Shape(
                    form="circle",
                    points=((1.0, 0.0),),
                    radius=0.09,
                    colour="accent",
                    trail_s=TRAIL_DURATION_S,
                    **rotation,
                ),
            ),
        )


def _dial_mark(config: RunConfig, angle: str, turn: float, zero_point: Point) -> Iterator[Shape]:
    """Draw a mark at the target of an angle on a circle; angle 0 is at the point ``zero_point``."""
    goal = goal_of(config, angle)
    if goal is None:
        return
    if goal.target is not None:
        yield ring(zero_point, 0.11, turned_by=goal.target, turn=turn)
        return
    c, s = math.cos(turn * goal.value), math.sin(turn * goal.value)
    x, y = c * zero_point[0] - s * zero_point[1], s * zero_point[0] + c * zero_point[1]
    yield ring((x, y), 0.11)
    yield text_at((x + math.copysign(0.48, x), y + 0.04), "target", "good")


class Phase(Drawing, frozen=True, tag="phase"):
    """Drawing of the phase plane of two signals, with the trail of the last few seconds."""

    x: str
    y: str

    def scene(self, config: RunConfig) -> Scene:
        """Return both axes, the target, and the state."""
        (left, right), (bottom, top) = span_of(config, self.x), span_of(config, self.y)
        x_scale, y_scale = 2 * _PHASE_HALF_WIDTH / (right - left), 2 / (top - bottom)
        goals = [goal_of(config, name) for name in (self.x, self.y)]
        goal_x, goal_y = (goal or Goal() for goal in goals)
        x_lines = [(_PHASE_HALF_WIDTH * (2 * (v - left) / (right - left) - 1)) for v in (0.0, goal_x.value)]
        y_lines = [2 * (v - bottom) / (top - bottom) - 1 for v in (0.0, goal_y.value)]
        axes = [((x_lines[0], -1.0), (x_lines[0], 1.0))] * (left < 0 < right) + [
            ((-_PHASE_HALF_WIDTH, y_lines[0]), (_PHASE_HALF_WIDTH, y_lines[0]))
        ] * (bottom < 0 < top)
        units = {name: signal_of(config, name).unit for name in (self.x, self.y)}
        translation = {**target_translation(goal_x, (x_scale, 0.0)), **target_translation(goal_y, (0.0, y_scale))}
        return Scene(
            (-_PHASE_HALF_WIDTH - 0.1, -1.25),
            (_PHASE_HALF_WIDTH + 0.1, 1.25),
            (
                Shape(
                    form="polygon",
                    points=box(0.0, _PHASE_HALF_WIDTH, -1.0, 1.0),
                    colour="line",
                    outlined=True,
                    width=1.0,
                ),
                *(Shape(form="line", points=axis, colour="line", width=1.0) for axis in axes),
                *((ring((x_lines[1], y_lines[1]), 0.08, moved_by=translation),) if any(goals) else ()),
                text_at((0.0, 1.13), _axis(self.y, units[self.y], bottom, top), "soft"),
                text_at((0.0, -1.13), _axis(self.x, units[self.x], left, right), "soft"),
                Shape(
                    form="circle",
                    points=((-0.5 * x_scale * (left + right), -0.5 * y_scale * (bottom + top)),),
                    radius=0.05,
                    colour="accent",
                    moved_by={self.x: (x_scale, 0.0), self.y: (0.0, y_scale)},
                    trail_s=_PHASE_TRAIL_DURATION_S,
                ),
            ),
        )


def _axis(name: str, unit: str, low: float, high: float) -> str:
    return f"{name} in {unit}, {low:.3g} to {high:.3g}".replace("-", "−")


class Bars(Drawing, frozen=True, tag="bars"):
    """Drawing of each observation and each actuator as a bar."""

    def page_data(self, config: RunConfig) -> DrawingData:
        """Return only the kind of drawing, since bars need no other data."""
        return {"kind": "bars"}


def drawing_of(config: RunConfig) -> DrawingData:
    """Return a rig's drawing data for pages and terminals, which do not change during a run."""
    return chosen_drawing(config).page_data(config)


def chosen_drawing(config: RunConfig) -> Drawing:
    """Return the configured drawing, or else the most informative one that the configuration permits."""
    options = msgspec.convert(config.view or {}, ViewOptions)
    if options.drawing is not None:
        return options.drawing
    drawing: Drawing = build_registered(registry.DRAWINGS, next(_sketches(config), {"kind": "bars"}))
    return drawing


def _sketches(config: RunConfig) -> Iterator[Sketch]:
    """Yield candidate drawings, the most reliable first."""
    rig, fallback, reset = config.rig, config.limits.fallback, config.task.reset
    if config.device.twin is not None:
        sketch = msgspec.convert(config.device.twin, TwinOptions).plant.sketch(rig)
        if sketch is not None:
            yield sketch
    if config.limits.predicted is not None:
        yield config.limits.predicted.sketch()
    if isinstance(fallback, Hold):
        yield {"kind": "track", "position": fallback.position, "magnets": fallback.magnets}
    position = getattr(reset, "position", None)
    if isinstance(getattr(reset, "coils", None), dict) and position in [o.name for o in rig.signals]:
        yield {"kind": "track", "position": position, "magnets": getattr(reset, "coils", {})}
