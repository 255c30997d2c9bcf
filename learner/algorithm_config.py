"""The description of an algorithm, which is the type of its section: settings, needs, checks, memory.

It is registered under the algorithm's name (``onrig.runtime.registry``); the algorithm itself is loaded to be built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec

from onrig.runtime import registry
from onrig.runtime.run_config import RunConfig

Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1)]
Batch = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
LogStd = Annotated[float, msgspec.Meta(ge=-20.0, le=20.0)]
Hidden = Annotated[tuple[Annotated[int, msgspec.Meta(ge=1, le=4096)], ...], msgspec.Meta(min_length=1, max_length=8)]
"""Units of each hidden layer."""


class AlgorithmConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of an algorithm; a subclass adds its settings as fields."""

    home: ClassVar[str]
    """Module and class, as in ``onrig.learner.algorithms.sac:Sac``."""
    on_rig: ClassVar[bool] = True
    """Whether a rig can run its policies; trials on plants run those of all."""
    stochastic: ClassVar[bool] = False
    """Whether its policies draw their actions, and so explore by noise of their own."""
    noisy_weights: ClassVar[bool] = False
    """Whether trials explore by noise in its weights; a rig acts without."""
    single_action: ClassVar[bool] = False
    """Whether it is limited to one action dimension."""

    @property
    def successors(self) -> int:
        """Consecutive experiences per update, from the drawn one on, itself included."""
        return 1

    @property
    def window(self) -> int:
        """Steps of an episode that lead to a drawn experience and are learned from with it, itself included; 1 for
        policies that do not remember."""
        return 1

    home_under_refer: ClassVar[str] = ""
    """As ``home``, for where ReF-ER weighs what it learns from; empty where it cannot."""
    bounds_its_steps: ClassVar[bool] = False
    """Whether it bounds its policy's steps itself, so that ReF-ER may only measure them."""
    follows_episodes: ClassVar[bool] = False
    """Whether it follows episodes in the memory."""
    exact_alone: ClassVar[bool] = True
    """Whether a trial among others has the bits that it has alone; without, ``onrig check`` asks for 1e-3 of them."""
    provides_targets: ClassVar[bool] = False
    """Whether its ``Signals`` hold targets, which some samplers require."""

    @property
    def note_bytes(self) -> float:
        """Bytes of its notes per experience, without those of ReF-ER (``ReferSettings``)."""
        return 0.0

    @property
    def needs_links(self) -> bool:
        """Whether it needs the successor of each experience."""
        return self.follows_episodes or self.successors > 1 or self.window > 1

    @property
    def batch_steps(self) -> int:
        """Batch size of an on-policy algorithm, all under one policy; 0 for off-policy ones."""
        return 0

    @property
    def parallel(self) -> int:
        """Parallel actors of a trial."""
        return 1

    @property
    def replays(self) -> int:
        """Mean number of updates per experience of an on-policy algorithm."""
        return 1

    def home_of(self, *, refers: bool) -> str:
        """Module and class for these settings, with or without ReF-ER."""
        return self.home_under_refer if refers else self.home

    def problems(self) -> Iterator[tuple[str, str]]:
        """List contradictions between the settings, as (path in the section, message)."""
        return iter(())

    def rig_problems(self) -> Iterator[tuple[str, str]]:
        """List settings that have no effect on a rig, as (path in the section, message)."""
        return iter(())

    def run_problems(self, name: str, run: RunConfig, capacity: int) -> Iterator[tuple[str, str]]:
        """List (path in the run, message) of what in a run on a rig keeps the algorithm of this name from learning.

        ``capacity``: experiences in the memory; 0 if that is not valid.
        """
        return iter(())

    if TYPE_CHECKING:  # fields of every section, each in its own order
        batch: int
        gamma: float
        reward_scale: float
        """Factor on every reward before it is learned from; 1e-3 pendulum, 0.1 magman."""

    @property
    def size(self) -> str:
        """Size of the networks: a name (``network``), or units such as ``256-256`` (``hidden``)."""
        return getattr(self, "network", None) or "-".join(map(str, getattr(self, "hidden", ())))


def algorithm_names() -> tuple[str, ...]:
    """Names of all algorithms."""
    return registry.names(registry.ALGORITHMS)


def defaults_of(name: str) -> AlgorithmConfig:
    """An algorithm's section with its defaults; raises KeyError for an unknown name."""
    section: Callable[[], AlgorithmConfig] = registry.load(registry.ALGORITHMS, name)
    return section()


def algorithms_where(holds: Callable[[AlgorithmConfig], bool]) -> str:
    """Names of the algorithms whose sections satisfy a condition, for a message."""
    described: dict[str, Callable[[], AlgorithmConfig]] = registry.loadable(registry.ALGORITHMS)
    return ", ".join(name for name, section in described.items() if holds(section()))
