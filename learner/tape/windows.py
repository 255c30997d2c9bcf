"""Windows of images that convolutions read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.tape.operations import OPERATIONS


class Windows(NamedTuple):
    """Square windows of an image, whose elements are ordered by row, column and channel."""

    height: int
    """Number of rows of pixels."""
    width: int
    """Number of columns of pixels."""
    channels: int
    side: int
    """Number of rows and columns of a window."""
    stride: int
    """Number of pixels from one window to the next."""

    @property
    def grid(self) -> tuple[int, int]:
        """Number of windows in a column and in a row; all windows are within the image."""
        return (self.height - self.side) // self.stride + 1, (self.width - self.side) // self.stride + 1

    @property
    def pixels(self) -> int:
        """Number of elements of an image."""
        return self.height * self.width * self.channels

    @property
    def patch(self) -> int:
        """Number of elements in a window."""
        return self.side * self.side * self.channels

    @classmethod
    def from_operation(cls, op: np.void) -> Windows:
        """Return the windows that an operation of a list reads."""
        height, width = (int(size) for size in op["more"])
        image = int(op["inner" if OPERATIONS[int(op["code"])].name == "patches" else "cols"])
        return cls(height, width, image // (height * width), int(op["x"]), int(op["y"]))


def view_by_window(images: NDArray[Any], windows: Windows) -> NDArray[Any]:
    """Return a view of images (rows, pixels) by window: (rows, down, across, side, side, channels)."""
    height, width, channels, side, stride = windows
    pixels = images.reshape(-1, height, width, channels)
    view_by_window = np.lib.stride_tricks.sliding_window_view(pixels, (side, side), axis=(1, 2), writeable=True)
    view: NDArray[Any] = view_by_window[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)
    return view
