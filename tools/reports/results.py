"""Results of an experiment by cell: measures (de Bruin et al. 2018, §5.1), medians and differences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.intervals import (
    MIN_TRIALS,
    Bounds,
    PairedComparison,
    holm,
    matching_rows,
    median_bounds,
    paired_difference,
    paired_ratio,
)
from onrig.learner.trials.measures import (
    FINAL_EPISODES,
    RISE_LEVEL,
    RiseTime,
    mu_final,
    mu_max,
    normalized_curves,
    rise_time,
)
from onrig.tools.experiments.spec import Spec
from onrig.tools.experiments.store import Cell, CellTrials, finite_trials, read_cells, read_spec, read_trials, scores_of
from onrig.tools.reports.conditions import (
    CellSetup,
    cell_setups,
    describe_conditions,
    group_by_axes,
    varying_conditions,
)
from onrig.tools.reports.page import Claims, Figures, Page, Part, Source, Warnings
from onrig.tools.reports.sheet import Sheet
from onrig.tools.reports.style import Plot

BASELINE: Final = "FIFO[Uniform]"
"""Default strategy of de Bruin et al. 2018; the others are compared with it if it is present."""


class Result(NamedTuple):
    """One cell with T usable trials, measured in N episodes."""

    cell: Cell
    setting: CellSetup
    seeds: NDArray[np.int64]
    """(T,)"""
    episodes: NDArray[np.int64]
    """(N,) numbers of the evaluated episodes, starting with 1."""
    mu: NDArray[np.float64]
    """(T, N) normalised performance; mean rewards per step if the task has no references."""
    final: NDArray[np.float64]
    """(T,) mean over the last 100 episodes."""
    highest: NDArray[np.float64]
    """(T,)"""
    rise: RiseTime
    noise: NDArray[np.float64] | None
    """(T, d) mean absolute noise in the mini-batches, normalised units."""
    n_non_finite: int
    """Number of trials omitted because of non-finite performance."""
    is_evaluated: bool
    """Whether performance is measured in noise-free evaluations rather than during training."""


class Findings(NamedTuple):
    """Content of a report in page order."""

    title: str
    lead: str
    warnings: Sequence[str]
    claims: Mapping[str, Sequence[str]]
    """Sentences, keyed by the conditions they apply to."""
    plots: Sequence[Plot]
    sheets: Sequence[Sheet]

    def page(self, *sources: Source, files: Mapping[Plot, str] = MappingProxyType({})) -> Page:
        """Build the page, ending with ``sources``; ``files`` names the plot files next to a Markdown page."""
        claims = [Claims("At a glance", self.claims)] if self.claims else []
        parts: tuple[Part, ...] = (
            Warnings(self.warnings),
            *claims,
            Figures(self.plots, files),
            *self.sheets,
            *sources,
        )
        return Page(self.title, self.lead, parts)


class Experiment(NamedTuple):
    """Available results of an experiment."""

    spec: Spec
    n_cells: int
    """Number of cells in the grid, with or without finished trials."""
    n_trials: int
    """Number of finished trials, including non-finite ones; each cell counts at most the spec's number of trials."""
    results: list[Result]
    """Cells with at least one usable trial, in the grid's order."""
    unusable: list[Result]
    """Cells without any usable trial."""

    @property
    def is_finished(self) -> bool:
        """Whether every trial of every cell is finished."""
        return self.n_trials >= self.n_cells * self.spec.trials


def read_experiment(folder: Path) -> Experiment:
    """Read all results of an experiment.

    Raises ConfigError, OSError, ValueError or msgspec.ValidationError if the folder does not contain a valid
    experiment.
    """
    spec, cells = read_spec(folder), [cell for cell in read_cells(folder) if isinstance(cell, Cell)]
    n_finished = 0
    results: list[Result] = []
    unusable: list[Result] = []
    for cell, setting in zip(cells, cell_setups(cells), strict=True):
        trials = read_trials(folder, cell)
        n_finished += min(len(trials.seeds), spec.trials)
        if len(trials.seeds):
            result = measure_cell(cell, setting, trials)
            (results if len(result.seeds) else unusable).append(result)
    return Experiment(spec, len(cells), n_finished, results, unusable)


def measure_cell(cell: Cell, setting: CellSetup, trials: CellTrials) -> Result:
    """Normalise and measure a cell, excluding non-finite trials and episodes in which no trial was evaluated."""
    is_evaluated = not np.isnan(trials.evaluation).all()
    raw, evaluated_episodes = scores_of(trials)
    numbers = np.flatnonzero(evaluated_episodes) + 1
    is_finite = finite_trials(cell, trials)
    mu = normalized_curves(cell.config.task, raw[is_finite][:, evaluated_episodes])
    n_non_finite = int(np.count_nonzero(~is_finite))
    noise = None if trials.batch_noise is None else trials.batch_noise[is_finite]
    seeds = trials.seeds[is_finite]
    if not len(seeds):
        empty = np.zeros(0)
        rise = RiseTime(np.zeros(0, np.int64), np.zeros(0, np.bool_))
        return Result(cell, setting, seeds, numbers, mu, empty, empty, rise, noise, n_non_finite, is_evaluated)
    n_final = int(np.count_nonzero(numbers > raw.shape[1] - FINAL_EPISODES))
    level = RISE_LEVEL if cell.config.task.normalization is not None else math.inf  # raw rewards have no rise level
    rise = rise_time(mu, numbers, level)
    return Result(
        cell, setting, seeds, numbers, mu, mu_final(mu, n_final), mu_max(mu), rise, noise, n_non_finite, is_evaluated
    )


def warn_of_few_trials(trials: int) -> list[str]:
    """Return a warning if ``trials``, the smallest number of trials of any cell, is too small for an interval."""
    if trials >= MIN_TRIALS:
        return []
    return [
        (
            f"Some medians are over only {trials} trials: with fewer than {MIN_TRIALS}, they have no 95 % interval and "
            "are inconclusive."
        )
    ]


def rows_of_common_seeds(a: Result, b: Result) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row indices in ``a`` and ``b`` of the trials that have the same seed."""
    return matching_rows(a.seeds, b.seeds)


def strategies(results: Sequence[Result]) -> list[str]:
    """Return the names of the strategies in the order of their first cells."""
    return list(dict.fromkeys(r.setting.strategy for r in results))


class Estimate(NamedTuple):
    """Medians of a cell's three measures, with their intervals."""

    final: Bounds
    highest: Bounds
    rise: Bounds
    """Rise time in episodes."""
    n_never_rose: int
    """Number of trials that never reached the level of the rise time."""
    is_censored: bool
    """Whether the median rise time is a lower bound because too few trials reached the level."""


class Difference(NamedTuple):
    """Paired comparison of two strategies under the same conditions, over their common seeds.

    Tests are corrected for all comparisons of the same measure under the same conditions.
    """

    conditions: str
    strategy: str
    reference: str
    n_pairs: int
    final: PairedComparison
    """Difference of mu_final; positive if the strategy is better."""
    highest: PairedComparison
    rise: PairedComparison
    """Ratio of the rise times; below 1 if the strategy is faster."""
    is_censored: bool
    """Whether some trials never reached the level, so that some ratios are only bounds."""


class Group(NamedTuple):
    """Cells that differ only in their strategy."""

    conditions: str
    results: list[Result]


def estimate(result: Result) -> Estimate:
    """Estimate one cell's measures."""
    rise = result.rise
    final, highest, rise_episode = (median_bounds(values) for values in (result.final, result.highest, rise.episode))
    return Estimate(final, highest, rise_episode, rise.n_never_risen, rise.is_censored)


def group_by_conditions(results: Sequence[Result]) -> list[Group]:
    """Group cells by conditions, in grid order."""
    axes = varying_conditions(r.setting for r in results)
    groups = group_by_axes([(r.setting.conditions, r) for r in results], axes)
    return [Group(describe_conditions(axes, key), members) for key, members in groups.items()]


def baseline(group: Group) -> Result:
    """Return the group's FIFO[Uniform] cell if present, else its first cell."""
    return next((r for r in group.results if r.setting.strategy == BASELINE), group.results[0])


def compare_with_baseline(results: Sequence[Result]) -> list[Difference]:
    """Compare every strategy with the baseline under the same conditions."""
    return [
        difference
        for group in group_by_conditions(results)
        for difference in _differences(
            group.conditions, [(r, baseline(group)) for r in group.results if r is not baseline(group)]
        )
    ]


def compare_with_plainer_sampling(results: Sequence[Result]) -> list[Difference]:
    """Compare each sampling, at equal retention, with uniform sampling and with the same sampling without correction.

    Pairs already covered by :func:`compare_with_baseline` are omitted.
    """
    return [
        difference
        for group in group_by_conditions(results)
        for difference in _differences(
            group.conditions, [(r, other) for r in group.results for other in _plainer_results(r, group)]
        )
    ]


def _differences(conditions: str, pairs: Sequence[tuple[Result, Result]]) -> list[Difference]:
    """Compare the pairs of cells that have seeds in common."""
    differences = [_difference(conditions, a, b) for a, b in pairs if len(rows_of_common_seeds(a, b)[0])]
    measures = (
        holm([d.final for d in differences]),
        holm([d.highest for d in differences]),
        holm([d.rise for d in differences]),
    )
    return [
        d._replace(final=final, highest=highest, rise=rise)
        for d, final, highest, rise in zip(differences, *measures, strict=True)
    ]


def _difference(conditions: str, a: Result, b: Result) -> Difference:
    i, j = rows_of_common_seeds(a, b)
    return Difference(
        conditions,
        a.setting.strategy,
        b.setting.strategy,
        len(i),
        paired_difference(a.final[i], b.final[j]),
        paired_difference(a.highest[i], b.highest[j]),
        paired_ratio(a.rise.episode[i], b.rise.episode[j]),
        not (a.rise.has_risen[i].all() and b.rise.has_risen[j].all()),
    )


def _plainer_results(result: Result, group: Group) -> Iterator[Result]:
    sampling = result.setting.sampling
    samplings = dict.fromkeys(("Uniform", sampling.partition("+")[0]))
    samplings.pop(sampling, None)
    for other in group.results:
        has_same_retention = (other.setting.retention, other.setting.alpha) == (
            result.setting.retention,
            result.setting.alpha,
        )
        exponents = {other.setting.exponent, result.setting.exponent} - {None}
        if (
            has_same_retention
            and other.setting.sampling in samplings
            and len(exponents) <= 1
            and other is not baseline(group)
        ):
            yield other
