"""Rendering of an environment, with the drawing that the live page and the terminal use."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon
from numpy.typing import NDArray

from onrig.runtime.record import Step
from onrig.runtime.run_config import RunConfig
from onrig.runtime.view.drawing import Point, Scene, Shape, signal_of
from onrig.tools.drawings import Bars, chosen_drawing

_COLOURS: Final = {
    "ink": "#1a1a1a", "accent": "#d1495b", "second": "#2a6f97", "violet": "#7b5ea7", "good": "#3a7d44",
    "soft": "#8a8a8a", "line": "#c8c8c8",
}  # fmt: skip
_HEIGHT_IN: Final = 4.0
_DPI: Final = 100
Frame = NDArray[np.uint8]


class Screen:
    """Screen that draws the rig's state into an array or a window."""

    def __init__(self, config: RunConfig, mode: str) -> None:
        """Prepare to draw; ``mode`` is ``rgb_array``, or ``human``, which needs an interactive matplotlib backend."""
        self._config = config
        drawing = chosen_drawing(config)
        self._scene = _bars(config) if isinstance(drawing, Bars) else drawing.scene(config)
        (left, bottom), (right, top) = self._scene.low, self._scene.high
        size = (_HEIGHT_IN * (right - left) / (top - bottom), _HEIGHT_IN)
        if mode == "human":
            from matplotlib import pyplot

            self._figure: Figure = pyplot.figure(figsize=size)
            self._figure.show()
        else:
            self._figure = Figure(figsize=size, dpi=_DPI)
            FigureCanvasAgg(self._figure)
        self._is_human = mode == "human"
        self._axes = self._figure.add_axes((0.0, 0.0, 1.0, 1.0))

    def show(self, step: Step | None) -> Frame | None:
        """Draw the state of a step, and return the rendered frame (h, w, 3), or None if it is drawn in a window."""
        values = self._values(step)
        axes = self._axes
        axes.clear()
        axes.set_axis_off()
        axes.set_aspect("equal")
        axes.set_xlim(self._scene.low[0], self._scene.high[0])
        axes.set_ylim(self._scene.low[1], self._scene.high[1])
        for shape in self._scene.shapes:
            self._draw(shape, values)
        canvas: Any = self._figure.canvas
        if self._is_human:
            canvas.draw_idle()
            canvas.flush_events()
            return None
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()

    def close(self) -> None:
        """Close the window."""
        if self._is_human:
            from matplotlib import pyplot

            pyplot.close(self._figure)

    def _values(self, step: Step | None) -> dict[str, float]:
        rig = self._config.rig
        names = [*(o.name for o in rig.signals), *(a.name for a in rig.actuators)]
        numbers = (0.0,) * len(names) if step is None else (*step.observation, *step.applied)
        return dict(zip(names, numbers, strict=True))

    def _range_fraction(self, name: str, values: dict[str, float]) -> float:
        signal = signal_of(self._config, name)
        return min(max((values[name] - signal.low) / (signal.high - signal.low), 0.0), 1.0)

    def _draw(self, shape: Shape, values: dict[str, float]) -> None:
        points = shape_points(
            shape, values, None if shape.grown_by is None else self._range_fraction(shape.grown_by, values)
        )
        colour = _COLOURS[shape.colour]
        alpha = 1.0 if shape.lit_by is None else 0.2 + 0.8 * self._range_fraction(shape.lit_by, values)
        style: dict[str, Any] = {"linewidth": 0.75 * shape.width, "linestyle": "--" if shape.dashed else "-"}
        axes, is_filled = self._axes, not shape.outlined
        if shape.form == "line":
            axes.plot(*zip(*points, strict=True), color=colour, alpha=alpha, solid_capstyle="round", **style)
        elif shape.form == "text":
            text = shape.text if shape.value_of is None else f"{values[shape.value_of]:.3g}"
            axes.text(*points[0], text, color=colour, ha="center", va="center")
        elif shape.form == "circle":
            axes.add_patch(
                Circle(points[0], shape.radius, color=colour, fill=is_filled, alpha=alpha, zorder=3, **style)
            )
        else:
            axes.add_patch(Polygon(points, closed=True, color=colour, fill=is_filled, alpha=alpha, **style))


def _bars(config: RunConfig) -> Scene:
    """Return a scene with a bar for each observation and each actuator."""
    names = [s.name for s in config.rig.signals] + [a.name for a in config.rig.actuators]
    shapes: list[Shape] = []
    for i, name in enumerate(names):
        column = ((i + 0.2, 0.0), (i + 0.8, 0.0), (i + 0.8, 1.0), (i + 0.2, 1.0))
        shapes.append(Shape(form="polygon", points=column, colour="line", outlined=True, width=1.0))
        shapes.append(Shape(form="polygon", points=column, colour="second", grown_by=name))
        shapes.append(Shape(form="text", points=((i + 0.5, -0.12),), text=name))
    return Scene((0.0, -0.25), (float(len(names)), 1.1), tuple(shapes))


def shape_points(shape: Shape, values: dict[str, float], height: float | None) -> list[Point]:
    """Return the points of a shape for the signal ``values``.

    ``height`` is a factor on the shape's height, or None if the height is constant.
    """
    points = list(shape.points)
    if height is not None:
        low = min(y for _, y in points)
        points = [(x, low + height * (y - low)) for x, y in points]
    points = _translate(points, shape.slid_by, values)
    if shape.turned_by is not None:
        angle = shape.turn * values[shape.turned_by]
        c, s, (cx, cy) = math.cos(angle), math.sin(angle), shape.about
        points = [(cx + c * (x - cx) - s * (y - cy), cy + s * (x - cx) + c * (y - cy)) for x, y in points]
    return _translate(points, shape.moved_by, values)


def _translate(points: list[Point], shifts: dict[str, Point], values: dict[str, float]) -> list[Point]:
    dx = sum(values[name] * shift[0] for name, shift in shifts.items())
    dy = sum(values[name] * shift[1] for name, shift in shifts.items())
    return [(x + dx, y + dy) for x, y in points]
