"""The libraries that ``onrig bench replay`` measures, each behind the same small seam; ``onrig`` is one of them.

Every library is used by its quickest documented way for single transitions.  It is given them in its own currency
(a TensorDict, a Batch, rows with an environment axis), made outside the clock, and hands out samples in its own form.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from onrig.tools.benchmarks.transitions import INSERTS, POOL, UPDATES, Errors, Floats, Transitions

ALPHA: Final = 0.6
BETA: Final = 0.4
"""Exponents of proportional PER, for every library alike."""

MODULES: Final = {
    "onrig": "onrig",
    "cpprb": "cpprb",
    "torchrl": "torchrl",
    "stable-baselines3": "stable_baselines3",
    "tianshou": "tianshou",
}
"""Module of this folder for each package."""


class Unavailable(Exception):
    """The library is installed and cannot do this here; says why."""


class Columns(NamedTuple):
    """A sample, field by field, as arrays."""

    observation: Floats
    action: Floats
    reward: Floats
    next_observation: Floats
    terminated: NDArray[np.generic]


class Buffer(ABC):
    """One memory of a library; FIFO, so that transition i lies in slot i % capacity, where nothing else is said."""

    @abstractmethod
    def extend(self, t: Transitions) -> None:
        """Take transitions, as quickly as the library can (not timed)."""

    @abstractmethod
    def assign(self, slots: NDArray[np.int64], td: Floats) -> None:
        """Give ``slots`` (n,) the absolute TD errors ``td`` (n,), where sampling goes by them (not timed)."""

    @abstractmethod
    def law(self, td: Floats) -> NDArray[np.float64]:
        """Return how likely each slot of the full memory is to be drawn once all have these errors, as declared."""

    @abstractmethod
    def columns(self) -> Columns:
        """Draw one minibatch and take the sample apart (not timed)."""

    @abstractmethod
    def prepare(self, t: Transitions, e: Errors) -> None:
        """Put transitions and minibatches of errors into the library's currency, ``POOL`` of each."""

    @abstractmethod
    def insert(self, i: int) -> object:
        """Insert prepared transition ``i``; ``SKIPPED`` if it was not kept."""

    @abstractmethod
    def sample(self, size: int) -> object:
        """Draw ``size`` transitions with all their columns."""

    @abstractmethod
    def update(self, i: int) -> None:
        """Take the errors of prepared minibatch ``i``."""

    @abstractmethod
    def learn(self, i: int) -> None:
        """Draw a minibatch and, where sampling goes by errors, give it those of prepared minibatch ``i``."""

    def insert_drawable(self, i: int) -> object:
        """Insert prepared transition ``i`` so that the next sample may contain it."""
        return self.insert(i)

    def cycle(self, i: int) -> None:
        """Do the ``i``-th duty cycle of 000."""
        for j in range(i * INSERTS, (i + 1) * INSERTS):
            self.insert(j % POOL)
        for j in range(UPDATES):
            self.learn(j)

    def begin_round(self) -> None:  # noqa: B027 most have nothing to go back to
        """Go back to where inserts are as likely to be kept as at first."""

    def array_bytes(self) -> int | None:
        """Return the bytes of what it keeps, None where only the process can be weighed."""
        return None


class Library(Protocol):
    """One module of this folder."""

    def build(self, kind: str, n_obs: int, n_act: int, capacity: int, seed: int) -> Buffer:
        """Build an empty memory; raises ``Unavailable``."""


def installed_version(package: str) -> str | None:
    """Return the version of a library, None when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def load(package: str) -> Library:
    """Import a library; raises ``Unavailable`` when that fails."""
    try:
        return cast(Library, importlib.import_module(f"onrig.tools.benchmarks.peers.{MODULES[package]}"))
    except ImportError as error:
        raise Unavailable(f"cannot be imported: {error}") from error


def uniform_law(capacity: int) -> NDArray[np.float64]:
    """Return 1 / capacity for each slot."""
    return np.full(capacity, 1.0 / capacity)


def proportional_law(td: Floats, epsilon: float) -> NDArray[np.float64]:
    """Return P(i) ~ (|TD error| + epsilon)^ALPHA for each slot."""
    priority: NDArray[np.float64] = (td.astype(np.float64) + epsilon) ** ALPHA
    law: NDArray[np.float64] = priority / priority.sum()
    return law
