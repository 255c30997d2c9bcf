"""Uniform random numbers, drawn in blocks to save numpy calls, and the states of PCG64 generators as words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

BLOCK_SIZE: Final = 512
ARRAY_BLOCK_SIZE: Final = 4096
UNIFORMS_BYTES: Final = 32 * BLOCK_SIZE
"""Upper bound on the memory of ``Uniforms``: a block of Python floats and their list."""
_WORD_MASK: Final = (1 << 64) - 1


class Uniforms:
    """Uniform numbers over [0, 1) from a PCG64 generator that nothing else uses; its state is a small array."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Take over ``rng``; raises ValueError unless it is a PCG64 generator (like ``np.random.default_rng``)."""
        _check_pcg64(rng)
        self._rng: Final = rng
        self._block_start_state: NDArray[np.uint64] = np.zeros(4, np.uint64)
        self._block: list[float] = []
        self._position = 0

    def next(self) -> float:
        """Return the next number."""
        index = self._position
        if index == len(self._block):
            self._refill()
            index = 0
        self._position = index + 1
        return self._block[index]

    def _refill(self) -> None:
        self._block_start_state = generator_state(self._rng)
        self._block = self._rng.random(BLOCK_SIZE).tolist()
        self._position = 0

    def state(self) -> NDArray[np.uint64]:
        """Return the position in the stream, (5,) uint64."""
        if not self._block:
            return np.append(generator_state(self._rng), np.uint64(0))
        return np.append(self._block_start_state, np.uint64(self._position))

    def restore(self, state: NDArray[np.uint64]) -> None:
        """Continue from ``state``."""
        set_generator_state(self._rng, state[:4])
        self._refill()
        self._position = int(state[4])


class UniformRows:
    """Counterpart of :class:`Uniforms` for several generators that advance together; it returns arrays."""

    def __init__(self, rngs: Sequence[np.random.Generator]) -> None:
        """Take over ``rngs``; raises ValueError unless they are PCG64 generators."""
        for rng in rngs:
            _check_pcg64(rng)
        self._rngs: Final = rngs
        self._refill()

    def _refill(self) -> None:
        self._block_start_state = [generator_state(rng) for rng in self._rngs]
        self._block = np.stack([rng.random(ARRAY_BLOCK_SIZE) for rng in self._rngs])
        self._position = 0

    def take(self, n: int) -> NDArray[np.float64]:
        """Return the next ``n`` numbers of each generator, (generators, n), read-only by convention."""
        start = self._position
        end = start + n
        if end <= ARRAY_BLOCK_SIZE:
            self._position = end
            return self._block[:, start:end]
        new_block = np.stack([rng.random(end - ARRAY_BLOCK_SIZE) for rng in self._rngs])
        numbers = np.concatenate((self._block[:, start:], new_block), axis=1)
        self._refill()
        return numbers

    def state(self) -> NDArray[np.uint64]:
        """Return the first generator's position in its stream, (5,) uint64."""
        return np.append(self._block_start_state[0], np.uint64(self._position))

    def restore(self, state: NDArray[np.uint64]) -> None:
        """Continue from ``state``; requires that there is only one generator."""
        (rng,) = self._rngs
        set_generator_state(rng, state[:4])
        self._refill()
        self._position = int(state[4])


class UniformArrays(UniformRows):
    """Counterpart of :class:`Uniforms` that returns arrays of ``n`` numbers."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Take over ``rng``; raises ValueError unless it is a PCG64 generator."""
        super().__init__([rng])

    def take(self, n: int) -> NDArray[np.float64]:
        """Return the next ``n`` numbers, (n,), read-only by convention."""
        start = self._position
        end = start + n
        if end > ARRAY_BLOCK_SIZE:
            row: NDArray[np.float64] = super().take(n)[0]
            return row
        self._position = end
        return self._block[0, start:end]


def _check_pcg64(rng: np.random.Generator) -> None:
    if not isinstance(rng.bit_generator, np.random.PCG64):
        raise ValueError(f"the generator runs on {type(rng.bit_generator).__name__}, expected PCG64")


def generator_state(rng: np.random.Generator) -> NDArray[np.uint64]:
    """Return state and increment of a PCG64 generator that has only drawn complete doubles: (4,), low words first."""
    return stream_words(rng)[[1, 0, 3, 2]]


def set_generator_state(rng: np.random.Generator, state: NDArray[np.uint64]) -> None:
    """Restore a PCG64 generator from the result of ``generator_state``."""
    restore_stream(rng, np.append(state[[1, 0, 3, 2]], np.zeros(2, np.uint64)))


def stream_words(rng: np.random.Generator) -> NDArray[np.uint64]:
    """Return the full state of a PCG64 generator, (6,): two 128-bit integers, then the half-used 32-bit output."""
    state = rng.bit_generator.state
    numbers = state["state"]["state"], state["state"]["inc"]
    words = [number >> shift & _WORD_MASK for number in numbers for shift in (64, 0)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def stack_stream_words(streams: Sequence[np.random.Generator]) -> NDArray[np.uint64]:
    """Return the ``stream_words`` of several generators, (S, 6)."""
    return np.stack([stream_words(stream) for stream in streams])


def restore_streams(streams: Sequence[np.random.Generator], words: NDArray[np.generic]) -> None:
    """Restore generators from the result of ``stack_stream_words``; raises ValueError if their number differs."""
    for stream, stream_state in zip(streams, words, strict=True):
        restore_stream(stream, stream_state)


def restore_stream(rng: np.random.Generator, words: NDArray[np.generic]) -> None:
    """Restore a PCG64 generator from the result of ``stream_words``."""
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in words)
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
