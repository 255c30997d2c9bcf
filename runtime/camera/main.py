"""Process of a camera: ``python -m onrig.runtime.camera.main CONFIG FOLDER NAME``, with a resolved CONFIG.

It writes the images of the rig's camera NAME to the shared memory in FOLDER until SIGTERM, an exception or an invalid
image ends it.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import UNSET

from onrig.hw.cameras.driver import CameraDriver, CameraError
from onrig.hw.rig import Camera
from onrig.runtime.control.realtime import die_with_parent, leave_cpu
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.registry import describe_exception, import_home
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_started
from onrig.runtime.run_state.report import report
from onrig.runtime.shm.images import ImageWriter

_SOURCE: Final = "camera"
_UNCHANGED_IMAGE_NS: Final = 10_000_000_000
"""How long a camera may repeat the same image before a warning is reported."""


def valid_image(image: object, camera: Camera) -> bytes:
    """Return the pixels of an image, row by row; raises CameraError if its size or type is wrong."""
    if not isinstance(image, np.ndarray):
        description = f"a {type(image).__name__}"
    elif image.dtype != np.uint8 or image.shape != (camera.rows, camera.columns):
        description = f"shape {image.shape} of {image.dtype}"
    else:
        return image.tobytes()
    raise CameraError(f"read() returned {description}, expected shape ({camera.rows}, {camera.columns}) of uint8")


def valid_time(t_mono_ns: object, now_ns: int) -> int:
    """Return the time of an image; raises CameraError unless it is on the monotonic clock."""
    if isinstance(t_mono_ns, int | np.integer) and 0 <= t_mono_ns <= now_ns:
        return int(t_mono_ns)
    raise CameraError(
        f"read() returned the time {t_mono_ns!r}, expected a time from time.monotonic_ns, which is now {now_ns}"
    )


class CameraLoop:
    """Passes the images of a camera to the run's loop."""

    def __init__(self, config: RunConfig, folder: Path, name: str) -> None:
        """Open the camera; exceptions raised by its code propagate."""
        assert config.device.cameras is not UNSET
        settings = config.device.cameras[name]
        self._index, self._camera = next((i, c) for i, c in enumerate(config.cameras) if c.name == name)
        self._latency_ns = round(settings.latency_ms * 1e6)
        self._writer = ImageWriter(folder, config.cameras)
        self._driver: CameraDriver = import_home(settings, settings.home)(settings, self._camera)
        self.images = 0
        """Number of images so far."""
        self._pixels, self._changed_ns, self._has_warned = b"", 0, False

    def step(self) -> None:
        """Read one image and pass it on."""
        reading = self._driver.read()
        now_ns = time.monotonic_ns()
        image, t_mono_ns = reading, now_ns - self._latency_ns
        if isinstance(reading, tuple) and len(reading) == 2:
            image, t_mono_ns = reading
        pixels = valid_image(image, self._camera)
        self._writer.put(self._index, pixels, valid_time(t_mono_ns, now_ns))
        self.images += 1
        self._check_change(pixels, now_ns)

    def _check_change(self, pixels: bytes, now_ns: int) -> None:
        """Warn once if the camera keeps repeating the same image, because a frozen camera does not show in an image's
        age."""
        if pixels != self._pixels:
            self._pixels, self._changed_ns = pixels, now_ns
        elif now_ns - self._changed_ns > _UNCHANGED_IMAGE_NS and not self._has_warned:
            self._has_warned = True
            duration = f"{_UNCHANGED_IMAGE_NS / 1e9:g} s"
            message = (
                f"camera '{self._camera.name}' has sent the same image for {duration}: it is frozen, or nothing moves"
            )
            report(_SOURCE, "warning", message)

    def close(self) -> None:
        """Release the camera; exceptions raised by its code propagate."""
        try:
            self._driver.close()
        finally:
            self._writer.close()


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, CameraError) else describe_exception(error)


def _end(signum: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(ExitCode.OK)


def main(arguments: list[str]) -> int:
    """Open the camera and pass on its images until the end of the run; return the exit code of a failure."""
    die_with_parent()
    config, folder, name = load_started(Path(arguments[0])), Path(arguments[1]), arguments[2]
    leave_cpu(config.realtime)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    try:
        loop = CameraLoop(config, folder, name)
    except Exception as error:
        report(_SOURCE, "error", f"camera '{name}' does not start: {_describe(error)}")
        return ExitCode.HARDWARE
    try:
        loop.step()
        report(_SOURCE, "ready", f"camera '{name}'")
        while True:
            loop.step()
    except Exception as error:
        if loop.images:  # the run may continue without this process, which is restarted
            report(_SOURCE, "warning", f"camera '{name}' failed after {loop.images} images: {_describe(error)}")
        else:
            report(_SOURCE, "error", f"camera '{name}' does not start: {_describe(error)}")
    finally:
        with contextlib.suppress(Exception):
            loop.close()
    return ExitCode.HARDWARE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
