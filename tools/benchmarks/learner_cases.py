"""What ``onrig bench learner`` measures, and the message that asks for it."""

from __future__ import annotations

import enum
from typing import Final, Literal

import msgspec

from onrig.learner.ddpg_config import DdpgConfig
from onrig.tools.benchmarks.cases import Shape

ONRIG: Final = "onrig"
PEER: Final = "stable-baselines3"
LIMIT: Final = "torch"
"""Bare matrix products: what the machine gives."""
SUBJECTS: Final = (ONRIG, PEER, LIMIT)

STORED: Final = 10_000
"""Transitions in each trial's memory."""
LARGE: Final = 1024
"""Rows and columns of the large product."""

Network = Literal["small", "ddpg_original"]


class Work(enum.Enum):
    """What is timed."""

    UPDATE = "update"
    """On minibatches that are there already."""
    SAMPLED = "sample and update"
    """With drawing and gathering the minibatches."""
    PRODUCTS = "products alone"
    """The matrix products of the updates, padded, one after the other, and nothing else."""
    LARGE = "large product"


class LearnerCase(msgspec.Struct, frozen=True):
    """One figure for every subject that has what it takes."""

    work: Work
    network: Network
    shape: Shape
    trials: int

    @property
    def title(self) -> str:
        """Name it as it stands in the report."""
        where = f"{self.network}, {self.shape}"
        if self.work is Work.LARGE:
            return f"{self.work.value}, {LARGE} x {LARGE}, beside {where}"
        return f"{self.work.value}, {where}, {self.trials} trial{'s' if self.trials > 1 else ''}"

    @property
    def subjects(self) -> tuple[str, ...]:
        """Who can do it: the peer knows no trial axis."""
        if self.work in (Work.PRODUCTS, Work.LARGE):
            return (LIMIT,)
        return (ONRIG, PEER) if self.trials == 1 else (ONRIG,)

    @property
    def unit(self) -> str:
        """What its rates are in."""
        return "gflop_per_s" if LIMIT in self.subjects else "trial_updates_per_s"

    @property
    def rig(self) -> str:
        """Name of the configuration of these sizes."""
        return "magman" if self.shape == MAGMAN else "pendulum"

    @property
    def config(self) -> DdpgConfig:
        """The learner that is measured: batch, gamma, tau, rates and decay of 000."""
        return DdpgConfig(network=self.network)


class Time(msgspec.Struct, frozen=True, tag=True):
    """Time calls of one case, each of ``updates`` updates, until ``calls`` or ``limit_ns`` are used up."""

    case: LearnerCase
    updates: int
    calls: int
    limit_ns: int
    seed: int


def group(network: Network, shape: Shape, trials: tuple[int, ...]) -> tuple[LearnerCase, ...]:
    """Return the cases that take turns with each other."""
    works = (Work.UPDATE, Work.SAMPLED, Work.PRODUCTS)
    cases = [LearnerCase(work, network, shape, n) for work in works for n in trials]
    return (*cases, LearnerCase(Work.LARGE, network, shape, 1))


PENDULUM: Final = Shape(2, 1)
MAGMAN: Final = Shape(2, 4)
TRIALS: Final = (1, 16, 50)
GROUPS: Final = (
    group("small", PENDULUM, TRIALS),
    group("small", MAGMAN, TRIALS),
    group("ddpg_original", PENDULUM, (1,)),
    group("ddpg_original", MAGMAN, (1,)),
)


class Play(msgspec.Struct, frozen=True, tag=True):
    """Put trials of one strategy where they are after ``done`` episodes, and time ``episodes`` whole ones."""

    strategy: str
    trials: int
    done: int
    episodes: int


class Ride(msgspec.Struct, frozen=True):
    """Whole episodes of one strategy, and the most minutes that all of them may take."""

    strategy: str
    bound_minutes: float


RIDES: Final = (
    Ride("FIFO[Uniform]", 20.0),
    Ride("FULL[Uniform]", 20.0),
    Ride("FULL[PER]", 40.0),
    Ride("TDE(1.0)[Uniform]", 20.0),
)
RIDE_TRIALS: Final = 50
RIDE_EPISODES: Final = 3000
WARM_UP: Final = 1
"""Episodes at each point that do not count."""
