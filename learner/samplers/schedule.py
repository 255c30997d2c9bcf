"""A value that goes from one end to the other over the training episodes of a run."""

from __future__ import annotations

from typing import Final


class Linear:
    """Linear per episode: ``first`` in episode 1, ``last`` from episode ``episodes`` on (000 §3.3.2: 0.5 -> 1)."""

    def __init__(self, first: float, last: float, episodes: int) -> None:
        self.first: Final = first
        self.last: Final = last
        self.episodes: Final = episodes

    def at(self, episode: int) -> float:
        """Return the value in training episode ``episode`` (1, 2, ...)."""
        if episode >= self.episodes:
            return self.last
        return self.first + (self.last - self.first) * max(episode - 1, 0) / (self.episodes - 1)
