"""Positions that the loop stored between episodes, as recorded in a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from onrig.runtime.random_streams import device_seed
from onrig.runtime.record import Kind
from onrig.runtime.tracking import PLANT_ROLES
from onrig.tools.replaying.recorded import RecordedStep


class Position(NamedTuple):
    """State that the loop stored between two episodes."""

    explorer: Mapping[str, float]
    """State of the exploration; empty at the start of a run."""
    closed: tuple[Kind, int]
    """Kind and number of the last closed episode."""
    numbered: tuple[tuple[int, int], ...] = ()
    """Latest seeds from a trainer, each with the number of episodes before the first one that uses it."""


class Positions:
    """Recorded positions of one session, and the seed and numbering of the random draws that they determine."""

    def __init__(self, seed: int) -> None:
        self._run_seed: Final = seed
        self._by_tick: dict[int, Position] = {}
        self._seed, self._episodes_before_seed = seed, 0
        self.last_closed = (Kind.TRAIN, 0)
        """Kind and number of the last closed episode."""

    @property
    def numbering(self) -> tuple[int, int]:
        """Seed of starts and targets, and the number of episodes before the first one that uses it."""
        return self._seed, self._episodes_before_seed

    def add(self, tick: int, position: Position) -> None:
        """Add the position recorded before record number ``tick``."""
        self._by_tick[tick] = position

    def take(self, record: RecordedStep) -> Position | None:
        """Return the position recorded before an episode's first record, if any, and drop earlier positions."""
        position = self._by_tick.pop(record.step.tick, None)
        if position is not None:
            self.last_closed = position.closed
        self._set_numbering(record, position)
        for tick in [t for t in self._by_tick if t < record.step.tick]:
            del self._by_tick[tick]
        return position

    def _set_numbering(self, record: RecordedStep, position: Position | None) -> None:
        """Set the seed of the episode's random draws.

        Before this episode's records, a log may contain the next position instead of this one. The next position's seed
        also applies, provided that the trainer set it before the episode.
        """
        number = record.step.episode + (record.step.kind is Kind.RESET)
        seeds = [numbered for p in (position, *self._by_tick.values()) if p is not None for numbered in p.numbered]
        earlier_seeds = [numbered for numbered in seeds if numbered[1] < number]
        if earlier_seeds:
            self._seed, self._episodes_before_seed = max(earlier_seeds, key=lambda numbered: numbered[1])
        elif position is not None:
            self._seed, self._episodes_before_seed = self._run_seed, 0

    def device_seed(self, kind: Kind, episode: int) -> int:
        """Return the seed of an episode's start and plant."""
        return device_seed(self._seed, PLANT_ROLES[kind], episode - self._episodes_before_seed)
