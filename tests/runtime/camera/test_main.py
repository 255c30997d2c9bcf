"""The process of a camera, with a camera defined here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from onrig.hw.cameras.driver import CameraDevice, CameraDriver, CameraError, Image
from onrig.hw.rig import Camera
from onrig.runtime.camera import main
from onrig.runtime.camera.main import CameraLoop, valid_image, valid_time
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.images import SEGMENT_NAME, ImageReader, images_bytes, images_schema
from onrig.runtime.shm.segment import Segment
from onrig.tools.load import load

FRONT = Camera("front", 4, 6)


class Bench(CameraDevice, frozen=True, kw_only=True, tag="bench"):
    """A camera of these tests."""

    home = ":BenchDriver"
    timestamp_ns: int | None = None


class BenchDriver(CameraDriver):
    """Returns the same image repeatedly."""

    def __init__(self, settings: Bench, camera: Camera) -> None:
        self._settings = settings
        self._image = np.arange(camera.pixels, dtype=np.uint32).astype(np.uint8).reshape(camera.rows, camera.columns)

    def read(self) -> Image | tuple[Image, int]:
        timestamp_ns = self._settings.timestamp_ns
        return self._image if timestamp_ns is None else (self._image, timestamp_ns)


def load_camera_run(settings: CameraDevice, folder: Path) -> RunConfig:
    config = load("pendulum-camera")
    device = msgspec.structs.replace(config.device, twin=None, pace="realtime", cameras={"front": settings})
    config = msgspec.structs.replace(config, device=device)
    Segment.create(folder / SEGMENT_NAME, images_bytes(config.cameras), images_schema(config.cameras)).close()
    return config


def published_image_time_ns(settings: CameraDevice, folder: Path) -> int:
    """Time of an image that was passed on."""
    config = load_camera_run(settings, folder)
    reader = ImageReader(folder, config.cameras, time.monotonic_ns)
    loop = CameraLoop(config, folder, "front")
    loop.step()
    assert loop.images == 1
    (pixels,) = reader.read()
    assert any(pixels)
    time_ns = reader._times_ns[0]
    loop.close()
    reader.close()
    return time_ns


def test_the_time_of_an_image_is_the_return_of_read_minus_its_latency(tmp_path: Path) -> None:
    start_ns = time.monotonic_ns()
    image_time_ns = published_image_time_ns(Bench(latency_ms=20.0), tmp_path)
    assert start_ns - 20_000_000 <= image_time_ns <= time.monotonic_ns() - 20_000_000


def test_a_camera_may_provide_image_times(tmp_path: Path) -> None:
    assert published_image_time_ns(Bench(latency_ms=20.0, timestamp_ns=123_456), tmp_path) == 123_456


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (None, "returned a NoneType"),
        ([[1, 2], [3, 4]], "returned a list"),
        (np.zeros((6, 4), np.uint8), r"shape \(6, 4\) of uint8, expected shape \(4, 6\) of uint8"),
        (np.zeros((4, 6, 1), np.uint8), r"shape \(4, 6, 1\) of uint8"),
        (np.zeros((4, 6)), r"shape \(4, 6\) of float64"),
    ],
)
def test_an_image_of_another_kind_is_refused(image: Any, message: str) -> None:
    with pytest.raises(CameraError, match=message):
        valid_image(image, FRONT)


def test_the_pixels_are_row_major_whatever_their_order_in_memory() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(6, 4).T
    assert valid_image(image, FRONT) == bytes(image[i, j] for i in range(4) for j in range(6))


@pytest.mark.parametrize("timestamp", [101, -1, 1.0, None])
def test_a_time_not_on_the_hosts_clock_is_refused(timestamp: Any) -> None:
    assert valid_time(100, 100) == valid_time(np.int64(100), 100) == 100
    with pytest.raises(CameraError, match=r"expected a time from time\.monotonic_ns, which is now 100"):
        valid_time(timestamp, 100)


def test_anything_but_an_image_and_its_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = CameraLoop(load_camera_run(Bench(), tmp_path), tmp_path, "front")
    monkeypatch.setattr(loop._driver, "read", lambda: (np.zeros((32, 32), np.uint8), 0, 0))
    with pytest.raises(CameraError, match="returned a tuple"):
        loop.step()
    loop.close()


def test_a_camera_that_repeats_one_image_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[str] = []
    monkeypatch.setattr(main, "report", lambda source, kind, message: reports.append(f"{kind}: {message}"))
    monkeypatch.setattr(main, "_UNCHANGED_IMAGE_NS", 20_000_000)
    loop = CameraLoop(load_camera_run(Bench(), tmp_path), tmp_path, "front")
    loop.step()
    loop.step()
    assert reports == []
    time.sleep(0.03)
    loop._driver._image = loop._driver._image + 1  # type: ignore[attr-defined]
    loop.step()
    assert reports == [], "another image"
    time.sleep(0.03)
    loop.step()
    loop.step()
    assert reports == [
        "warning: camera 'front' has sent the same image for 0.02 s: it is frozen, or nothing moves",
    ]
    loop.close()
