"""Newest image of each camera in shared memory: wait-free, with one writer per camera.

A camera's process writes an image as soon as it is complete, with the time of its exposure on the host's monotonic
clock. The loop reads the newest one when a state frame arrives, and never waits for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from onrig.hw.rig import Camera
from onrig.runtime.images import ImageValues, pack_image
from onrig.runtime.shm.latest import Latest, latest_bytes
from onrig.runtime.shm.segment import Segment, SegmentMissing

SEGMENT_NAME: Final = "images"


class ImageSource(Protocol):
    """Source of the images that the tick observes."""

    @property
    def failure(self) -> str:
        """Reason why the newest images must not be used; empty if they may be."""

    def read(self) -> tuple[ImageValues, ...]:
        """Return the newest image of each camera in use, and update ``failure``."""


class BlankImages:
    """Black images, for rehearsals of the tick and for policies that do not use them."""

    failure: Final = ""

    def __init__(self, cameras: Sequence[Camera]) -> None:
        self._images: Final = tuple((0.0,) * camera.values for camera in cameras)

    def read(self) -> tuple[ImageValues, ...]:
        return self._images


def images_bytes(cameras: Sequence[Camera]) -> int:
    """Return the size of the segment's body."""
    return sum(latest_bytes(camera.pixels) for camera in cameras)


def images_schema(cameras: Sequence[Camera]) -> str:
    """Return a description that changes with the layout."""
    return "images-1 " + " ".join(f"{c.name} {c.rows}x{c.columns}" for c in cameras)


class Images:
    """The segment, attached."""

    def __init__(self, folder: Path, cameras: Sequence[Camera]) -> None:
        """Raises SegmentError, for example if ``folder`` has no segment."""
        self._segment = Segment.attach(folder / SEGMENT_NAME, images_schema(cameras))
        self._cameras: Final = tuple(cameras)
        self._slots: Final = list[Latest]()
        start = 0
        for camera in cameras:
            end = start + latest_bytes(camera.pixels)
            self._slots.append(Latest(self._segment.body[start:end], camera.pixels))
            start = end

    def count(self, index: int) -> int:
        """Return the number of images that camera ``index`` has written."""
        return self._slots[index].version

    def close(self) -> None:
        """Release the segment."""
        for slot in self._slots:
            slot.close()
        self._segment.close()


class ImageWriter(Images):
    """A camera's side, or the twin's, which renders for all cameras."""

    def put(self, index: int, image: bytes, t_mono_ns: int) -> None:
        """Publish an image from camera ``index``, exposed at ``t_mono_ns``."""
        self._slots[index].put(image, t_mono_ns)


class ImageReader(Images):
    """The loop's side."""

    def __init__(
        self, folder: Path, cameras: Sequence[Camera], clock: Callable[[], int] | None, time_scale: float = 1.0
    ) -> None:
        """``clock``: host's monotonic clock in ns; None in lockstep, where an image is as old as its frame.
        ``time_scale``: device seconds per second of the wall clock.  Raises SegmentError."""
        super().__init__(folder, cameras)
        self._clock = clock
        self._max_ages_ns: Final = [round(camera.max_age_ms * 1e6 / (time_scale or 1.0)) for camera in cameras]
        self._versions: Final = [0] * len(cameras)
        self._images: Final = list(BlankImages(cameras).read())
        self._times_ns: Final = [0] * len(cameras)
        self.failure = ""
        self.oldest_ns: Final = [0] * len(cameras)
        """Largest age of an image that was used, by camera."""
        self.repeats: Final = [0] * len(cameras)
        """Number of ticks that used the same image as the tick before, by camera."""

    def read(self) -> tuple[ImageValues, ...]:
        """Return the newest image of each camera, or its previous one if the camera wrote during the copy."""
        self.failure, now_ns = "", 0 if self._clock is None else self._clock()
        for i, slot in enumerate(self._slots):
            if slot.version == self._versions[i]:
                self.repeats[i] += 1
            elif (value := slot.read()) is not None and len(value.content) == self._cameras[i].pixels:
                # An image dated in the future would count as fresh for too long.
                self._versions[i], self._times_ns[i] = value.version, min(value.label, now_ns)
                self._images[i] = pack_image(value.content)
            self._check_age(i, now_ns)
        return tuple(self._images)

    def describe(self) -> str:
        """Describe the ages of the images in one line."""
        ages = zip(self._cameras, self.oldest_ns, self.repeats, strict=True)
        return "; ".join(
            f"camera '{camera.name}': images up to {oldest_ns / 1e6:.1f} ms old, {repeats} seen twice"
            for camera, oldest_ns, repeats in ages
        )

    def _check_age(self, index: int, now_ns: int) -> None:
        name = self._cameras[index].name
        if not self._versions[index]:
            self.failure = f"camera '{name}' has sent no image"
        elif self._clock is not None:
            age_ns = now_ns - self._times_ns[index]
            if age_ns > self._max_ages_ns[index]:
                limit_ms = self._cameras[index].max_age_ms
                self.failure = f"the newest image of camera '{name}' is {age_ns / 1e6:.0f} ms old (limit {limit_ms:g})"
            elif age_ns > self.oldest_ns[index]:
                self.oldest_ns[index] = age_ns


def images_in(folder: Path | None, cameras: Sequence[Camera]) -> ImageWriter | None:
    """Return the writer of a run's images; None if the run has no cameras."""
    if folder is None or not cameras:
        return None
    with contextlib.suppress(SegmentMissing):
        return ImageWriter(folder, cameras)
    return None
