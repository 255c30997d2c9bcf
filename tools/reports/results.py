"""The finished trials of an experiment, cell by cell, with the measures of 000 §5.1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.measures import (
    FINAL_EPISODES,
    RiseTime,
    mu_final,
    mu_max,
    normalized_curves,
    paired,
    rise_time,
)
from onrig.tools.experiments.spec import Spec
from onrig.tools.experiments.store import Cell, CellTrials, read_cells, read_spec, read_trials
from onrig.tools.reports.conditions import Setting, settings

FEW: Final = 10
"""Below so many trials the bounds are told to be too narrow."""


class Result(NamedTuple):
    """One cell with T usable trials, measured in N episodes."""

    cell: Cell
    setting: Setting
    seeds: NDArray[np.int64]
    """(T,)"""
    episodes: NDArray[np.int64]
    """(N,) numbers of the episodes that were evaluated, from 1 on."""
    mu: NDArray[np.float64]
    """(T, N) normalised performance."""
    final: NDArray[np.float64]
    """(T,) mean over the last 100 episodes."""
    highest: NDArray[np.float64]
    """(T,)"""
    rise: RiseTime
    noise: NDArray[np.float64] | None
    """(T, d) mean absolute noise in the mini-batches, normalised units."""
    spoilt: int
    """Trials left out because their performance is not finite."""
    evaluated: bool
    """Whether performance is that of noise-free episodes; of the training's own where there are none."""


class Experiment(NamedTuple):
    """What there is of an experiment."""

    spec: Spec
    cells: int
    """In the grid, with or without finished trials."""
    trials: int
    """Finished, spoilt ones included."""
    results: list[Result]
    """Cells with at least one usable trial, in the grid's order."""

    @property
    def finished(self) -> bool:
        """Whether every trial of every cell is there."""
        return self.trials >= self.cells * self.spec.trials


def read_experiment(folder: Path) -> Experiment:
    """Read everything.

    Raises ConfigError, OSError, ValueError or msgspec.ValidationError where the folder's files are not what an
    experiment leaves.
    """
    spec, cells = read_spec(folder), read_cells(folder)
    done = 0
    results = []
    for cell, setting in zip(cells, settings(cells), strict=True):
        trials = read_trials(folder, cell)
        done += len(trials.seeds)
        if len(trials.seeds):
            result = measured(cell, setting, trials)
            if len(result.seeds):
                results.append(result)
    return Experiment(spec, len(cells), done, results)


def measured(cell: Cell, setting: Setting, trials: CellTrials) -> Result:
    """Normalise and measure; episodes that no trial was evaluated in are left out, and trials that are not finite."""
    evaluated = not np.isnan(trials.evaluation).all()
    raw = trials.evaluation if evaluated else trials.train
    there = ~np.isnan(raw).all(axis=0)
    numbers = np.flatnonzero(there) + 1
    usable = np.isfinite(raw[:, there]).all(axis=1) & bool(there.any())
    mu = normalized_curves(cell.config.task, raw[usable][:, there])
    spoilt = int(np.count_nonzero(~usable))
    noise = None if trials.batch_noise is None else trials.batch_noise[usable]
    seeds = trials.seeds[usable]
    if not len(seeds):
        nothing = np.zeros(0)
        rise = RiseTime(np.zeros(0, np.int64), np.zeros(0, np.bool_))
        return Result(cell, setting, seeds, numbers, mu, nothing, nothing, rise, noise, spoilt, evaluated)
    last = int(np.count_nonzero(numbers > raw.shape[1] - FINAL_EPISODES))
    rise = rise_time(mu, numbers)
    return Result(cell, setting, seeds, numbers, mu, mu_final(mu, last), mu_max(mu), rise, noise, spoilt, evaluated)


def common_rows(a: Result, b: Result) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the trials of the same seed."""
    return paired(a.seeds, b.seeds)


def strategies(results: Sequence[Result]) -> list[str]:
    """Names of the strategies, in the order of their first cell."""
    return list(dict.fromkeys(r.setting.strategy for r in results))
