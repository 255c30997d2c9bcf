from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from onrig.learner.trials.intervals import MAX_PAIRS, PairedComparison
from onrig.tools.experiments.store import Cell, Trial
from onrig.tools.reports.results import (
    Result,
    compare_with_baseline,
    compare_with_plainer_sampling,
    estimate,
    group_by_conditions,
    read_experiment,
)
from onrig.tools.reports.tables import format_needed_pairs
from tests.tools.reports.synthetic import TrialFactory, cell, constant_trials, raw, write_experiment

LEVELS = {"FIFO[Uniform]": 0.5, "FULL[Uniform]": 0.7, "FULL[PER]": 0.6, "FIFO[PER+IS]": 0.5, "FIFO[PER]": 0.4}


def by_strategy(trial_cell: Cell, seed: int) -> Trial:
    return constant_trials(LEVELS[trial_cell.config.selection.strategy])(trial_cell, seed)


def results(
    folder: Path, cells: Sequence[Cell], make_trial: TrialFactory = by_strategy, trials: int = 4
) -> list[Result]:
    return read_experiment(write_experiment(folder, cells, trials, make_trial=make_trial)).results


def test_each_strategy_is_compared_with_fifo_uniform_by_common_seeds(tmp_path: Path) -> None:
    cells = [cell(strategy=s) for s in ("FULL[Uniform]", "FIFO[Uniform]", "FULL[PER]")]
    write_experiment(
        tmp_path,
        cells,
        4,
        make_trial=by_strategy,
        is_done=lambda trial_cell, seed: trial_cell is not cells[0] or seed != 1,
    )
    comparisons = compare_with_baseline(read_experiment(tmp_path).results)
    assert [(d.strategy, d.reference, d.n_pairs) for d in comparisons] == [
        ("FULL[Uniform]", "FIFO[Uniform]", 3),
        ("FULL[PER]", "FIFO[Uniform]", 4),
    ]
    # The spread over the seeds is the same in both, so it cancels.
    assert comparisons[0].final.value == pytest.approx(0.2)
    assert comparisons[1].highest.value == pytest.approx(0.1)
    assert comparisons[0].rise.value == pytest.approx(1.0)
    assert comparisons[0].is_censored


def test_without_fifo_uniform_the_first_strategy_is_the_baseline(tmp_path: Path) -> None:
    comparisons = compare_with_baseline(results(tmp_path, [cell(strategy=s) for s in ("FULL[PER]", "FULL[Uniform]")]))
    assert [(d.strategy, d.reference) for d in comparisons] == [("FULL[Uniform]", "FULL[PER]")]


def test_only_the_same_conditions_are_compared(tmp_path: Path) -> None:
    cells = [cell("pendulum", strategy="FIFO[Uniform]"), cell("magman", strategy="FULL[Uniform]")]
    all_results = results(tmp_path, cells)
    assert [g.conditions for g in group_by_conditions(all_results)] == ["pendulum", "magman"]
    assert compare_with_baseline(all_results) == []


def test_sampling_is_compared_with_uniform_and_with_the_uncorrected_variant_for_the_same_retention(
    tmp_path: Path,
) -> None:
    names = ("FIFO[Uniform]", "FIFO[PER]", "FIFO[PER+IS]", "FULL[PER]", "FULL[Uniform]")
    comparisons = compare_with_plainer_sampling(results(tmp_path, [cell(strategy=s) for s in names]))
    pairs = [(d.strategy, d.reference, round(d.final.value, 9)) for d in comparisons]
    assert pairs == [("FIFO[PER+IS]", "FIFO[PER]", 0.1), ("FULL[PER]", "FULL[Uniform]", -0.1)]


def test_estimates_match_the_evaluation_and_report_trials_that_never_rose(tmp_path: Path) -> None:
    def make_trial(trial_cell: Cell, seed: int) -> Trial:
        mu = np.full(trial_cell.config.episodes, 0.2)
        mu[10 + seed :] = 0.9 if seed < 3 else 0.7
        return Trial(raw(trial_cell, mu - 5), raw(trial_cell, mu), None)

    [result] = results(tmp_path, [cell(strategy="FIFO[Uniform]", episodes=200)], make_trial)
    e = estimate(result)
    assert e.final.value == pytest.approx(0.9)
    assert e.highest.value == pytest.approx(0.9)
    assert e.rise.value == 12.5
    assert (e.n_never_rose, e.is_censored) == (1, False)


def test_comparisons_under_the_same_conditions_are_corrected_for_their_number(tmp_path: Path) -> None:
    def make_trial(trial_cell: Cell, seed: int) -> Trial:
        level = LEVELS[trial_cell.config.selection.strategy] - 0.5
        return constant_trials(0.5 + (level if seed else -level))(
            trial_cell, seed
        )  # nine of ten pairs in one direction

    cells = [cell(config, strategy=s) for config in ("pendulum", "magman") for s in LEVELS]
    comparisons = compare_with_baseline(results(tmp_path, cells[:4] + cells[5:7], make_trial, trials=10))
    p = 22 / 1024
    assert [d.final.p for d in comparisons if d.conditions == "magman"] == pytest.approx([p])
    # FIFO[PER+IS] equals FIFO[Uniform] here: three comparisons, one of them without a difference.
    assert [d.final.p for d in comparisons if d.conditions == "pendulum"] == pytest.approx([3 * p, 3 * p, 1.0])


def test_settled_comparisons_do_not_raise_the_number_of_pairs_that_the_others_need() -> None:
    settled = PairedComparison(0.1, 0.05, 0.2, 0.001, 1.0)
    open_comparison = PairedComparison(0.1, -0.1, 0.3, 0.2, 0.75)
    equal = PairedComparison(0.0, -0.1, 0.1, 1.0, 0.5)
    assert format_needed_pairs(settled, [settled, open_comparison]) == "–"
    assert format_needed_pairs(open_comparison, [settled, open_comparison]) == "about 35"
    assert format_needed_pairs(open_comparison, [open_comparison, open_comparison]) != "about 35"
    assert format_needed_pairs(equal, [equal]) == f"more than {MAX_PAIRS}"
