"""Episodes of a log as gapless sequences of transitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.transitions import is_consecutive, shares_episode
from onrig.runtime.record import Flag, Kind

Records = NDArray[np.void]
End = Literal["terminated", "truncated", "gap", "unfinished"]


class Piece(NamedTuple):
    """Consecutive records of one episode: n + 1 observations, including the final one, and the n steps between them."""

    episode: int
    kind: Kind
    part: int
    """Index of the piece within its episode; greater than 0 only after missing frames."""
    records: Records
    """(n + 1,) records; the decisions in the last one belong to no step."""
    end: End
    """``terminated``, ``truncated`` (time limit, stop or fault), ``gap`` (a frame is missing after the last
    observation) or ``unfinished`` (the log ends here)."""

    @property
    def steps(self) -> int:
        """Number of transitions."""
        return len(self.records) - 1

    @property
    def terminated(self) -> NDArray[np.bool_]:
        """Whether each step led to a terminal state, (n,)."""
        return self._end_flags(self.end == "terminated")

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Whether the data end after each step although the state is not terminal, (n,)."""
        return self._end_flags(self.end != "terminated")

    def _end_flags(self, value: bool) -> NDArray[np.bool_]:
        flags = np.zeros(self.steps, np.bool_)
        flags[-1] = value
        return flags


def pieces(batches: Iterable[Records]) -> Iterator[Piece]:
    """Split ordered records into the pieces of training and evaluation episodes.

    Only one piece is kept in memory at a time.
    """
    splitter = _Splitter()
    for batch in batches:
        yield from splitter.add(batch)
    yield from splitter.finish()


class _Splitter:
    def __init__(self) -> None:
        self._open_batches: list[Records] = []
        self._last_episode: tuple[int, int] = (-1, -1)
        self._part = 0

    def add(self, batch: Records) -> Iterator[Piece]:
        """Add the next records, and yield the completed pieces."""
        if not len(batch):
            return
        records = np.concatenate([self._open_batches[-1][-1:], batch]) if self._open_batches else batch
        predecessors, successors = records[:-1], records[1:]
        breaks = (
            np.flatnonzero(~(shares_episode(predecessors, successors) & is_consecutive(predecessors, successors))) + 1
        )
        start = 0
        for end in (breaks - bool(self._open_batches)).tolist():  # positions in the batch
            self._open_batches.append(batch[start:end])
            yield from self._close(is_final=False)
            start = end
        self._open_batches.append(batch[start:])

    def finish(self) -> Iterator[Piece]:
        """Yield the last piece, which ends with the log."""
        yield from self._close(is_final=True)

    def _close(self, *, is_final: bool) -> Iterator[Piece]:
        records = np.concatenate(self._open_batches) if self._open_batches else None
        self._open_batches = []
        if records is None or not len(records):
            return
        episode = int(records["episode"][0]), int(records["kind"][0])
        if len(records) < _MIN_RECORDS or episode[1] == Kind.RESET:
            return
        self._part = self._part + 1 if episode == self._last_episode else 0
        self._last_episode = episode
        flags = int(records["flags"][-1])
        if flags & Flag.TERMINATED:
            end: End = "terminated"
        elif flags & Flag.TRUNCATED:
            end = "truncated"
        else:
            end = "unfinished" if is_final else "gap"
        yield Piece(episode[0], Kind(episode[1]), self._part, records, end)


_MIN_RECORDS: Final = 2
"""Minimum number of records in a piece: those of one transition."""
