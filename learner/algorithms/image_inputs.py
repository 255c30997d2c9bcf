"""Network inputs computed from observations, which for images hold pixels on a rig and frame numbers in trials."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from onrig.learner.algorithm_config import Image
from onrig.learner.algorithms import Minibatches, Signals
from onrig.learner.algorithms.traced import Values
from onrig.learner.tape.convolutions import ReadFrames, image_inputs
from onrig.runtime.images import unpack_normalised_images


class Inputs:
    """Function from observations (..., n_observations) to network inputs (..., width).

    Vectors are passed on unchanged.  For images, observations are either packed pixels (``onrig.runtime.images``), with
    the channels in the order of the observations, or numbers of frames, which are read by the function set with
    ``bind_frames``.
    """

    def __init__(self, image: Image | None, n_observations: int, dtype: DTypeLike) -> None:
        """Raises ValueError if ``n_observations`` does not match the images."""
        self._image: Final = image
        self._dtype: Final[np.dtype[Any]] = np.dtype(dtype)
        self._read_frames: ReadFrames | None = None
        self.width: Final = n_observations if image is None else math.prod(image.size) * image.frames
        if image is not None and n_observations not in (image.frames, image.packed_values):
            rows, columns = image.size
            raise ValueError(
                f"{image.frames} images of {rows} by {columns} pixels need {image.packed_values} observations, "
                f"got {n_observations}"
            )

    def bind_frames(self, read_frames: ReadFrames) -> None:
        self._read_frames = read_frames

    def __call__(self, observation: Values) -> Values:
        if self._image is None:
            return observation
        if self._read_frames is not None:
            return image_inputs(self._read_frames(observation), self._dtype)
        return image_inputs(unpack_normalised_images(observation, math.prod(self._image.size)), self._dtype)

    def update(self, batches: Minibatches, update: Callable[[Minibatches], Signals]) -> Signals:
        """Call ``update`` with the network inputs for all observations.

        Images are passed one minibatch at a time, because 32 experiences with four frames of 84 by 84 pixels take 7 MB.
        """
        if self._image is None:
            return update(batches)
        signals = [update(self._read_minibatch(batches, k)) for k in range(len(batches.reward))]
        return Signals(*(np.concatenate(parts) for parts in list(zip(*signals, strict=True))[:3]))

    def _read_minibatch(self, batches: Minibatches, k: int) -> Minibatches:
        minibatch = batches.select(k)
        return replace(
            minibatch, observation=self(minibatch.observation), next_observation=self(minibatch.next_observation)
        )
