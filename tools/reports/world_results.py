"""Results of an experiment in worlds, by cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.measures import BufferSize, estimate_buffer_size, final_mean
from onrig.learner.trials.step_run import REPLAY_MEASURES
from onrig.runtime.memory.strategy import Strategy, parse_strategy
from onrig.tools.experiments.spec import is_sampling_option
from onrig.tools.experiments.store import CALLED_KEY, WorldCell, finite_trials, read_trials

Values = NDArray[np.float64]


class WorldResult(NamedTuple):
    """One cell with T finite trials of P evaluations."""

    cell: WorldCell
    seeds: NDArray[np.int64]
    """(T,)"""
    returns: Values
    """(T, P) mean return of each evaluation."""
    n_finished: int
    """Number of finished trials, including non-finite ones."""
    replayed: Values | None
    """(T, k, P) values of the ``REPLAY_MEASURES``."""
    shield: Values | None
    """(T, k, P) values of the ``SHIELD_COUNTS``."""

    @property
    def area(self) -> Values:
        """Mean return over all evaluations, (T,)."""
        return np.asarray(self.returns.mean(axis=1))

    @property
    def final(self) -> Values:
        """Mean return over the last tenth of the evaluations, (T,)."""
        return final_mean(self.returns)

    @property
    def highest(self) -> Values:
        """Highest return of an evaluation, (T,)."""
        return np.asarray(self.returns.max(axis=1))

    @property
    def steps(self) -> NDArray[np.int64]:
        """Environment steps at the evaluations, (P,)."""
        return self.cell.config.evaluation.every * np.arange(1, self.cell.points + 1)

    @property
    def strategy(self) -> Strategy:
        """Strategy of the memory."""
        return parse_strategy(self.cell.config.selection.strategy)

    def measure(self, name: str) -> Values:
        """Return one of the ``REPLAY_MEASURES``, (T, P), with NaN for unknown values."""
        if self.replayed is None:
            return np.full_like(self.returns, np.nan)
        return self.replayed[:, REPLAY_MEASURES.index(name)]


def read_results(folder: Path, cells: Sequence[WorldCell]) -> list[WorldResult]:
    """Read every cell that has a finished trial, in the grid's order."""
    results = []
    for cell in cells:
        trials = read_trials(folder, cell)
        is_finite = finite_trials(cell, trials)
        if len(trials.seeds):
            replayed, shield = (None if of is None else of[is_finite] for of in (trials.replayed, trials.shield))
            results.append(
                WorldResult(
                    cell, trials.seeds[is_finite], trials.evaluation[is_finite], len(trials.seeds), replayed, shield
                )
            )
    return results


def group_by_world(results: Sequence[WorldResult]) -> dict[str, list[WorldResult]]:
    """Group results by task."""
    by_task: dict[str, list[WorldResult]] = {}
    for result in results:
        by_task.setdefault(str(result.cell.label["world"]), []).append(result)
    return by_task


def describe_cell(result: WorldResult, members: Sequence[WorldResult]) -> str:
    """Return the labels that distinguish a cell from the others of its task, or all of its labels if none does."""
    label = {k: v for k, v in result.cell.label.items() if k != "world"}
    distinguishing_labels = {k: v for k, v in label.items() if any(other.cell.label.get(k) != v for other in members)}
    values = {k.removeprefix("learner."): v for k, v in (distinguishing_labels or label).items()}
    texts = [str(v) if k in (CALLED_KEY, "strategy", "algorithm") else f"{k} {v}" for k, v in values.items()]
    return ", ".join(texts) or "trials"


def labels_without_strategy(result: WorldResult) -> dict[str, str | float | int]:
    """Return a cell's labels except for the strategy and the sampling options."""
    return {k: v for k, v in result.cell.label.items() if k != "strategy" and not is_sampling_option(k)}


def full_memory_result(members: Sequence[WorldResult]) -> WorldResult | None:
    """Return the result of the cell that stores every experience and samples uniformly, FULL[Uniform], if any.

    Algorithms that learn from batches of their own policies do not replay and are excluded.
    """
    replay_results = (result for result in members if not result.cell.config.learner.algorithm_config.batch_steps)
    return next((result for result in replay_results if str(result.strategy) == "FULL[Uniform]"), None)


def buffer_size_by_rule(members: Sequence[WorldResult]) -> BufferSize | None:
    """Return the memory size by the rule of thumb (de Bruin et al. 2018, §8.5), or None if the rule does not apply.

    Returns are taken relative to those of the first evaluation, since 90 % of a negative return is meaningless.
    """
    full_memory = full_memory_result(members)
    return (
        None
        if full_memory is None
        else estimate_buffer_size(full_memory.steps, full_memory.returns - full_memory.returns[:, :1].mean())
    )
