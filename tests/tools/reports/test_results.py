from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onrig.tools.cli import main
from onrig.tools.experiments.store import Cell, Trial
from onrig.tools.reports.results import Result, read_experiment
from tests.tools.reports.synthetic import cell, constant_trials, raw, write_experiment


def single_result(folder: Path, make_trial: object, trials: int = 3, episodes: int = 200) -> Result:
    trial_cell = cell(strategy="FIFO[Uniform]", episodes=episodes)
    [result] = read_experiment(write_experiment(folder, [trial_cell], trials, make_trial=make_trial)).results  # type: ignore[arg-type]
    return result


def test_episodes_that_were_not_evaluated_are_left_out_with_their_numbers_kept(tmp_path: Path) -> None:
    def make_trial(trial_cell: Cell, seed: int) -> Trial:
        mu = np.full(200, np.nan)
        mu[9::10] = np.linspace(0.06, 1.01, 20)
        return Trial(raw(trial_cell, np.zeros(200)), raw(trial_cell, mu), None)

    result = single_result(tmp_path, make_trial)
    assert result.episodes.tolist() == list(range(10, 201, 10))
    assert result.rise.episode.tolist() == [160] * 3
    assert result.final == pytest.approx(np.linspace(0.56, 1.01, 10).mean()), "the last 100 episodes hold ten of them"
    assert result.is_evaluated


def test_without_evaluation_training_counts(tmp_path: Path) -> None:
    no_evaluation = np.full(200, np.nan)
    result = single_result(
        tmp_path, lambda trial_cell, seed: Trial(raw(trial_cell, np.full(200, 0.3)), no_evaluation, None)
    )
    assert not result.is_evaluated
    assert result.final == pytest.approx([0.3] * 3)


def test_non_finite_trials_are_left_out_and_counted(tmp_path: Path) -> None:
    def make_trial(trial_cell: Cell, seed: int) -> Trial:
        trial = constant_trials(0.5)(trial_cell, seed)
        if seed == 1:
            trial.evaluation[50:] = np.nan
        return trial

    result = single_result(tmp_path, make_trial)
    assert result.seeds.tolist() == [0, 2]
    assert result.n_non_finite == 1
    assert result.final == pytest.approx([0.5, 0.52])


def test_a_cell_whose_trials_all_diverge_is_lost_and_not_truncated(tmp_path: Path) -> None:
    def make_trial(trial_cell: Cell, seed: int) -> Trial:
        trial = constant_trials(0.5)(trial_cell, seed)
        trial.evaluation[30 * (seed + 1) :] = np.nan
        return trial

    diverging_cell = cell()
    write_experiment(tmp_path, [diverging_cell], 3, make_trial=make_trial)
    experiment = read_experiment(tmp_path)
    assert experiment.results == []
    (unusable_cell,) = experiment.unusable
    assert unusable_cell.n_non_finite == 3


def test_cells_without_finished_trials_have_no_results_but_count(tmp_path: Path) -> None:
    cells = [cell(strategy=s) for s in ("FIFO[Uniform]", "FULL[Uniform]")]
    write_experiment(tmp_path, cells, 3, is_done=lambda trial_cell, seed: trial_cell is cells[1] and seed < 2)
    experiment = read_experiment(tmp_path)
    assert (experiment.n_cells, experiment.n_trials, experiment.is_finished) == (2, 2, False)
    assert [r.setting.strategy for r in experiment.results] == ["FULL[Uniform]"]


def test_without_references_rewards_are_raw_and_no_trial_counts_as_having_risen(tmp_path: Path) -> None:
    trial_cell = cell("pendulum", "task.normalization=null", strategy="FIFO[Uniform]", episodes=200)
    rewards = np.linspace(-160.0, 40.0, 200)
    folder = write_experiment(
        tmp_path, [trial_cell], 3, make_trial=lambda trial_cell, seed: Trial(rewards, rewards, None)
    )
    [result] = read_experiment(folder).results
    assert result.mu.tolist() == [rewards.tolist()] * 3
    assert result.rise.n_never_risen == 3
    assert main(["report", str(folder)]) == 0
    assert "their rise times are unknown" in (folder / "tables.md").read_text()
