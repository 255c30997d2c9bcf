"""Convolutional layers on a tape, and their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithm_config import Image
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import dense, patches
from onrig.learner.tape.spaces import Field
from onrig.learner.tape.windows import Windows

ReadFrames = Callable[[NDArray[np.floating]], NDArray[np.uint8]]
"""Function from frame numbers (...) to frames (..., pixels)."""


class Convolutions:
    """Convolutional layers of relu units, without padding; the frames of an image are its channels."""

    def __init__(self, image: Image) -> None:
        self.inputs: Final = math.prod(image.size) * image.frames
        """Number of elements of an image, which are ordered by row, column and frame."""
        self.filters: Final = list[tuple[int, int]]()
        """Rows and columns of each layer's weights; each layer also has a bias (1, columns)."""
        self.windows: Final = list[Windows]()
        """Windows of the inputs that each layer reads."""
        (height, width), channels = image.size, image.frames
        for layer in image.convolutions:
            windows = Windows(height, width, channels, layer.side, layer.stride)
            self.windows.append(windows)
            self.filters.append((windows.patch, layer.channels))
            (height, width), channels = windows.grid, layer.channels
        self.output_shape: Final = height, width, channels
        """Number of rows, columns and channels of the outputs, which are ordered by row, column and channel."""
        self.outputs: Final = height * width * channels
        """Number of outputs per image."""

    def __call__(self, images: Array, parameters: Iterator[Field]) -> Array:
        """Return the outputs (rows, outputs) for images (rows, inputs), taking the next weights and biases from
        ``parameters``."""
        rows = images.shape[0]
        for windows in self.windows:
            weight, bias = (images.tape.read(next(parameters)) for _ in range(2))
            units = dense(patches(images, windows), weight, bias, relu=True)
            images = units.reshape(rows, units.size // rows)
        return images


def image_inputs(frames: NDArray[np.uint8], dtype: np.dtype[np.floating]) -> NDArray[np.floating]:
    """Scale frames (..., k, pixels) to [0, 1] and interleave them: (..., pixels * k)."""
    *shape, k, pixels = frames.shape
    inputs = np.empty((*shape, pixels, k), dtype)
    np.multiply(frames.swapaxes(-1, -2), dtype.type(1.0 / 255.0), out=inputs)
    return inputs.reshape(*shape, pixels * k)
