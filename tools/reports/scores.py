"""Normalised scores on the built-in plants at equal experience and at equal compute, and memory sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.learner.settings import learner_settings
from onrig.learner.trials.intervals import holm, matching_rows, median_bounds, paired_difference
from onrig.learner.trials.measures import RISE_LEVEL, final_mean, normalized_curves, rise_time
from onrig.learner.trials.step_run import PLANT_PREFIX, StepRun
from onrig.learner.trials.worlds import NoSuchTask
from onrig.learner.trials.worlds.plants import PlantOptions, load_plant_run
from onrig.runtime.memory.layout import Layout
from onrig.runtime.memory.strategy import Strategy, parse_strategy, required_bytes
from onrig.runtime.run_config import RunConfig, capacity_of, layout_of
from onrig.runtime.task import episode_steps
from onrig.tools.experiments.cost import Cost, count_updates
from onrig.tools.experiments.spec import cell_id
from onrig.tools.experiments.store import AnyCell, Cell
from onrig.tools.quantity import format_estimate, format_share
from onrig.tools.reports.results import Result
from onrig.tools.reports.sheet import Sheet, drop_empty_columns
from onrig.tools.reports.world_results import WorldResult

_TASK_AXES: Final = ("inertia", "task", "rig")
"""Axes that change how performance is measured."""
_SCORES_NOTE: Final = (
    "Normalised performance in noise-free evaluations (0 random, 1 reference): medians over the trials with 95 % "
    "intervals. Final: mean of the last tenth of the evaluations; lowest: final performance of the worst trial; area: "
    f"mean of all evaluations; {RISE_LEVEL} at: environment steps or episodes until a trial first reaches this "
    "performance, or until its last evaluation if it never does (≥ if half of the trials never do); reached: trials "
    "that reach it, with the one-sided 95 % lower bound on their share. Memory: size on a rig when full, including "
    "storage, keeper, checkpoints and the learner's data about experiences; for algorithms that learn from batches of "
    "their own policies, size of a batch and the rest of its last episode."
)
_COMPUTE_NOTE: Final = (
    "At equal compute: results of a trial within the compute time of the first cell of its group, at most over all "
    "steps. Compute time is the number of updates times the processor time of one, for a single trial on one thread "
    "(costs.json). An iteration of algorithms that learn from batches counts as one update."
)
_BEST_NOTE: Final = (
    "Best by the median; differences of normalised performance are medians over pairs of equal seed, with 95 % "
    "intervals. Settled by an exact sign test, corrected for the number of other cells (Holm, p < 0.05). The best is "
    "chosen on the same trials, which biases its score slightly upwards."
)
_MIN_CELLS: Final = 3
"""Minimum number of cells among which a best one is named; two cells are compared by their difference."""
_MEASURES: Final[dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = {
    "final": final_mean,
    "area": lambda performance: np.asarray(performance.mean(axis=1)),
}


class ScoredCell(NamedTuple):
    """Performance of one cell's T trials at P evaluations."""

    group: str
    """Name of the group, whose cells all have the same task."""
    name: str
    cell: AnyCell
    seeds: NDArray[np.int64]
    """(T,)"""
    performance: NDArray[np.float64]
    """(T, P), normalised."""
    evaluated_at: NDArray[np.int64]
    """(P,): environment steps at the evaluations; for runs, episodes."""
    updates: NDArray[np.int64]
    """(P,): number of updates before each evaluation."""


def score_world(world: str, name: str, result: WorldResult) -> ScoredCell | None:
    """Score the trials of a cell in a world.

    Returns None for a world from gymnasium, for one whose episodes may end early, and for one without references.
    Raises NoSuchTask if the world's run configuration is missing or has changed.
    """
    run = result.cell.config
    if not run.world.startswith(PLANT_PREFIX):
        return None
    config, options = _plant_run(run)
    cut_off = config.task.may_terminate and not options.cut_off
    if options.end_outside or cut_off or config.task.normalization is None:
        return None
    if cell_id(run, config) != result.cell.id:
        raise NoSuchTask(f"'{run.task}' has changed since its trials were run")
    horizon = run.horizon or episode_steps(config.task, config.rate_hz)
    updates = np.array([count_updates(result.cell, int(steps)) for steps in result.steps])
    performance = normalized_curves(config.task, result.returns / horizon)
    return ScoredCell(world, name, result.cell, result.seeds, performance, result.steps, updates)


def score_run(name: str, result: Result) -> ScoredCell:
    """Score the trials of a run; each episode is evaluated with the policy that precedes the episode's updates."""
    updates = np.round((result.episodes - 1) * result.cell.updates_until(1)).astype(np.int64)
    group = ", ".join(
        str(value) if axis == "config" else f"{axis} {value}"
        for axis, value in result.cell.label.items()
        if axis == "config" or axis.partition(".")[0] in _TASK_AXES
    )
    return ScoredCell(group, name, result.cell, result.seeds, result.mu, result.episodes, updates)


def scores_sheets(cells: Sequence[ScoredCell], costs: Mapping[str, Cost]) -> list[Sheet]:
    """Return the table of scores and, if any group has enough cells, the table of best cells."""
    best = best_sheet(cells)
    return [scores_sheet(cells, costs), *([best] if best.rows else [])]


def scores_sheet(scored_cells: Sequence[ScoredCell], costs: Mapping[str, Cost]) -> Sheet:
    """Return the table of scores by group.

    The columns at equal compute are empty unless the costs of the cell and of its group's first cell are known.
    """
    first_cells: dict[str, ScoredCell] = {}
    for entry in scored_cells:
        first_cells.setdefault(entry.group, entry)
    rows = []
    for entry in scored_cells:
        budget_s = _compute_s(first_cells[entry.group], costs)
        cost = costs.get(entry.cell.id)
        equal_compute = ("", "", "", "", "")
        if budget_s is not None and cost is not None:
            equal_compute = _equal_compute_columns(entry, cost.update_s, budget_s)
        final, area = _final_and_area(entry.performance)
        rise = rise_time(entry.performance, entry.evaluated_at)
        T = len(entry.performance)
        rise_cells = (
            format_estimate(median_bounds(rise.episode), 0, at_least=rise.is_censored),
            format_share(T - rise.n_never_risen, T),
        )
        scores = (
            str(T),
            str(count_updates(entry.cell)),
            final,
            f"{final_mean(entry.performance).min():.3f}",
            area,
            *rise_cells,
        )
        rows.append((entry.group, entry.name, *scores, *equal_compute, f"{memory_bytes(entry.cell) / 1e3:.0f}"))
    compute_heads = (
        "update, ms",
        "compute, s",
        "steps at equal compute",
        "final at equal compute",
        "area at equal compute",
    )
    measures = ("trials", "updates", "final", "lowest", "area", f"{RISE_LEVEL} at", "reached")
    header = ("task", "cell", *measures, *compute_heads, "memory, kB")
    notes = (_SCORES_NOTE, _COMPUTE_NOTE) if any(row[-2] for row in rows) else (_SCORES_NOTE,)
    return drop_empty_columns(Sheet("Scores", 2, header, tuple(rows), notes))


def best_sheet(cells: Sequence[ScoredCell]) -> Sheet:
    """Return a table of the best cell of each group of three or more, and of the other cells that may be as good."""
    groups: dict[str, list[ScoredCell]] = {}
    for entry in cells:
        groups.setdefault(entry.group, []).append(entry)
    rows = []
    for group, members in groups.items():
        if len(members) < _MIN_CELLS:
            continue
        for measure, compute_measure in _MEASURES.items():
            best, *other_cells = sorted(
                members, key=lambda entry: -float(np.median(compute_measure(entry.performance)))
            )
            pairs = {}
            for other in other_cells:
                i, j = matching_rows(best.seeds, other.seeds)
                if len(i):
                    pairs[other.name] = paired_difference(
                        compute_measure(best.performance)[i], compute_measure(other.performance)[j]
                    )
            differences = dict(zip(pairs, holm(list(pairs.values())), strict=True))
            insignificant = [name for name, lead in differences.items() if not (lead.is_significant and lead.value > 0)]
            runner_up = next(iter(differences.items()), None)
            lead = f"{runner_up[0]}, {format_estimate(runner_up[1], 4, signed=True)}" if runner_up else ""
            rows.append((group, measure, best.name, lead, "; ".join(insignificant) or "none"))
    header = ("task", "measure", "best", "runner-up, and lead over it", "not settled against")
    return Sheet("Best of each task", 5, header, tuple(rows), (_BEST_NOTE,))


def memory_bytes(cell: AnyCell) -> float:
    """Return the maximum size of the cell's memory on a rig in bytes, including the learner's data per experience."""
    if isinstance(cell, Cell):
        config = cell.config
        learner, selection = learner_settings(config.learner), config.selection
        layout, capacity = layout_of(config), capacity_of(config)
    else:
        run = cell.config
        config, _ = _plant_run(run)
        learner, selection = run.learner, run.selection
        layout = Layout(len(config.signals), len(config.rig.actuators), behaviour=learner.stochastic)
        capacity = run.capacity(layout.n_obs, layout.n_act)
    strategy = parse_strategy(selection.strategy)
    if learner.algorithm_config.batch_steps:
        strategy = Strategy("FIFO", "Uniform")
        capacity = learner.algorithm_config.batch_steps + episode_steps(config.task, config.rate_hz) - 1
    is_thinned = selection.write_probability < 1
    return required_bytes(strategy, capacity, layout, is_thinned=is_thinned) + capacity * learner.note_bytes


def _plant_run(run: StepRun) -> tuple[RunConfig, PlantOptions]:
    options = msgspec.convert(run.options, PlantOptions)
    return load_plant_run(run.task, options), options


def _compute_s(entry: ScoredCell, costs: Mapping[str, Cost]) -> float | None:
    """Return the processor time of all updates of one trial (s); None if the update's cost is unknown."""
    cost = costs.get(entry.cell.id)
    return None if cost is None else cost.update_s * count_updates(entry.cell)


def _final_and_area(performance: NDArray[np.float64]) -> tuple[str, str]:
    final, area = (
        format_estimate(median_bounds(compute_measure(performance)), 3) for compute_measure in _MEASURES.values()
    )
    return final, area


def _equal_compute_columns(entry: ScoredCell, update_s: float, budget_s: float) -> tuple[str, str, str, str, str]:
    spent_s = entry.updates * update_s
    points = int(np.count_nonzero(spent_s <= budget_s * (1 + 1e-9)))
    fraction_text = f"{100 * points / len(spent_s):.0f} %"
    final_and_area = _final_and_area(entry.performance[:, :points]) if points else ("none", "none")
    return f"{1e3 * update_s:.2f}", f"{update_s * count_updates(entry.cell):.1f}", fraction_text, *final_and_area
