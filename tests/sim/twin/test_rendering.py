"""Images of a twin: the positions of the strokes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onrig.hw.rig import Camera
from onrig.runtime.images import unpack_images
from onrig.sim.plants import Pendulum
from onrig.sim.plants.plant import Stroke
from onrig.sim.twin.rendering import Rasteriser, TwinCameras

CAMERA = Camera("front", 32, 32)


def centre_of_light(angle: float, rows: int = 32, columns: int = 32) -> tuple[float, float]:
    """Mean position of the light from the middle of the image: right and up, in pixels."""
    (image,) = TwinCameras((Camera("front", rows, columns),)).render(Pendulum(), (angle, 0.0))
    light = np.frombuffer(image, np.uint8).reshape(rows, columns).astype(float)
    down, right = np.indices(light.shape)
    x, y = ((light * index).sum() / light.sum() for index in (right, down))
    return x - 0.5 * (columns - 1), 0.5 * (rows - 1) - y


@pytest.mark.parametrize("angle", np.linspace(-3.1, 3.1, 17).tolist())
def test_the_light_lies_in_the_direction_of_the_pendulum(angle: float) -> None:
    x, y = centre_of_light(angle)
    assert math.hypot(x, y) == pytest.approx(math.hypot(*centre_of_light(0.0)), rel=0.05)
    assert abs(math.remainder(math.atan2(x, -y) - angle, 2 * math.pi)) < 0.02


def test_a_small_turn_changes_the_image() -> None:
    cameras = TwinCameras((CAMERA,))
    images = {cameras.render(Pendulum(), (angle, 0.0))[0] for angle in np.arange(0.0, 0.1, 0.005)}
    assert len(images) == 20


def test_pixels_are_square_in_an_oblong_image() -> None:
    wide, tall = centre_of_light(1.0, 16, 40), centre_of_light(1.0, 40, 16)
    assert wide == pytest.approx(tall, abs=0.05)


def test_a_stroke_covers_its_area() -> None:
    image = Rasteriser(64, 64)((Stroke((-0.5, 0.0), (0.5, 0.0), 0.25),)).astype(float) / 255.0
    area = image.sum() / 32**2
    assert area == pytest.approx(1.0 * 0.25 + math.pi * 0.125**2, rel=0.01)


def test_the_values_of_an_observed_image_are_its_pixels() -> None:
    cameras, plant = TwinCameras((CAMERA,)), Pendulum()
    (values,), (image,) = cameras.observe(plant, (2.0, 0.0)), cameras.render(plant, (2.0, 0.0))
    assert unpack_images(np.array(values), CAMERA.pixels).tobytes() == image
