"""Drawing of any mechanism from a list of shapes, for example those that a plant derives from its model."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import Final

from onrig.runtime.run_config import RunConfig
from onrig.runtime.view.drawing import Drawing, Point, Scene, Shape, signal_of

_N_POSES: Final = 200
"""Number of random poses within the signals' ranges that determine the visible rectangle."""
_MARGIN: Final = 0.08


class Shapes(Drawing, frozen=True, tag="shapes"):
    """Drawing that consists of the given shapes."""

    shapes: tuple[Shape, ...]

    def scene(self, config: RunConfig) -> Scene:
        """Return the shapes in a rectangle that contains them, with a margin, in random poses over the
        signals' ranges.
        """
        names = {motion.by for shape in self.shapes for motion in shape.every_motion}
        spans = {name: (signal_of(config, name).low, signal_of(config, name).high) for name in sorted(names)}
        rng = random.Random(0)
        poses = [{name: rng.uniform(*span) for name, span in spans.items()} for _ in range(_N_POSES)]
        points = [point for pose in poses for shape in self.shapes for point in _outline(shape, pose)]
        xs, ys = zip(*(points or [(-1.0, -1.0), (1.0, 1.0)]), strict=True)
        margin = _MARGIN * max(max(xs) - min(xs), max(ys) - min(ys), 1e-9)
        return Scene((min(xs) - margin, min(ys) - margin), (max(xs) + margin, max(ys) + margin), self.shapes)


def _outline(shape: Shape, pose: Mapping[str, float]) -> Iterator[Point]:
    for x, y in shape.points:
        for motion in shape.every_motion:
            value, (cx, cy) = pose[motion.by], motion.about
            c, s = math.cos(motion.turn * value), math.sin(motion.turn * value)
            x, y = (
                cx + c * (x - cx) - s * (y - cy) + motion.shift[0] * value,
                cy + s * (x - cx) + c * (y - cy) + motion.shift[1] * value,
            )
        yield x - shape.radius, y - shape.radius
        yield x + shape.radius, y + shape.radius
