"""What the section of every algorithm has; reading it needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec

Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1)]
Batch = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
LogStd = Annotated[float, msgspec.Meta(ge=-20.0, le=20.0)]


class AlgorithmConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the section of every algorithm has, and what else is known of the algorithm without torch."""

    implementation: ClassVar[str]
    """Module and class in ``onrig.learner.algorithms``."""
    on_rig: ClassVar[bool] = True
    """Whether a rig can run its policies; trials on plants run those of all."""
    stochastic: ClassVar[bool] = False
    """Whether its policies draw their actions, and so explore by noise of their own."""
    noisy_weights: ClassVar[bool] = False
    """Whether trials explore by noise in its weights; a rig acts without."""
    recurrent_implementation: ClassVar[str] = ""
    """As ``implementation``, for policies that remember (``window``)."""
    single_action: ClassVar[bool] = False
    """Whether it is limited to one action dimension."""

    @property
    def successors(self) -> int:
        """Consecutive experiences that an update looks at from each one drawn, itself included."""
        return 1

    @property
    def window(self) -> int:
        """Steps of an episode that lead to a drawn experience and are learned from with it, itself included; 1 for
        policies that do not remember."""
        return 1

    under_refer: ClassVar[str] = ""
    """As ``implementation``, for where ReF-ER weighs what it learns from; empty where it cannot."""
    bounds_its_steps: ClassVar[bool] = False
    """Whether it bounds its policy's steps itself, so that ReF-ER may only measure them."""
    follows_episodes: ClassVar[bool] = False
    """Whether it looks along the episodes in the memory."""
    gives_targets: ClassVar[bool] = False
    """Whether its ``Signals`` hold targets, which some samplings look at."""

    @property
    def note_bytes(self) -> float:
        """Bytes that it notes beside each experience, those of ReF-ER left out (``ReferSettings``)."""
        return 0.0

    @property
    def needs_links(self) -> bool:
        """Whether it has to be known which experience follows which."""
        return self.follows_episodes or self.successors > 1 or self.window > 1

    @property
    def batch_steps(self) -> int:
        """Experiences that an on-policy algorithm learns from at a time, all under one policy; 0 for the others."""
        return 0

    @property
    def parallel(self) -> int:
        """Actors of a trial, which gather side by side."""
        return 1

    if TYPE_CHECKING:  # fields of every section, each in its own order
        batch: int
        gamma: float
        reward_scale: float
        """Factor on every reward before it is learned from; 1e-3 pendulum, 0.1 magman."""

    @property
    def size(self) -> str:
        """Size of the networks: a name (``network``), or units such as ``256-256`` (``hidden``)."""
        return getattr(self, "network", None) or "-".join(map(str, getattr(self, "hidden", ())))
