"""Uniform sampling: every stored experience is as likely as every other, without replacement inside a minibatch.

As in the author's code of 000 (METHODS §1.1, SAMPLING).  A draw costs O(batch), whatever is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.samplers import Draw, State

_AHEAD: Final = 4096
"""Random numbers drawn from the generator at once: single calls would cost more than the rest of a small draw."""


class Uniform:
    """Draws slots 0 .. n-1 uniformly, from two streams (PCG64) spawned from the given one."""

    feedback: Final = False

    def __init__(self, stream: np.random.Generator) -> None:
        # Collisions are redrawn from a stream of their own, which keeps the main one in step with the draws.
        self._main, self._repair = stream.spawn(2)
        self._stored = 0
        self._refill()

    def _refill(self) -> None:
        self._before = _pack_pcg64(self._main)
        self._ahead = self._main.random(_AHEAD)
        self._used = 0

    def _take(self, count: int) -> NDArray[np.float64]:
        start, stop = self._used, self._used + count
        if stop <= _AHEAD:
            self._used = stop
            return self._ahead[start:stop]
        taken = np.concatenate((self._ahead[start:], self._main.random(stop - _AHEAD)))
        self._refill()
        return taken

    def begin_episode(self, episode: int) -> None:
        """Hear of a new episode, which does not matter here."""

    def written(self, slots: NDArray[np.int64]) -> None:
        """Hear of written slots; only their highest number matters."""
        if len(slots):
            self._stored = max(self._stored, int(slots.max()) + 1)

    def updated(self, slots: NDArray[np.int64], td: NDArray[np.floating]) -> None:
        """Hear of TD errors, which do not matter here."""

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Choose ``updates`` minibatches, slots (updates, batch), no weights.

        Raises ValueError while fewer than ``batch`` experiences are stored.
        """
        stored = self._stored
        if stored < batch:
            raise ValueError(f"cannot draw {batch} experiences without replacement from the {stored} stored")
        # floor(u * n) is below n for every u < 1, and uneven by less than n / 2**53.
        slots = (self._take(updates * batch) * stored).astype(np.int64).reshape(updates, batch)
        if updates == 1:
            if len(set(slots[0].tolist())) < batch:
                self._make_distinct(slots[0])
        else:
            ordered = np.sort(slots, axis=1)
            for row in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)):
                self._make_distinct(slots[row])
        return Draw(slots, None)

    def _make_distinct(self, row: NDArray[np.int64]) -> None:
        """Redraw whatever repeats an earlier entry until nothing does.

        This treats all slots alike and ends in distinct ones, so every distinct outcome is equally likely.
        """
        if 2 * len(row) > self._stored:
            row[:] = self._repair.permutation(self._stored)[: len(row)]
            return
        seen: set[int] = set()
        for i, slot in enumerate(row.tolist()):
            if slot in seen:
                while slot in seen:
                    slot = int(self._repair.random() * self._stored)
                row[i] = slot
            seen.add(slot)

    def state(self) -> State:
        """Copy out the streams, the place within the numbers drawn ahead, and how much is stored."""
        return {
            "stream": self._before,
            "repair": _pack_pcg64(self._repair),
            "used": np.array(self._used, dtype=np.int64),
            "stored": np.array(self._stored, dtype=np.int64),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Go on from a state of ``state()``: the next draws are the same."""
        _unpack_pcg64(self._main, state["stream"])
        _unpack_pcg64(self._repair, state["repair"])
        self._refill()
        self._used = int(state["used"])
        self._stored = int(state["stored"])


def _pack_pcg64(stream: np.random.Generator) -> NDArray[np.uint64]:
    """Write a PCG64 state as six words: two 128-bit integers, then the half-used 32-bit output."""
    state = stream.bit_generator.state
    words = [n >> shift & (2**64 - 1) for n in (state["state"]["state"], state["state"]["inc"]) for shift in (64, 0)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def _unpack_pcg64(stream: np.random.Generator, packed: NDArray[np.generic]) -> None:
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in packed)
    stream.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
