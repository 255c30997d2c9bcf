"""Means and paired differences with their bounds, of the cells of an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from onrig.learner.trials.measures import Bounds, mean_bounds, paired_difference, paired_ratio
from onrig.tools.reports.conditions import grouped, in_words, varying
from onrig.tools.reports.results import Result, common_rows

BASELINE: Final = "FIFO[Uniform]"
"""000's default method, which others are compared with where it is there."""


class Estimate(NamedTuple):
    """The three measures of one cell, over its trials."""

    final: Bounds
    highest: Bounds
    rise: Bounds
    """In episodes; a lower bound where ``never`` is not 0."""
    never: int
    """Trials that did not rise."""


class Difference(NamedTuple):
    """One strategy against another under the same conditions, by the trials' common seeds."""

    conditions: str
    strategy: str
    against: str
    pairs: int
    final: Bounds
    """Difference of mu_final; positive where the strategy is better."""
    highest: Bounds
    rise: Bounds
    """Ratio of the mean rise times; below 1 where the strategy is faster."""
    censored: bool
    """Whether trials of either never rose, so that the ratio is of lower bounds."""


class Group(NamedTuple):
    """Cells that differ in their strategy alone."""

    conditions: str
    results: list[Result]


def estimate(result: Result) -> Estimate:
    """Estimate one cell's measures."""
    rise = result.rise
    return Estimate(mean_bounds(result.final), mean_bounds(result.highest), mean_bounds(rise.episode), rise.never)


def groups(results: Sequence[Result]) -> list[Group]:
    """Cells under the same conditions, in the grid's order."""
    axes = varying(r.setting for r in results)
    found = grouped([(r.setting.conditions, r) for r in results], axes)
    return [Group(in_words(axes, key), members) for key, members in found.items()]


def baseline(group: Group) -> Result:
    """FIFO[Uniform] where it is there, else the group's first."""
    return next((r for r in group.results if r.setting.strategy == BASELINE), group.results[0])


def against_baseline(results: Sequence[Result]) -> list[Difference]:
    """Every strategy against the baseline of its conditions."""
    return [
        difference(group.conditions, r, baseline(group))
        for group in groups(results)
        for r in group.results
        if r is not baseline(group) and len(common_rows(r, baseline(group))[0])
    ]


def against_plainer_sampling(results: Sequence[Result]) -> list[Difference]:
    """Each way of sampling against uniform and against the same without its correction, retention being equal.

    Pairs that :func:`against_baseline` has are left out.
    """
    return [
        difference(group.conditions, r, other)
        for group in groups(results)
        for r in group.results
        for other in _plainer(r, group)
        if len(common_rows(r, other)[0])
    ]


def difference(conditions: str, a: Result, b: Result) -> Difference:
    """Compare two cells; they must have seeds in common."""
    i, j = common_rows(a, b)
    return Difference(
        conditions,
        a.setting.strategy,
        b.setting.strategy,
        len(i),
        paired_difference(a.final[i], b.final[j]),
        paired_difference(a.highest[i], b.highest[j]),
        paired_ratio(a.rise.episode[i], b.rise.episode[j]),
        not (a.rise.risen[i].all() and b.rise.risen[j].all()),
    )


def _plainer(result: Result, group: Group) -> Iterator[Result]:
    sampling = result.setting.sampling
    wanted = dict.fromkeys(("Uniform", sampling.partition("+")[0]))
    wanted.pop(sampling, None)
    for other in group.results:
        same = (other.setting.retention, other.setting.alpha) == (result.setting.retention, result.setting.alpha)
        exponents = {other.setting.per_alpha, result.setting.per_alpha} - {None}
        if same and other.setting.sampling in wanted and len(exponents) <= 1 and other is not baseline(group):
            yield other
