"""Images that a twin's cameras see: strokes of its plant, rasterised with smooth edges."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Camera
from onrig.runtime.images import ImageValues, pack_image
from onrig.runtime.shm.images import ImageWriter
from onrig.sim.plants.plant import Plant, Stroke

_WHITE: Final = 255.0


class Rasteriser:
    """Rasteriser of strokes into images of one size, which show [-1, 1] x [-1, 1], undistorted and centred."""

    def __init__(self, rows: int, columns: int) -> None:
        self._pixels_per_unit: Final = 0.5 * min(rows, columns)
        self._y, self._x = (
            (0.5 * (n - 1) - np.arange(n)) * sign / self._pixels_per_unit for n, sign in ((rows, 1.0), (columns, -1.0))
        )

    def __call__(self, strokes: tuple[Stroke, ...]) -> NDArray[np.uint8]:
        """Return an image (rows, columns): white strokes on black."""
        coverage = np.zeros((len(self._y), len(self._x)))
        for stroke in strokes:
            np.maximum(coverage, self._coverage(stroke), out=coverage)
        return np.asarray(coverage * _WHITE + 0.5).astype(np.uint8)

    def _coverage(self, stroke: Stroke) -> NDArray[np.float64]:
        """Return the share of each pixel that a stroke covers, from the distance between pixel centre and stroke."""
        (x0, y0), (x1, y1) = stroke.start, stroke.end
        dx, dy = x1 - x0, y1 - y0
        px, py = self._x[None, :] - x0, self._y[:, None] - y0
        projection = np.clip((px * dx + py * dy) / max(dx * dx + dy * dy, 1e-12), 0.0, 1.0)
        distance = np.sqrt(np.square(px - projection * dx) + np.square(py - projection * dy))
        coverage: NDArray[np.float64] = np.clip((0.5 * stroke.width - distance) * self._pixels_per_unit + 0.5, 0.0, 1.0)
        return coverage


class TwinCameras:
    """Cameras of a twin, all of which see its plant from the front."""

    def __init__(self, cameras: tuple[Camera, ...], writer: ImageWriter | None = None) -> None:
        self._rasterisers: Final = [Rasteriser(camera.rows, camera.columns) for camera in cameras]
        self._writer: Final = writer

    def render(self, plant: Plant, state: tuple[float, ...]) -> list[bytes]:
        """Return the image of each camera, row by row.  Raises whatever the plant's code raises."""
        strokes = plant.strokes(state)
        assert strokes is not None, "checked with the configuration"
        return [rasterise(strokes).tobytes() for rasterise in self._rasterisers]

    def observe(self, plant: Plant, state: tuple[float, ...]) -> tuple[ImageValues, ...]:
        """Return the images as policy inputs."""
        return tuple(map(pack_image, self.render(plant, state)))

    def publish(self, plant: Plant, state: tuple[float, ...], t_mono_ns: int) -> None:
        """Write the images of a sample, before its state frame is sent."""
        assert self._writer is not None
        for index, image in enumerate(self.render(plant, state)):
            self._writer.put(index, image, t_mono_ns)
