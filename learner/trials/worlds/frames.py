"""Video frames, each of which is stored once, no matter how many experiences show it.

An experience holds the numbers of the frames in its observations, oldest first, in place of pixels; number 0 is blank
and precedes the first frame of an episode.  A number is reused once neither a memory nor a world refers to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_FRAMES: Final = 1 << 24
"""Maximum number of stored frames, whose numbers single precision must represent exactly."""
_FIRST_SWEEP_SIZE: Final = 4096
"""Number of stored frames at the first search for unused ones."""
_SWEEP_GROWTH: Final = 1.25
"""Ratio of stored to used frames at the next search; it bounds both search time and memory use."""

Pixels = NDArray[np.uint8]
Numbers = NDArray[np.floating]


class FrameStore:
    """Frames of all trials; the memory taken grows with the number of frames in use."""

    def __init__(self, size: int, max_used_frames: int, *, first_sweep_size: int = _FIRST_SWEEP_SIZE) -> None:
        """``size``: bytes of a frame; ``max_used_frames``: maximum number of frames in use at a time;
        ``first_sweep_size`` is for tests.

        Raises ValueError if more than ``MAX_FRAMES`` would be needed.
        """
        capacity = int(max(max_used_frames, first_sweep_size) * _SWEEP_GROWTH) + 2
        if capacity > MAX_FRAMES:
            raise ValueError(
                f"{max_used_frames} frames at a time are too many: expected at most {int(MAX_FRAMES / _SWEEP_GROWTH)}"
            )
        self._frames: Final[Pixels] = np.zeros((capacity, size), np.uint8)  # unwritten pages use no memory
        self._free_numbers: list[int] = []
        self.n_stored = 1
        """Number of frames in memory, including the blank one and unused ones that no search has found yet."""
        self._next_sweep_size = first_sweep_size
        self.references: Final[list[Callable[[], Numbers]]] = []
        """Functions that return the frame numbers in use, one function per owner."""

    @property
    def size(self) -> int:
        """Bytes of a frame."""
        return int(self._frames.shape[1])

    def make_room(self, count: int) -> None:
        """Free unused numbers if fewer than ``count`` are free.

        Numbers to which no owner refers are freed, so call this only between steps.
        """
        if len(self._free_numbers) >= count or self.n_stored + count <= self._next_sweep_size:
            return
        is_used = np.zeros(self.n_stored, np.bool_)
        is_used[0] = True
        for numbers in self.references:
            is_used[numbers().astype(np.int64).reshape(-1)] = True
        self._free_numbers = np.flatnonzero(~is_used).tolist()
        self._next_sweep_size = min(
            max(self._next_sweep_size, int(is_used.sum() * _SWEEP_GROWTH) + count), len(self._frames)
        )

    def add(self, frame: Pixels) -> int:
        """Store a frame (any shape of ``size`` bytes) and return its number; call ``make_room`` first."""
        number = self._free_numbers.pop() if self._free_numbers else self.n_stored
        self.n_stored = max(self.n_stored, number + 1)
        self._frames[number] = frame.reshape(-1)
        return number

    def read(self, numbers: Numbers) -> Pixels:
        """Return the frames (..., size) with these numbers (...)."""
        return self._frames[numbers.astype(np.int64)]


class FrameStack:
    """Numbers of the last frames in each of E episodes."""

    def __init__(self, store: FrameStore, episodes: int, frames: int) -> None:
        """``frames``: number of frames in an observation."""
        self._store = store
        self.numbers: Final[NDArray[np.float32]] = np.zeros((episodes, frames), np.float32)
        """(E, frames), oldest first."""
        store.references.append(lambda: self.numbers)

    def make_room(self) -> None:
        """Prepare the store for one more frame of every episode."""
        self._store.make_room(len(self.numbers))

    def push(self, episode: int, frame: Pixels, *, is_first: bool) -> None:
        """Append a frame to an episode, or begin one with it."""
        numbers = self.numbers[episode]
        numbers[:-1] = 0.0 if is_first else numbers[1:]
        numbers[-1] = self._store.add(frame)
