"""The places for connections to the page: so many, so many for one address, and who gives way where there are none.

All users of one machine are one address.  A connection that has not yet said what it wants gives way, the oldest
first, so that holding on to connections takes the page and its STOP from nobody; then one that does not read its
answer.  Pure.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

CONNECTIONS: Final = 32
PER_ADDRESS: Final = 16
"""Of them, for one address; more than there are streams, so that somebody can always give way."""

T = TypeVar("T")


class Stage(enum.IntEnum):
    """How far a connection has come; the lower gives way to the higher."""

    ARRIVING = 0
    """Its request is not whole."""
    ANSWERING = 1
    STREAMING = 2
    """It is watched; the hub bounds how many there are."""


@dataclass(eq=False)
class Place(Generic[T]):
    """One connection's place."""

    host: str
    who: T
    stage: Stage = Stage.ARRIVING


class Places(Generic[T]):
    """All of them, the oldest first; not safe for threads by itself."""

    def __init__(self) -> None:
        self._taken: list[Place[T]] = []

    def take(self, host: str, who: T) -> tuple[Place[T] | None, Place[T] | None]:
        """Give a place to ``who`` from ``host``: (it or None, the one that gave way or None)."""
        of_host = [place for place in self._taken if place.host == host]
        left = None
        if len(of_host) >= PER_ADDRESS or len(self._taken) >= CONNECTIONS:
            crowd = of_host if len(of_host) >= PER_ADDRESS else self._taken
            waiting = [place for place in crowd if place.stage is not Stage.STREAMING]
            if not waiting:
                return None, None
            left = min(waiting, key=lambda place: place.stage)  # of equals the first, which is the oldest
            self._taken.remove(left)
        place = Place(host, who)
        self._taken.append(place)
        return place, left

    def give(self, place: Place[T]) -> None:
        """Give a place back."""
        if place in self._taken:
            self._taken.remove(place)

    def of(self, who: T) -> Place[T] | None:
        """The place of a connection that has not given way."""
        return next((place for place in self._taken if place.who is who), None)
