"""A camera next to the device: its description, and the class that reads its images."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.bounds import NotNegative
from onrig.hw.rig import Camera

Image = NDArray[np.uint8]
"""Grey values (rows, columns)."""


class CameraDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """Description of a camera; a subclass adds its settings as fields and its name as the tag."""

    home: ClassVar[str] = ""
    """``MODULE:NAME`` of the camera's `CameraDriver` (``:NAME`` if it is in the same module as the description).  The
    driver is constructed with the description and the rig's camera."""
    latency_ms: NotNegative = 0.0
    """Delay from an image's exposure until ``read`` returns it; not used if ``read`` also returns the image's time."""


class CameraError(Exception):
    """Camera failure; the message names the cause and the remedy in one line."""


class CameraDriver:
    """Access to a camera, used by the single thread of the camera's process.

    After any exception the process exits and is restarted while the run continues.
    """

    def __init__(self, settings: CameraDevice, camera: Camera) -> None:
        """Open the camera.  Raises CameraError on failure."""

    def read(self) -> Image | tuple[Image, int]:
        """Wait for the next image and return it at the size configured for the rig's camera.

        The time of exposure (``time.monotonic_ns``) may be returned with it.  Images that have waited in a queue are
        old: skip all but the newest, or return their times of exposure.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release the camera."""
