"""The camera kind ``opencv``, on a video file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from onrig.hw.cameras import opencv
from onrig.hw.cameras.driver import CameraError
from onrig.hw.cameras.opencv import OpenCv, OpenCvDriver
from onrig.hw.rig import Camera

LEVELS = (20, 120, 220)
"""Grey values of the images in the video; the left half is black."""
FRONT = Camera("front", rows=8, columns=16)


@pytest.fixture
def video(tmp_path: Path) -> str:
    """Three images of 48 x 64 pixels at 50 Hz, without loss."""
    cv2: Any = pytest.importorskip("cv2")
    path = tmp_path / "video.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 50.0, (64, 48))
    if not writer.isOpened():
        pytest.skip("this build of OpenCV writes no videos")
    for level in LEVELS:
        image = np.zeros((48, 64, 3), np.uint8)
        image[:, 32:] = level
        writer.write(image)
    writer.release()
    return str(path)


def images(settings: OpenCv, number: int) -> list[Any]:
    driver = OpenCvDriver(settings, FRONT)
    try:
        return [driver.read() for _ in range(number)]
    finally:
        driver.close()


class VirtualTime:
    """Time that advances only while someone sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def test_a_video_is_converted_to_grey_reduced_and_repeated_at_its_rate(
    video: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualTime()
    monkeypatch.setattr(opencv, "time", clock)
    found = images(OpenCv(source=video), 7)
    assert clock.now_s == pytest.approx(100.0 + 6 / 50.0)
    for image, level in zip(found, (*LEVELS, *LEVELS, *LEVELS), strict=False):
        assert (image.shape, image.dtype) == ((8, 16), np.uint8)
        assert np.abs(image[:, 12:].astype(int) - level).max() <= 3
        assert image[:, :4].max() <= 3


def test_a_region_of_the_image_can_be_cropped(video: str) -> None:
    (image,) = images(OpenCv(source=video, crop=(8, 40, 16, 24), rate_hz=1000.0), 1)
    assert np.abs(image.astype(int) - LEVELS[0]).max() <= 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"crop": (40, 0, 9, 64)}, "crop reaches beyond the image .* 48 rows and 64 columns"),
        ({"source": "/nowhere/video.avi"}, "'/nowhere/video.avi' cannot be opened"),
    ],
)
def test_an_unreadable_source_is_named(video: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CameraError, match=said):
        images(msgspec.structs.replace(OpenCv(source=video), **changes), 1)


def test_a_camera_that_captures_another_size_is_refused(video: str) -> None:
    driver = OpenCvDriver(OpenCv(source=video, capture=(480, 640)), FRONT)
    driver._is_file = False
    with pytest.raises(CameraError, match="captures 48 rows and 64 columns: change capture"):
        driver.read()
    driver.close()


def test_a_missing_opencv_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(CameraError, match=r"pip install 'onrig\[camera\]'"):
        OpenCvDriver(OpenCv(source=0), FRONT)
