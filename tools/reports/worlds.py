"""``onrig report`` for an experiment in worlds: returns over environment steps, and means and differences by task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import UNSET

from onrig.learner.trials.intervals import holm, matching_rows, median_bounds, paired_difference
from onrig.learner.trials.measures import final_mean
from onrig.learner.trials.step_run import DIVERGENCES, ORIGINS, READINGS, SHIELD_COUNTS
from onrig.learner.trials.worlds import NoSuchTask
from onrig.runtime.memory.strategy import parse_sampling
from onrig.tools.experiments.cost import read_costs
from onrig.tools.experiments.spec import Spec
from onrig.tools.experiments.store import WorldCell
from onrig.tools.quantity import format_estimate
from onrig.tools.reports.results import Findings, warn_of_few_trials
from onrig.tools.reports.scores import score_world, scores_sheets
from onrig.tools.reports.sheet import Sheet, drop_empty_columns
from onrig.tools.reports.style import Plot, no_plots_reason
from onrig.tools.reports.tables import (
    ESTIMATES_NOTE,
    NEEDED_PAIRS_NOTE,
    TEST_NOTE,
    difference_mark,
    format_needed_pairs,
)
from onrig.tools.reports.world_plots import STEPS_LABEL, cell_styles, draw_capacities, draw_world
from onrig.tools.reports.world_results import (
    WorldResult,
    buffer_size_by_rule,
    describe_cell,
    group_by_world,
    labels_without_strategy,
    read_results,
)
from onrig.tools.terminal import draw_or_report

_MEASURES_NOTE: Final = (
    "Returns of noise-free evaluation episodes, raw rewards. Area: mean over all evaluations; final: mean of the last "
    "tenth of them. Medians over the trials with 95 % intervals; lowest and mean: of final, over the trials."
)
_SCORES_NOTE: Final = (
    "Mean score κ, under the policy at that time, over the last half of the evaluations, for mini-batches drawn from "
    "the random experiences at the start, from those of the first half of learning, and from the most recent ones; "
    "KLPER replays those with the smallest score. Last column: share of these evaluations in which the random "
    "experiences score below the most recent ones. Medians over the trials with 95 % intervals."
)
_SHIELD_NOTE: Final = (
    "Per 1000 training steps: steps in which the shield changed the action, and entries into its fallback, over the "
    "complete trial and over its last tenth; medians over the trials with 95 % intervals. Trials of versions that did "
    "not record these counts are omitted."
)
_DEPARTURE_NOTE: Final = (
    "Over the memory: mean KL divergence of the current policy from the behaviour policies, averaged over the last "
    "tenth of the evaluations, and share of far experiences, averaged over the last fifth; medians over the trials "
    "with 95 % intervals. Trials with non-finite values are omitted."
)


def build_world_findings(folder: Path, figures: Path, spec: Spec, cells: Sequence[WorldCell]) -> Findings | None:
    """Draw and compare the finished trials, or return None if no finished trial has finite returns. Raises OSError."""
    results = read_results(folder, cells)
    usable_results = [result for result in results if len(result.seeds)]
    if not usable_results:
        return None
    warnings = []
    n_finished, n_planned = sum(min(result.n_finished, spec.trials) for result in results), len(cells) * spec.trials
    if n_finished < n_planned:
        warnings.append(
            f"Incomplete: {n_finished} of {n_planned} trials are finished; the results below cover only these."
        )
    n_non_finite = sum(result.n_finished - len(result.seeds) for result in results)
    if n_non_finite:
        warnings.append(f"{n_non_finite} trials are omitted because their networks diverged.")
    for world, members in group_by_world(results).items():
        unusable_cells = [describe_cell(result, members) for result in members if not len(result.seeds)]
        warnings += [
            f"No trial of {world}, {name} has finite returns: the tables omit this cell." for name in unusable_cells
        ]
    warnings += warn_of_few_trials(min(len(result.seeds) for result in usable_results))
    has_scores = any(map(_has_scores, usable_results))
    worlds = group_by_world(usable_results)
    plots: list[Plot] = []
    if reason := no_plots_reason():
        warnings.append(reason)
    else:
        plots = draw_or_report("Capacities", lambda: draw_capacities(figures, usable_results), warnings.append) or []
        styles = cell_styles(worlds)
        for world, members in worlds.items():
            draw = partial(draw_world, figures, world, members, styles, scores=has_scores)
            plots += draw_or_report(world, draw, warnings.append) or []
    sheets = _sheets(usable_results, has_scores=has_scores)
    scored_cells, unknown_cells = [], {}
    for world, members in worlds.items():
        try:
            scored_cells += [
                scored_cell
                for r in members
                if (scored_cell := score_world(world, describe_cell(r, members), r)) is not None
            ]
        except NoSuchTask as error:
            unknown_cells[world] = error
    warnings += [f"No scores of {world}: {error}." for world, error in unknown_cells.items()]
    if scored_cells:
        sheets[:0] = scores_sheets(scored_cells, read_costs(folder))
    lead = (
        f"{spec.name}: {len(cells)} cells, {spec.trials} trials each, {spec.steps} {STEPS_LABEL}, an evaluation of "
        f"{spec.evaluation.episodes} episodes every {spec.evaluation.every} steps. {ESTIMATES_NOTE}"
    )
    return Findings(spec.title or spec.name, lead, warnings, {}, plots, sheets)


def _sheets(results: Sequence[WorldResult], *, has_scores: bool) -> list[Sheet]:
    sheets = [cells_sheet(results)]
    differences = differences_sheet(results)
    if differences.rows:
        sheets.insert(0, differences)
    sizes = sizes_sheet(results)
    if sizes.rows and any(result.cell.config.selection.capacity for result in results):
        sheets.insert(-1, sizes)
    if has_scores:
        sheets.insert(-1, origins_sheet(results))
    departure = departure_sheet(results)
    if departure.rows:
        sheets.insert(-1, departure)
    shield = shield_sheet(results)
    if shield.rows:
        sheets.insert(-1, shield)
    return sheets


def cells_sheet(results: Sequence[WorldResult]) -> Sheet:
    """Return the table of all cells."""
    rows = tuple(
        (
            world,
            describe_cell(result, members),
            str(len(result.seeds)),
            format_estimate(median_bounds(result.area), 1),
            format_estimate(median_bounds(result.final), 1),
            f"{result.final.min():.1f}",
            f"{result.final.mean():.1f}",
        )
        for world, members in group_by_world(results).items()
        for result in members
    )
    return Sheet(
        "All cells", 2, ("world", "cell", "trials", "area", "final", "lowest", "mean"), rows, (_MEASURES_NOTE,)
    )


def sizes_sheet(results: Sequence[WorldResult]) -> Sheet:
    """Return the table of memory sizes according to the rule of thumb, one row per task."""
    sizes = {world: buffer_size_by_rule(members) for world, members in group_by_world(results).items()}
    rows = tuple(
        (world, str(size.n_experiences), "" if size.has_converged else "still rising: more may be needed")
        for world, size in sizes.items()
        if size is not None
    )
    note = (
        "Experiences that FULL[Uniform] needed for 90 % of its final return above that of its first evaluation "
        "(figure 17 of de Bruin et al. 2018)."
    )
    return drop_empty_columns(Sheet("Rule of thumb", 1, ("world", "capacity", "remark"), rows, (note,)))


def differences_sheet(results: Sequence[WorldResult]) -> Sheet:
    """Compare each cell with the earlier cells that differ from it only in strategy or sampling options.

    If there are none, the cell is compared with the first cell of its world.
    """
    rows = []
    for world, members in group_by_world(results).items():
        names, areas, finals = [], [], []
        for result, against in _pairs(members):
            i, j = matching_rows(result.seeds, against.seeds)
            if len(i):
                names.append((f"{describe_cell(result, members)} − {describe_cell(against, members)}", str(len(i))))
                areas.append(paired_difference(result.area[i], against.area[j]))
                finals.append(paired_difference(result.final[i], against.final[j]))
        families = holm(areas), holm(finals)
        for row_names, *measures in zip(names, *families, strict=True):
            estimates = (difference_mark(of) + format_estimate(of, 1, signed=True) for of in measures)
            is_settled = all(of.is_significant for of in measures)
            needed_pairs = "" if is_settled else ", ".join(map(format_needed_pairs, measures, families))
            rows.append((world, *row_names, *estimates, needed_pairs))
    header = ("world", "difference", "pairs", "area", "final", "pairs needed")
    notes = (TEST_NOTE, NEEDED_PAIRS_NOTE) if any(row[-1] for row in rows) else (TEST_NOTE,)
    return drop_empty_columns(Sheet("Differences", 2, header, tuple(rows), notes))


def _pairs(members: Sequence[WorldResult]) -> Iterator[tuple[WorldResult, WorldResult]]:
    for k, result in enumerate(members):
        comparable_results = [
            other for other in members[:k] if labels_without_strategy(other) == labels_without_strategy(result)
        ]
        for reference in comparable_results or members[: min(k, 1)]:
            yield result, reference


def departure_sheet(results: Sequence[WorldResult]) -> Sheet:
    """Return a table of how far Gaussian policies are from the behaviour policies."""
    rows = []
    for world, members in group_by_world(results).items():
        for result in members:
            divergence, far_fractions = (
                final_mean(result.measure(measure), fraction)
                for measure, fraction in zip(DIVERGENCES, (0.1, 0.2), strict=True)
            )
            is_finite = np.isfinite(divergence) & np.isfinite(far_fractions)
            if is_finite.any():
                cells = (
                    format_estimate(median_bounds(divergence[is_finite]), 4),
                    format_estimate(median_bounds(far_fractions[is_finite]), 3),
                )
                rows.append((world, describe_cell(result, members), str(np.count_nonzero(is_finite)), *cells))
    header = ("world", "cell", "trials", "KL divergence", "share of far experiences")
    return Sheet("Distance from the behaviour policies", 2, header, tuple(rows), (_DEPARTURE_NOTE,))


def shield_sheet(results: Sequence[WorldResult]) -> Sheet:
    """Return a table of the shield's interventions in worlds that have a shield."""
    rows = []
    for world, members in group_by_world(results).items():
        for result in members:
            if result.shield is None or not result.cell.config.options.get("shield"):
                continue
            finite = np.isfinite(result.shield).all(axis=(1, 2))
            per_1000 = result.shield[finite] * 1000.0 / result.cell.config.evaluation.every
            cells = [
                format_estimate(median_bounds(of(counts)), 1)
                for counts in per_1000.swapaxes(0, 1)
                for of in (lambda counts: counts.mean(axis=1), final_mean)
            ]
            rows.append((world, describe_cell(result, members), str(np.count_nonzero(finite)), *cells))
    header = (
        "world",
        "cell",
        "trials",
        *(f"{name}{suffix}" for name in SHIELD_COUNTS for suffix in ("", ", last tenth")),
    )
    return Sheet("Shield", 2, header, tuple(rows), (_SHIELD_NOTE,))


def _has_scores(result: WorldResult) -> bool:
    """Whether a cell samples by KLPER, or sets KLPER's options, and has recorded KLPER scores."""
    configured = result.cell.config.learner.klper is not UNSET
    uses_klper = configured or parse_sampling(result.strategy.sampling).name == "KLPER"
    return uses_klper and bool(np.isfinite(result.measure("kl std")).any())


def origins_sheet(results: Sequence[WorldResult]) -> Sheet:
    """Return a table of KLPER's scores for stored experiences, by the experiences' origin."""
    rows = []
    for world, members in group_by_world(results).items():
        for result in members:
            for reading in READINGS:
                scores = {origin: result.measure(f"kl {reading} {origin}") for origin in ORIGINS}
                late_scores = {origin: final_mean(values, 0.5) for origin, values in scores.items()}
                cells = [
                    "" if np.isnan(v).any() else format_estimate(median_bounds(v), 2) for v in late_scores.values()
                ]
                below_fraction = final_mean((scores["random"] < scores["present"]).astype(np.float64), 0.5)
                below_text = f"{100 * below_fraction.mean():.0f} %" if all(cells) else ""
                if any(cells):
                    rows.append((world, describe_cell(result, members), reading, *cells, below_text))
    header = ("world", "cell", "σ as", *ORIGINS, "random below present")
    return drop_empty_columns(Sheet("KLPER's score by origin", 3, header, tuple(rows), (_SCORES_NOTE,)))
