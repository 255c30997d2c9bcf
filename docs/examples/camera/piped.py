"""A camera read through the standard output of a command, such as rpicam-vid, ffmpeg or gst-launch-1.0."""

from __future__ import annotations

import fcntl
import struct
import subprocess
import termios

import numpy as np

from onrig.hw.cameras.driver import CameraDevice, CameraDriver, CameraError, Image
from onrig.hw.rig import Camera


class Piped(CameraDevice, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="piped"):
    """Images written by a command, one after the other; each begins with its grey values, row by row."""

    home = ":PipedDriver"
    command: list[str]
    """Program and arguments."""
    rows: int
    """Rows of the command's image, a multiple of the rig's."""
    columns: int
    """Columns of the command's image, a multiple of the rig's."""
    image_bytes: int
    """Bytes per image; YUV420 has 1.5 per pixel, with all grey values first."""


class PipedDriver(CameraDriver):
    """Keeps the command running; each pixel of the rig's camera is the mean of a block of the command's pixels."""

    def __init__(self, settings: Piped, camera: Camera) -> None:
        self._settings = settings
        self._blocks = (camera.rows, settings.rows // camera.rows, camera.columns, settings.columns // camera.columns)
        self._process = subprocess.Popen(settings.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0)

    def read(self) -> Image:
        """Wait for the next image; if several have arrived, only the newest one counts."""
        data = self._read_image()
        while self._waiting_bytes() >= self._settings.image_bytes:
            data = self._read_image()
        rows, columns = self._settings.rows, self._settings.columns
        grey = np.frombuffer(data, np.uint8, rows * columns)
        return grey.reshape(self._blocks).mean((1, 3)).astype(np.uint8)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read_image(self) -> bytes:
        assert self._process.stdout is not None
        data = b""
        while len(data) < self._settings.image_bytes:
            more = self._process.stdout.read(self._settings.image_bytes - len(data))
            if not more:
                raise CameraError(f"{self._settings.command[0]} ended with code {self._process.wait()}")
            data += more
        return data

    def _waiting_bytes(self) -> int:
        assert self._process.stdout is not None
        (waiting,) = struct.unpack("i", fcntl.ioctl(self._process.stdout, termios.FIONREAD, b"\0" * 4))
        return int(waiting)
