"""Cases of ``python -m tests.lab.learner``: cost of an update in matrix products, rates of the rounds, bounds."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence
from functools import cache
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from onrig.learner.algorithms import algorithm_for
from onrig.learner.algorithms.traced import TracedAlgorithm
from onrig.learner.settings import LearnerSettings, learner_settings
from onrig.learner.tape.operations import OPERATIONS, Kind
from onrig.tools.bench.replay.cases import Shape
from onrig.tools.bench.report import Check, Row, check_at_least, percentiles
from onrig.tools.workers import Unavailable

ONRIG: Final = "onrig"
PEER: Final = "stable-baselines3"
JAX_PEER: Final = "sbx-rl"
"""Stable-Baselines3's algorithms on JAX, compiled, with all updates of a call in one loop."""
LIMIT: Final = "torch"
"""Bare matrix products: the limit of the machine."""

MODULES: Final = {ONRIG: "onrig", PEER: "stable_baselines3", JAX_PEER: "sbx", LIMIT: "torch"}

STORED: Final = 10_000
"""Number of transitions in each trial's memory."""
LARGE: Final = 1024
"""Number of rows and columns of the large product."""

Network = Literal["small", "ddpg_original", "64-64", "256-256"]
"""Named sizes for DDPG, numbers of units for the others, whose batch size equals the layer size."""


class Work(enum.Enum):
    """Timed work."""

    UPDATE = "update"
    """Updates on prepared minibatches."""
    SAMPLED = "sample and update"
    """Updates including the sampling and gathering of minibatches."""
    PRODUCTS = "products alone"
    """Only the matrix products of the updates, in sequence."""
    LARGE = "large product"


class LearnerCase(msgspec.Struct, frozen=True):
    """One measurement, made for every subject that supports it."""

    work: Work
    network: Network
    shape: Shape
    trials: int
    algorithm: str = "ddpg"

    @property
    def title(self) -> str:
        """Name in the report."""
        name = "" if self.algorithm == "ddpg" else f"{self.algorithm.upper()} "
        where = f"{name}{self.network}, {self.shape}"
        if self.work is Work.LARGE:
            return f"{self.work.value}, {LARGE} x {LARGE}, beside {where}"
        return f"{self.work.value}, {where}, {self.trials} trial{'s' if self.trials > 1 else ''}"

    @property
    def subjects(self) -> tuple[str, ...]:
        """Subjects that support it; the peers have no trial axis."""
        if self.work in (Work.PRODUCTS, Work.LARGE):
            return (LIMIT,)
        if self.trials > 1:
            return (ONRIG,)
        return (ONRIG, PEER) if self.algorithm == "ddpg" else (ONRIG, PEER, JAX_PEER)

    @property
    def unit(self) -> str:
        """Unit of its rates."""
        return "gflop_per_s" if LIMIT in self.subjects else "trial_updates_per_s"

    @property
    def rig(self) -> str:
        """Name of the configuration of these sizes."""
        return "magman" if self.shape == MAGMAN else "pendulum"

    @property
    def settings(self) -> LearnerSettings:
        """Settings of the measured learner; for DDPG those of de Bruin et al. 2018."""
        section: dict[str, object] = {"network": self.network}
        if self.algorithm != "ddpg":
            units = [int(width) for width in self.network.split("-")]
            section = {"hidden": units, "batch": units[0]}
        return learner_settings({"algorithm": self.algorithm, self.algorithm: section})

    @property
    def single_trial(self) -> LearnerCase:
        """The same case with one trial."""
        return msgspec.structs.replace(self, trials=1)


def group(network: Network, shape: Shape, trials: tuple[int, ...]) -> tuple[LearnerCase, ...]:
    """Return a group of cases that are measured alternately."""
    works = (Work.UPDATE, Work.SAMPLED, Work.PRODUCTS)
    cases = [LearnerCase(work, network, shape, n) for work in works for n in trials]
    return (*cases, LearnerCase(Work.LARGE, network, shape, 1))


PENDULUM: Final = Shape(2, 1)
MAGMAN: Final = Shape(2, 4)
TRIALS: Final = (1, 16, 50)
_SIZES: Final[dict[Network, tuple[int, ...]]] = {"256-256": (1,), "64-64": (1, 16)}
GROUPS: Final = (
    group("small", PENDULUM, TRIALS),
    group("small", MAGMAN, TRIALS),
    group("ddpg_original", PENDULUM, (1,)),
    group("ddpg_original", MAGMAN, (1,)),
    *(
        tuple(LearnerCase(Work.SAMPLED, network, PENDULUM, n, algorithm) for n in trials)
        for algorithm in ("td3", "sac")
        for network, trials in _SIZES.items()
    ),
)


class StrategyRun(msgspec.Struct, frozen=True):
    """Complete episodes of one strategy, and an upper bound in minutes on the full experiment."""

    strategy: str
    bound_minutes: float


STRATEGY_RUNS: Final = (
    StrategyRun("FIFO[Uniform]", 20.0),
    StrategyRun("FULL[Uniform]", 20.0),
    StrategyRun("FULL[PER]", 40.0),
    StrategyRun("TDE(1.0)[Uniform]", 20.0),
)
STRATEGY_TRIALS: Final = 50
STRATEGY_EPISODES: Final = 3000
WARM_UP: Final = 1
"""Number of warm-up episodes at each point."""


class Product(NamedTuple):
    """Product of (rows, inner) and (inner, columns)."""

    rows: int
    inner: int
    columns: int

    @property
    def flop(self) -> int:
        """Number of multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns


@cache
def products(case: LearnerCase) -> tuple[Product, ...]:
    """Return the matrix products of one update of one trial, as its program lists them."""
    algorithm = algorithm_for(case.settings, case.shape.n_obs, case.shape.n_act, [np.random.default_rng(0)])
    if not isinstance(algorithm, TracedAlgorithm):
        raise Unavailable(f"{case.algorithm} is not a tape program")
    listed = [op for op in algorithm.program.operations if OPERATIONS[op["code"]].kind is Kind.PRODUCT]
    return tuple(Product(int(op["rows"]), int(op["inner"]), int(op["cols"])) for op in listed)


def mega_flop(case: LearnerCase) -> float:
    """Return the millions of floating-point operations in the products of one trial-update."""
    return sum(product.flop for product in products(case)) / 1e6


class Throughput(NamedTuple):
    """Rates of one case and subject, in the case's unit."""

    rounds: tuple[float, ...]
    """Median of each round."""
    all: tuple[float, ...]
    """Rate of every repetition."""

    @property
    def p50(self) -> float:
        """Median over all repetitions."""
        return statistics.median(self.all)


Rates = dict[tuple[LearnerCase, str], Throughput]
_TIMES_FASTER: Final = {
    ("ddpg", "small", 1): {PEER: 4.0},
    ("ddpg", "small", 16): {PEER: 28.0},
    ("ddpg", "small", 50): {PEER: 35.0},
    ("sac", "64-64", 1): {PEER: 20.0, JAX_PEER: 1.2},
    ("td3", "64-64", 1): {PEER: 15.0, JAX_PEER: 1.2},
    ("sac", "64-64", 16): {ONRIG: 0.9},
    ("td3", "64-64", 16): {ONRIG: 0.9},
    ("sac", "256-256", 1): {PEER: 1.0 / 1.05, JAX_PEER: 1.0},
    ("td3", "256-256", 1): {PEER: 1.0 / 1.05, JAX_PEER: 1.0},
}
"""Minimum ratio of trial-updates per second to a subject's single trial, by algorithm, network and number of trials."""


def throughput(case: LearnerCase, updates: int, rounds: Sequence[Sequence[int]]) -> Throughput:
    """Convert processor times of calls in ns, one sequence per round, to rates; raises ValueError without any."""
    if not any(rounds):
        raise ValueError("no durations")
    done = work_of_call(case, updates)
    rates = [[done / (ns / 1e9) for ns in of_round] for of_round in rounds if of_round]
    return Throughput(tuple(statistics.median(r) for r in rates), tuple(rate for r in rates for rate in r))


def work_of_call(case: LearnerCase, updates: int) -> float:
    """Return the work of one call: trial-updates, or Gflop for rates in Gflop/s."""
    match case.work:
        case Work.LARGE:
            return 2 * LARGE**3 / 1e9
        case Work.PRODUCTS:
            return mega_flop(case) * updates * case.trials / 1e3
    return float(updates * case.trials)


def row(case: LearnerCase, subject: str, rates: Throughput) -> Row:
    """Return the report's row."""
    return percentiles(case.title, subject, case.unit, rates.all)


def times_faster(rates: Rates, case: LearnerCase, subject: str = PEER) -> float | None:
    """Return the ratio of our rate to that of a subject's single trial: median over paired rounds."""
    ours, theirs = rates.get((case, ONRIG)), rates.get((case.single_trial, subject))
    if ours is None or theirs is None:
        return None
    return statistics.median(a / b for a, b in zip(ours.rounds, theirs.rounds, strict=False))


class Share(NamedTuple):
    """Floating-point rate of an update relative to the machine's limits."""

    mega_flop: float
    """Work of one trial-update."""
    gflop_per_s: float
    of_large: float
    """Fraction of the rate of one large product."""
    of_products: float
    """Fraction of the rate of the same small products in isolation."""


def share(rates: Rates, case: LearnerCase) -> Share | None:
    """Compare an update with bare products of the same rounds; None if they were not measured."""
    where = (case.network, case.shape)
    ours = rates.get((case, ONRIG))
    large = rates.get((LearnerCase(Work.LARGE, *where, 1), LIMIT))
    small = rates.get((LearnerCase(Work.PRODUCTS, *where, case.trials), LIMIT))
    if ours is None or large is None or small is None:
        return None
    rate = ours.p50 * mega_flop(case) / 1e3
    return Share(mega_flop(case), rate, rate / large.p50, rate / small.p50)


def share_rows(rates: Rates) -> list[Row]:
    """Return the updates' floating-point rates as rows of the report."""
    rows = []
    for case, subject in rates:
        if subject == ONRIG and case.work is Work.UPDATE:
            giga_flop = mega_flop(case) / 1e3
            done = np.array(rates[case, ONRIG].all) * giga_flop
            rows.append(percentiles(f"matrix products of {case.title}", ONRIG, "gflop_per_s", done))
    return rows


def speed_checks(rates: Rates) -> list[Check]:
    """Bounds on speed in comparable cases, all including the sampling of minibatches."""
    checks = []
    for case, subject in rates:
        if subject != ONRIG or case.work is not Work.SAMPLED:
            continue
        for of, bound in _TIMES_FASTER.get((case.algorithm, case.network, case.trials), {}).items():
            ratio = times_faster(rates, case, of)
            if ratio is not None:
                checks.append(check_at_least(f"{case.title}: times {of}'s single trial at least", ratio, bound))
    return checks
