"""Camera images among the policy inputs, packed as three pixels per value, so that records, memories, links and logs
can hold images like any other input.

A value is an integer below 2^24, which float32 represents exactly; its range [0, 2^24) maps to [-1, 1) in steps of
2^-23, without rounding.  Value j of the w values holds the pixels j, j + w and j + 2w, the first in the lowest byte.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import PIXELS_PER_VALUE, Camera, Observation, values_per_image

ImageValues = tuple[float, ...]
"""Packed values of one image, shape (w,)."""
VALUE_RANGE: Final = float(1 << 24)
"""Upper end of a value's range; the lower end is 0."""
PIXEL_UNIT: Final = "px"
_BYTE_WEIGHTS: Final = np.array([1.0, 256.0, 65536.0])


def pack_image(image: bytes) -> ImageValues:
    """Pack an image's pixels, given row by row, into values (w,)."""
    padded = image.ljust(values_per_image(len(image)) * PIXELS_PER_VALUE, b"\0")
    values = _BYTE_WEIGHTS @ np.frombuffer(padded, np.uint8).reshape(PIXELS_PER_VALUE, -1)
    return tuple(values.tolist())


def unpack_images(values: NDArray[np.floating], pixels: int) -> NDArray[np.uint8]:
    """Unpack k images from values (..., k w) to an array (..., k, pixels)."""
    integers = values.astype(np.int32).reshape(*values.shape[:-1], -1, 1, values_per_image(pixels))
    images = (integers >> (8 * np.arange(PIXELS_PER_VALUE, dtype=np.int32))[:, None]).astype(np.uint8)
    return images.reshape(*images.shape[:-2], -1)[..., :pixels]


def unpack_normalised_images(values: NDArray[np.floating], pixels: int) -> NDArray[np.uint8]:
    """Unpack k images from normalised values (..., k w) to an array (..., k, pixels)."""
    return unpack_images((values + 1.0) * (0.5 * VALUE_RANGE), pixels)


def holds_pixels(signal: Observation) -> bool:
    """Return whether a signal holds packed pixels; its unit alone is not enough, because a sensor may measure in pixels
    too."""
    return (signal.unit, signal.low, signal.high) == (PIXEL_UNIT, 0.0, VALUE_RANGE)


def image_signals(camera: Camera) -> tuple[Observation, ...]:
    """Return the signals that describe an image's values, in order."""
    return tuple(Observation(f"{camera.name}.{j}", PIXEL_UNIT, 0.0, VALUE_RANGE) for j in range(camera.values))
