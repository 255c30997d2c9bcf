"""What ``onrig bench learner`` measures, and the floating-point operations of an update: its matrix products."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from onrig.learner.ddpg_config import DdpgConfig
from onrig.learner.networks import NETWORK_SIZES, Layer, actor_layout, critic_layout, padded
from onrig.tools.bench.replay.cases import Shape

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
        """The learner that is measured: batch, gamma, tau, step sizes and decay as in de Bruin et al. 2018."""
        return DdpgConfig(network=self.network)


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


class Product(NamedTuple):
    """(rows, inner) times (inner, columns)."""

    rows: int
    inner: int
    columns: int

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns


class _Sizes(NamedTuple):
    """One layer as products see it."""

    inputs: int
    """What the layer below hands on: the width of the gradient that goes back to it."""
    rows: int
    """Inputs, actions and bias."""
    columns: int
    actions: int
    """Rows of the actions that enter here."""


def products(case: LearnerCase, *, padding: bool) -> list[Product]:
    """List the products of one update of one trial, as ``learner.ddpg`` does them.

    Both policies and the three passes through the critics (that of the policy's actions only where it differs from the
    other), then the gradients.  Without ``padding`` the sizes are those of the networks, with it those of the blocks.
    """
    n, m = case.shape.n_obs, case.shape.n_act
    size = NETWORK_SIZES[case.network]
    actor = [_sizes(layer, padding) for layer in actor_layout(n, m, size.actor).layers]
    critic = [_sizes(layer, padding) for layer in critic_layout(n, m, size.critic).layers]
    batch = padded(case.config.batch) if padding else case.config.batch
    return [*_actor(actor, batch), *_critic(critic, batch)]


def _sizes(layer: Layer, padding: bool) -> _Sizes:
    if padding:
        return _Sizes(layer.rows, layer.rows, layer.cols, padded(layer.action_rows))
    return _Sizes(layer.inputs, layer.inputs + layer.action_rows + 1, layer.outputs, layer.action_rows)


def _actor(layers: list[_Sizes], batch: int) -> Iterator[Product]:
    for i, layer in enumerate(layers):
        yield from 2 * [Product(batch, layer.rows, layer.columns)]
        yield Product(layer.rows, batch, layer.columns)
        if i > 0:
            yield Product(batch, layer.columns, layer.inputs)


def _critic(layers: list[_Sizes], batch: int) -> Iterator[Product]:
    last = len(layers) - 1
    for i, layer in enumerate(layers):
        # On (s, a) and (s', pi-(s')); the gradient of the parameters.
        yield from 2 * [Product(batch, layer.rows, layer.columns)]
        yield Product(layer.rows, batch, layer.columns)
        if i == 1:  # where the actions enter: forwards to (s, pi(s)), back from it to the action
            yield Product(batch, layer.actions, layer.columns)
            yield Product(batch, layer.columns, layer.actions)
        if 1 < i < last:  # on (s, pi(s)), forwards and back
            yield Product(batch, layer.rows, layer.columns)
            yield Product(batch, layer.columns, layer.inputs)
        if 0 < i < last:
            yield Product(batch, layer.columns, layer.inputs)


def mega_flop(case: LearnerCase, *, padding: bool) -> float:
    """Return the millions of floating-point operations of one trial-update."""
    return sum(product.flop for product in products(case, padding=padding)) / 1e6
