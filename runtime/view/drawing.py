"""Drawings of a rig for a page and a terminal, registered by their kind.

A drawing is a frozen struct whose fields name the rig's signals.  One from outside composes a :class:`Scene` of lines,
polygons and circles that signals turn and move; pages and terminals draw it without knowing its kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from onrig.runtime.config.registered import WithRegistered, registered
from onrig.runtime.registry import DRAWINGS
from onrig.runtime.run_config import RunConfig

Point = tuple[float, float]
"""x to the right, y upwards, in a unit of the drawing's own."""
Picture = dict[str, object]
"""What a page draws: ``kind`` (pendulum, track, bars, scene), and indices into observations and actuators."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a scene; it is turned first, and then moved."""

    form: Literal["line", "polygon", "circle"]
    points: tuple[Point, ...]
    """Of a circle its centre."""
    radius: float = 0.0
    """Of a circle."""
    colour: Literal["ink", "accent", "soft", "good"] = "ink"
    turned_by: str | None = None
    """Signal that turns it about ``about``, in rad, counter-clockwise."""
    about: Point = (0.0, 0.0)
    moved_by: dict[str, Point] = {}
    """Shift for each unit of a signal, by the signal's name."""


class Scene(msgspec.Struct, frozen=True):
    """Shapes, and the rectangle that is shown of them."""

    low: Point
    high: Point
    shapes: tuple[Shape, ...]


class Drawing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """How a rig is drawn; a subclass sets ``tag``, and overrides ``scene``."""

    def scene(self, config: RunConfig) -> Scene:
        """The rig's shapes; signals are observations and actuators, by name."""
        raise NotImplementedError

    def picture(self, config: RunConfig) -> Picture:
        """What a page draws; raises ValueError for a signal that the rig does not have."""
        scene = self.scene(config)
        signals = [*(o.name for o in config.rig.signals), *(a.name for a in config.rig.actuators)]
        n = len(config.rig.signals)

        def place(name: str) -> tuple[str, int]:
            if name not in signals:
                raise ValueError(f"rig '{config.rig.name}' has no signal '{name}' to draw")
            at = signals.index(name)
            return ("observation", at) if at < n else ("applied", at - n)

        shapes = [
            {
                **msgspec.to_builtins(shape),
                "turned_by": None if shape.turned_by is None else place(shape.turned_by),
                "moved_by": [(*place(name), shift) for name, shift in shape.moved_by.items()],
            }
            for shape in scene.shapes
        ]
        return {"kind": "scene", "low": scene.low, "high": scene.high, "shapes": shapes}


if TYPE_CHECKING:
    _Chosen = Drawing
else:
    _Chosen = Annotated[Any, registered(DRAWINGS)]


class ViewOptions(WithRegistered, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How pages and terminals show the run."""

    drawing: _Chosen | None = None
    """Drawing of the rig; without one the plants of twin and shield say what it looks like."""
