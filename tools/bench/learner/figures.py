"""What the rounds of ``onrig bench learner`` came to, and the bounds they are held against."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from onrig.tools.bench.learner.cases import LARGE, LIMIT, ONRIG, PEER, LearnerCase, Work, mega_flop
from onrig.tools.bench.report import Check, Row, at_least


class Throughput(NamedTuple):
    """Rates of one case and subject, in the case's unit."""

    rounds: tuple[float, ...]
    """Median of each round."""
    all: tuple[float, ...]
    """Of every repetition."""

    @property
    def p50(self) -> float:
        """Median over all repetitions."""
        return statistics.median(self.all)


Rates = dict[tuple[LearnerCase, str], Throughput]
_TIMES_FASTER: Final = {1: 4.0, 16: 28.0, 50: 35.0}
"""Least times as many trial-updates per second as the peer's single trial, by number of trials."""


def throughput(case: LearnerCase, updates: int, rounds: Sequence[Sequence[int]]) -> Throughput:
    """Turn durations of calls in ns, a sequence per round, into rates; ValueError when there are none."""
    if not any(rounds):
        raise ValueError("no durations")
    done = work_of_call(case, updates)
    rates = [[done / (ns / 1e9) for ns in of_round] for of_round in rounds if of_round]
    return Throughput(tuple(statistics.median(r) for r in rates), tuple(rate for r in rates for rate in r))


def work_of_call(case: LearnerCase, updates: int) -> float:
    """Return what one call does: trial-updates, or Gflop where the rate is in those."""
    match case.work:
        case Work.LARGE:
            return 2 * LARGE**3 / 1e9
        case Work.PRODUCTS:
            return mega_flop(case, padding=True) * updates * case.trials / 1e3
    return float(updates * case.trials)


def row(case: LearnerCase, subject: str, rates: Throughput) -> Row:
    """Return the report's row."""
    return Row(case.title, subject, case.unit, *(round(q, 3) for q in _quantiles(rates)))


def times_faster(rates: Rates, case: LearnerCase) -> float | None:
    """Return how many times the peer's single trial's rate ours is: the median over rounds that lay side by side."""
    alone = LearnerCase(case.work, case.network, case.shape, 1)
    ours, theirs = rates.get((case, ONRIG)), rates.get((alone, PEER))
    if ours is None or theirs is None:
        return None
    return statistics.median(a / b for a, b in zip(ours.rounds, theirs.rounds, strict=False))


class Share(NamedTuple):
    """How near an update comes to what the machine's floating-point units give."""

    mega_flop: float
    """Of one trial-update, by the sizes of the networks."""
    padded_mega_flop: float
    """As it is done."""
    gflop_per_s: float
    """As it is done."""
    of_large: float
    """Of the rate of one large product."""
    of_products: float
    """Of the rate of the same small products with nothing between them."""


def share(rates: Rates, case: LearnerCase) -> Share | None:
    """Set an update beside bare products of the same rounds; None where they were not measured."""
    where = (case.network, case.shape)
    ours = rates.get((case, ONRIG))
    large = rates.get((LearnerCase(Work.LARGE, *where, 1), LIMIT))
    small = rates.get((LearnerCase(Work.PRODUCTS, *where, case.trials), LIMIT))
    if ours is None or large is None or small is None:
        return None
    padded = mega_flop(case, padding=True)
    rate = ours.p50 * padded / 1e3
    return Share(mega_flop(case, padding=False), padded, rate, rate / large.p50, rate / small.p50)


def share_rows(rates: Rates) -> list[Row]:
    """Return the updates' floating-point rates as rows of the report."""
    rows = []
    for case, subject in rates:
        if subject == ONRIG and case.work is Work.UPDATE:
            giga_flop = mega_flop(case, padding=True) / 1e3
            quantiles = [round(q * giga_flop, 3) for q in _quantiles(rates[case, ONRIG])]
            rows.append(Row(f"{case.title}, its products", ONRIG, "gflop_per_s", *quantiles))
    return rows


def _quantiles(rates: Throughput) -> list[float]:
    quantiles: list[float] = np.quantile(rates.all, [0.5, 0.99, 0.999, 1.0]).tolist()
    return quantiles


def speed_checks(rates: Rates) -> list[Check]:
    """Return the bounds on speed, like held against like: both draw their minibatches."""
    checks = []
    for case, subject in rates:
        bound = _TIMES_FASTER.get(case.trials)
        if subject != ONRIG or case.work is not Work.SAMPLED or case.network != "small" or bound is None:
            continue
        ratio = times_faster(rates, case)
        if ratio is not None:
            checks.append(at_least(f"{case.title}: times {PEER}'s single trial at least", ratio, bound))
    return checks
