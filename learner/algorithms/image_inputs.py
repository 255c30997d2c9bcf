"""Inputs of networks at observations, which on a rig hold the pixels of images, and in trials the numbers of frames."""

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
    """Function from observations (..., n_observations) to inputs of networks (..., width).

    Vectors are their own inputs.  For images, observations are packed pixels (``onrig.runtime.images``), the channels
    in the order of the observations, or the numbers of frames, which ``bind_frames`` resolves.
    """

    def __init__(self, image: Image | None, n_observations: int, dtype: DTypeLike) -> None:
        """Raises ValueError unless the observations are those of the images."""
        self._image: Final = image
        self._dtype: Final[np.dtype[Any]] = np.dtype(dtype)
        self._read_frames: ReadFrames | None = None
        self.width: Final = n_observations if image is None else math.prod(image.size) * image.frames
        if image is not None and n_observations not in (image.frames, image.packed_values):
            rows, columns = image.size
            raise ValueError(
                f"{image.frames} images of {rows} by {columns} pixels are {image.packed_values} observations, "
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
        """Call ``update`` with the inputs at all observations, one minibatch at a time if they are images: 32
        experiences of four frames of 84 by 84 pixels take 7 MB."""
        if self._image is None:
            return update(batches)
        signals = [update(self._read_minibatch(batches, k)) for k in range(len(batches.reward))]
        return Signals(*(np.concatenate(parts) for parts in list(zip(*signals, strict=True))[:3]))

    def _read_minibatch(self, batches: Minibatches, k: int) -> Minibatches:
        minibatch = batches.select(k)
        return replace(
            minibatch, observation=self(minibatch.observation), next_observation=self(minibatch.next_observation)
        )
