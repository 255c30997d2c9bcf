"""The newest image of each camera in shared memory."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from onrig.hw.rig import Camera
from onrig.runtime.images import pack_image
from onrig.runtime.shm.images import (
    SEGMENT_NAME,
    ImageReader,
    Images,
    ImageWriter,
    images_bytes,
    images_in,
    images_schema,
)
from onrig.runtime.shm.segment import Segment, SegmentError

FRONT, TOP = Camera("front", 4, 5), Camera("top", 6, 4, max_age_ms=50.0)
CAMERAS = (FRONT, TOP)
MS = 1_000_000


class Clock:
    """Monotonic time in ns, set by the tests."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Segment.create(tmp_path / SEGMENT_NAME, images_bytes(CAMERAS), images_schema(CAMERAS)).close()
    return tmp_path


def image(camera: Camera, value: int) -> bytes:
    return bytes((value + i) % 256 for i in range(camera.pixels))


def test_the_newest_images_are_read_in_the_rigs_order(folder: Path) -> None:
    clock, writer = Clock(), ImageWriter(folder, CAMERAS)
    reader = ImageReader(folder, CAMERAS, clock)
    for n in range(1, 4):
        clock.now_ns = n * MS
        writer.put(1, image(TOP, n), clock.now_ns)
        writer.put(0, image(FRONT, 2 * n), clock.now_ns)
        assert reader.read() == (pack_image(image(FRONT, 2 * n)), pack_image(image(TOP, n)))
        assert reader.failure == ""
    image_set = Images(folder, CAMERAS)
    assert (image_set.count(0), image_set.count(1)) == (3, 3)
    for part in (writer, reader, image_set):
        part.close()


def test_a_camera_without_an_image_is_a_failure_and_its_image_is_black(folder: Path) -> None:
    writer, reader = ImageWriter(folder, CAMERAS), ImageReader(folder, CAMERAS, Clock())
    writer.put(0, image(FRONT, 1), 0)
    assert reader.read() == (pack_image(image(FRONT, 1)), (0.0,) * TOP.values)
    assert reader.failure == "camera 'top' has sent no image"


def test_an_image_may_be_as_old_as_its_camera_allows(folder: Path) -> None:
    clock, writer = Clock(), ImageWriter(folder, CAMERAS)
    reader = ImageReader(folder, CAMERAS, clock)
    writer.put(0, image(FRONT, 1), 0)
    writer.put(1, image(TOP, 1), 0)
    clock.now_ns = 50 * MS
    reader.read()
    assert reader.failure == ""
    clock.now_ns += MS
    assert reader.read()[1] == pack_image(image(TOP, 1))
    assert reader.failure == "the newest image of camera 'top' is 51 ms old (limit 50)"
    writer.put(1, image(TOP, 2), clock.now_ns)
    reader.read()
    assert reader.failure == "", "images arrive again"
    assert reader.describe() == (
        "camera 'front': images up to 51.0 ms old, 2 seen twice; camera 'top': images up to 50.0 ms old, 1 seen twice"
    )


def test_a_time_in_the_future_is_replaced_by_the_time_of_arrival(folder: Path) -> None:
    clock, writer = Clock(), ImageWriter(folder, CAMERAS)
    reader = ImageReader(folder, CAMERAS, clock)
    for index, camera in enumerate(CAMERAS):
        writer.put(index, image(camera, 1), 1000 * MS)
    clock.now_ns = 5 * MS
    reader.read()
    assert reader.failure == ""
    clock.now_ns += 51 * MS
    reader.read()
    assert reader.failure == "the newest image of camera 'top' is 51 ms old (limit 50)"


def test_ages_are_in_device_time(folder: Path) -> None:
    clock, writer = Clock(), ImageWriter(folder, CAMERAS)
    reader = ImageReader(folder, CAMERAS, clock, time_scale=4.0)
    for index, camera in enumerate(CAMERAS):
        writer.put(index, image(camera, 1), 0)
    clock.now_ns = 12 * MS
    reader.read()
    assert reader.failure == ""
    clock.now_ns = 13 * MS
    reader.read()
    assert "camera 'top'" in reader.failure


def test_in_lockstep_an_image_has_no_age(folder: Path) -> None:
    writer, reader = ImageWriter(folder, CAMERAS), ImageReader(folder, CAMERAS, None)
    for index, camera in enumerate(CAMERAS):
        writer.put(index, image(camera, 1), 0)
    reader.read()
    assert reader.failure == ""


def test_an_image_overwritten_during_the_copy_is_read_the_next_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = ImageWriter(folder, CAMERAS), ImageReader(folder, CAMERAS, Clock())
    for index, camera in enumerate(CAMERAS):
        writer.put(index, image(camera, 1), 0)
    image_before = reader.read()
    writer.put(0, image(FRONT, 2), 0)
    original_crc32 = zlib.crc32

    def overwrite_and_crc32(data: bytes, seed: int = 0) -> int:
        monkeypatch.undo()
        writer.put(0, image(FRONT, 3), 0)
        writer.put(0, image(FRONT, 4), 0)
        return original_crc32(data, seed)

    monkeypatch.setattr(zlib, "crc32", overwrite_and_crc32)
    assert reader.read() == image_before
    assert reader.read()[0] == pack_image(image(FRONT, 4))


def test_an_image_of_another_size_is_not_used(folder: Path) -> None:
    writer, reader = ImageWriter(folder, CAMERAS), ImageReader(folder, CAMERAS, Clock())
    writer.put(0, image(FRONT, 1)[:-1], 0)
    writer.put(1, image(TOP, 1), 0)
    reader.read()
    assert reader.failure == "camera 'front' has sent no image"
    with pytest.raises(ValueError, match="room for 20"):
        writer.put(0, bytes(21), 0)


def test_only_identical_cameras_share_the_segment(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SegmentError):
        ImageReader(folder, (TOP, FRONT), Clock())
    assert images_in(None, CAMERAS) is None
    assert images_in(folder, ()) is None
    assert images_in(tmp_path / "elsewhere", CAMERAS) is None
