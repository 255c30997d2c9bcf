"""Drawings of a rig for a page and a terminal, registered by their kind.

A drawing is a frozen struct whose fields name the rig's signals.  A foreign drawing composes a :class:`Scene` of lines,
polygons and circles that signals rotate and translate; pages and terminals draw it without knowing its kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from onrig.runtime.config.registered import WithRegistered, registered
from onrig.runtime.registry import DRAWINGS
from onrig.runtime.run_config import RunConfig

Point = tuple[float, float]
"""(x, y), x to the right, y upwards, in a unit chosen by the drawing."""
Picture = dict[str, object]
"""Data of a page's drawing: ``kind`` (pendulum, track, bars, scene), and indices into observations and actuators."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a scene; rotated first, then translated."""

    form: Literal["line", "polygon", "circle"]
    points: tuple[Point, ...]
    """Vertices; for a circle its centre."""
    radius: float = 0.0
    """Radius of a circle."""
    colour: Literal["ink", "accent", "soft", "good"] = "ink"
    turned_by: str | None = None
    """Signal (rad) that rotates it about ``about``, counter-clockwise."""
    about: Point = (0.0, 0.0)
    moved_by: dict[str, Point] = {}
    """Translation per unit of a signal, by the signal's name."""


class Scene(msgspec.Struct, frozen=True):
    """Shapes, and the visible rectangle."""

    low: Point
    high: Point
    shapes: tuple[Shape, ...]


class Drawing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Drawing of a rig; a subclass sets ``tag`` and overrides ``scene``."""

    def scene(self, config: RunConfig) -> Scene:
        """Return the rig's shapes; signals are observations and actuators, by name."""
        raise NotImplementedError

    def picture(self, config: RunConfig) -> Picture:
        """Return the data of a page's drawing; raises ValueError for a missing signal."""
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
    """Section ``view``: display of the run in pages and terminals."""

    drawing: _Chosen | None = None
    """Drawing of the rig; default: chosen by the plants of twin and shield."""
