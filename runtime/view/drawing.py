"""Drawings of a rig for a page and a terminal, registered by their kind.

A drawing is a frozen struct whose fields name the rig's signals.  It composes a :class:`Scene` of lines, polygons,
circles and texts, which signals translate, rotate, scale and light; pages and terminals draw it without knowing its
kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from onrig.hw.rig import Actuator, Observation
from onrig.runtime.config.registered import WithRegistered, registered
from onrig.runtime.registry import DRAWINGS
from onrig.runtime.run_config import RunConfig

Point = tuple[float, float]
"""(x, y), x to the right, y upwards, in a unit chosen by the drawing."""
DrawingData = dict[str, object]
"""Data of a page's drawing: its ``kind``, and the shapes of its scene with indices of observations and actuators."""


class Motion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rotation about a point, then a translation, per unit of a signal."""

    by: str
    """Name of the signal."""
    turn: float = 0.0
    """Angle, rad; counter-clockwise if positive."""
    about: Point = (0.0, 0.0)
    shift: Point = (0.0, 0.0)


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of a scene. It is translated by ``slid_by``, rotated, translated by ``moved_by``, then moved by
    ``motions``."""

    form: Literal["line", "polygon", "circle", "text"]
    points: tuple[Point, ...]
    """Vertices; for a circle its centre, for a text the middle of its line."""
    radius: float = 0.0
    """Radius of a circle."""
    text: str = ""
    value_of: str | None = None
    """Signal whose value replaces the text."""
    colour: Literal["ink", "accent", "second", "violet", "good", "soft", "line"] = "ink"
    outlined: bool = False
    """Whether to draw a polygon or circle as an outline instead of filling it."""
    dashed: bool = False
    width: float = 4.0
    """Width of lines and outlines, px."""
    slid_by: dict[str, Point] = {}
    """Translation before the rotation, per unit of a signal, keyed by the signal's name."""
    turned_by: str | None = None
    """Signal that rotates the shape about ``about``."""
    turn: float = 1.0
    """Angle per unit of that signal, rad; counter-clockwise if positive."""
    about: Point = (0.0, 0.0)
    moved_by: dict[str, Point] = {}
    """Translation after the rotation, per unit of a signal, keyed by the signal's name."""
    motions: tuple[Motion, ...] = ()
    """Further motions in their order, such as those of the joints between a link and the ground."""
    grown_by: str | None = None
    """Signal that scales the height from the lowest point: 0 at the low end of its range, 1 at the high end."""
    lit_by: str | None = None
    """Signal that sets the brightness: dark at the low end of its range."""
    trail_s: float = 0.0
    """Duration of the trail of the first point."""

    @property
    def every_motion(self) -> tuple[Motion, ...]:
        """All motions in their order."""
        rotations = () if self.turned_by is None else (Motion(self.turned_by, self.turn, self.about),)
        slides, shifts = (
            tuple([Motion(name, shift=shift) for name, shift in by.items()]) for by in (self.slid_by, self.moved_by)
        )
        return (*slides, *rotations, *shifts, *self.motions)


class Scene(msgspec.Struct, frozen=True):
    """Shapes, and the visible rectangle."""

    low: Point
    high: Point
    shapes: tuple[Shape, ...]


class Drawing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Drawing of a rig; a subclass sets ``tag`` and overrides ``scene``."""

    def scene(self, config: RunConfig) -> Scene:
        """Return the rig's shapes; they refer to observations and actuators by name."""
        raise NotImplementedError

    def page_data(self, config: RunConfig) -> DrawingData:
        """Return the data of a page's drawing; raises ValueError if a signal is missing."""
        scene = self.scene(config)
        signals = [*(o.name for o in config.rig.signals), *(a.name for a in config.rig.actuators)]
        n = len(config.rig.signals)

        def signal_location(name: str | None) -> tuple[str, int] | None:
            if name is None:
                return None
            signal_of(config, name)
            index = signals.index(name)
            return ("observation", index) if index < n else ("applied", index - n)

        def data(shape: Shape) -> dict[str, object]:
            fields = msgspec.to_builtins(shape)
            for field in ("slid_by", "turned_by", "turn", "about", "moved_by"):
                del fields[field]
            fields |= {field: signal_location(getattr(shape, field)) for field in ("grown_by", "lit_by", "value_of")}
            motions = [
                {**msgspec.to_builtins(motion), "by": signal_location(motion.by)} for motion in shape.every_motion
            ]
            return {**fields, "motions": motions}

        shapes = [data(shape) for shape in scene.shapes]
        return {
            "kind": type(self).__struct_config__.tag,
            "low": scene.low,
            "high": scene.high,
            "shapes": shapes,
        }


def signal_of(config: RunConfig, name: str) -> Observation | Actuator:
    """Return the observation or actuator with that name; raises ValueError if the rig has none."""
    signals: tuple[Observation | Actuator, ...] = (*config.rig.signals, *config.rig.actuators)
    match = next((s for s in signals if s.name == name), None)
    if match is None:
        raise ValueError(f"rig '{config.rig.name}' has no signal '{name}' to draw")
    return match


if TYPE_CHECKING:
    _AnyDrawing = Drawing
else:
    _AnyDrawing = Annotated[Any, registered(DRAWINGS)]


class ViewOptions(WithRegistered, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``view``: display of the run in pages and terminals."""

    drawing: _AnyDrawing | None = None
    """Drawing of the rig; by default the drawing of the twin's or the shield's plant, or bars if neither has one."""
