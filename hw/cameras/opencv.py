"""Camera kind ``opencv``: USB cameras, video files and network streams, read by OpenCV."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from onrig.hw.bounds import Quantity
from onrig.hw.cameras.driver import CameraDevice, CameraDriver, CameraError, Image
from onrig.hw.rig import Camera

_DEFAULT_FILE_RATE_HZ: Final = 30.0
_MANUAL_EXPOSURE: Final = 1.0
"""Value of V4L2_EXPOSURE_MANUAL."""
_MAX_PLAUSIBLE_AGE_NS: Final = 60_000_000_000
_Position = Annotated[int, msgspec.Meta(ge=0, le=16_383)]
_Length = Annotated[int, msgspec.Meta(ge=1, le=16_384)]


class OpenCv(CameraDevice, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="opencv"):
    """A camera on this machine, a network stream, or a video file played in a loop in real time."""

    home = ":OpenCvDriver"
    source: Annotated[int, msgspec.Meta(ge=0, le=255)] | str
    """Camera number, device file (such as /dev/video0 or a link in /dev/v4l/by-id), URL or video file."""
    crop: tuple[_Position, _Position, _Length, _Length] | None = None
    """Part of the captured image that is used: top, left, rows, columns; null: all of it."""
    capture: tuple[_Length, _Length] | None = None
    """Rows and columns of the captured image; null: the camera's default."""
    rate_hz: Annotated[float, msgspec.Meta(ge=0.1, le=10_000.0)] | None = None
    """Images per second; null: the camera's default, or the rate stored in the file."""
    exposure: Quantity | None = None
    """Fixed exposure in the units of the camera's driver (V4L2: 100 us); null: the camera's default, usually
    automatic."""


class OpenCvDriver(CameraDriver):
    """Driver that captures images, crops them, converts them to grey and shrinks them.

    Each resulting pixel is the mean of the area that it covers.
    """

    def __init__(self, settings: OpenCv, camera: Camera) -> None:
        self._cv2 = _import_opencv()
        self._settings, self._size = settings, (camera.columns, camera.rows)
        self._is_file = isinstance(settings.source, str) and os.path.isfile(settings.source)
        self._capture = self._open()
        self._has_times = self._capture.getBackendName() == "V4L2"
        self._next_image_s = time.monotonic()

    def read(self) -> Image | tuple[Image, int]:
        """Return the next image, with the kernel's timestamp if available.  Raises CameraError if no image arrives."""
        if self._is_file:
            self._wait_for_next_image()
        success, image = self._capture.read()
        if not success and self._is_file:  # end of the file
            self._capture.release()
            self._capture = self._open()
            success, image = self._capture.read()
        if not success:
            raise CameraError(f"{self._name} sends no images: check its cable, and whether another program uses it")
        values, t_mono_ns = self._reduce(image), self._exposure_ns()
        return values if t_mono_ns is None else (values, t_mono_ns)

    def close(self) -> None:
        self._capture.release()

    @property
    def _name(self) -> str:
        return f"source {self._settings.source!r}"

    def _open(self) -> Any:
        cv, settings = self._cv2, self._settings
        capture = cv.VideoCapture(settings.source)
        if not capture.isOpened():
            raise CameraError(
                f"{self._name} cannot be opened: check its name, its cable and your permissions (group `video`)"
            )
        requested: dict[str, tuple[int, float]] = {}
        if not self._is_file:
            capture.set(cv.CAP_PROP_BUFFERSIZE, 1)
            if settings.capture is not None:
                requested["capture"] = cv.CAP_PROP_FRAME_HEIGHT, settings.capture[0]
                capture.set(cv.CAP_PROP_FRAME_WIDTH, settings.capture[1])
            if settings.rate_hz is not None:
                requested["rate_hz"] = cv.CAP_PROP_FPS, settings.rate_hz
            if settings.exposure is not None:
                capture.set(cv.CAP_PROP_AUTO_EXPOSURE, _MANUAL_EXPOSURE)
                requested["exposure"] = cv.CAP_PROP_EXPOSURE, settings.exposure
        for setting, (key, value) in requested.items():
            if not capture.set(key, value):
                capture.release()
                raise CameraError(f"{self._name} does not accept {setting}: remove it")
        return capture

    def _wait_for_next_image(self) -> None:
        """Wait until the file's next image is due.  If playback falls behind, it does not catch up."""
        rate_hz = self._settings.rate_hz or self._capture.get(self._cv2.CAP_PROP_FPS) or _DEFAULT_FILE_RATE_HZ
        now_s = time.monotonic()
        time.sleep(max(self._next_image_s - now_s, 0.0))
        self._next_image_s = max(self._next_image_s, now_s) + 1.0 / rate_hz

    def _exposure_ns(self) -> int | None:
        """Return the last image's time, which V4L2 takes from the monotonic clock; None if unknown or implausible."""
        if not self._has_times:
            return None
        t_mono_ns = round(self._capture.get(self._cv2.CAP_PROP_POS_MSEC) * 1e6)
        return t_mono_ns if 0 <= time.monotonic_ns() - t_mono_ns < _MAX_PLAUSIBLE_AGE_NS else None

    def _reduce(self, image: Image) -> Image:
        rows, columns = image.shape[:2]
        if self._settings.capture not in (None, (rows, columns)) and not self._is_file:
            raise CameraError(f"{self._name} captures {rows} rows and {columns} columns: change capture, or remove it")
        if self._settings.crop is not None:
            top, left, rows, columns = self._settings.crop
            if top + rows > image.shape[0] or left + columns > image.shape[1]:
                size = f"{image.shape[0]} rows and {image.shape[1]} columns"
                raise CameraError(f"crop reaches beyond the image of {self._name}, which has {size}")
            image = image[top : top + rows, left : left + columns]
        grey = image if image.ndim == 2 else self._cv2.cvtColor(image, self._cv2.COLOR_BGR2GRAY)
        return np.asarray(self._cv2.resize(grey, self._size, interpolation=self._cv2.INTER_AREA))


def _import_opencv() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise CameraError(f"OpenCV is missing ({error}): pip install 'onrig[camera]'") from error
    cv2.setNumThreads(1)
    return cv2
