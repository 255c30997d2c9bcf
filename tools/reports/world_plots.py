"""Plots of an experiment in worlds: curves over environment steps, and performance over memory size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from onrig.learner.trials.intervals import curve_bounds, median_bounds
from onrig.learner.trials.step_run import DIVERGENCES, READINGS
from onrig.tools.reports.style import (
    GREEN,
    INK,
    Label,
    Plot,
    Style,
    band_alpha,
    draw_curve_labels,
    format_trial_counts,
    new_figure,
    ordinal_style,
    save_figure,
    set_swept_ticks,
    set_title,
    strategy_style,
)
from onrig.tools.reports.world_results import (
    Values,
    WorldResult,
    buffer_size_by_rule,
    describe_cell,
    full_memory_result,
    group_by_world,
    labels_without_strategy,
)

STEPS_LABEL: Final = "environment steps"
_MIN_CAPACITIES: Final = 3
"""Minimum number of memory sizes in a figure."""


def cell_styles(worlds: Mapping[str, Sequence[WorldResult]]) -> dict[str, Style]:
    """Return a style for each cell's distinguishing name (`describe_cell`); it is the same in all worlds."""
    names = dict.fromkeys(describe_cell(result, members) for members in worlds.values() for result in members)
    return {name: ordinal_style(k, len(names), graded=False) for k, name in enumerate(names)}


def draw_world(
    folder: Path, world: str, members: Sequence[WorldResult], styles: Mapping[str, Style], *, scores: bool
) -> list[Plot]:
    """Draw the cells of one world, including KLPER's score if ``scores`` is set.

    Raises OSError, and ImportError if matplotlib is missing.
    """
    name = world.replace("/", "-")
    trials = format_trial_counts([len(result.seeds) for result in members])
    caption = (
        f"Return of the evaluations: median over the trials with its pointwise 95 % interval; {trials} trials per line."
    )
    path = _draw_curves(
        folder / f"returns-{name}.png", world, members, styles, {"return": [r.returns for r in members]}
    )
    plots = [Plot(f"Learning curves, {world}", caption, path=path)]
    with np.errstate(divide="ignore"):
        panels = {
            "ln |TD error|": [np.log(r.measure("td error")) for r in members],
            "target": [r.measure("target") for r in members],
        }
    panels = {name: curves for name, curves in panels.items() if any(np.isfinite(values).any() for values in curves)}
    if panels:  # algorithms that learn from batches of their own policies replay nothing, and V-RACER has no targets
        target = " and mean target" if "target" in panels else ""
        caption = (
            "Replayed experiences, as in figures 6b and 6c of Oh et al. 2021: logarithm of the mean |TD "
            f"error|{target} of the mini-batches between evaluations, in units of the scaled reward; bands as above."
        )
        path = _draw_curves(folder / f"replayed-{name}.png", world, members, styles, panels)
        plots.append(Plot(f"Replayed experiences, {world}", caption, path=path))
    if scores:
        caption = (
            "Mean score κ of the mini-batches between evaluations, as in figures 2 and 4 of Cicek et al. 2021, with σ "
            "read as a covariance (above) and as a standard deviation (below); bands as above."
        )
        panels = {f"κ, σ as {reading}": [r.measure(f"kl {reading}") for r in members] for reading in READINGS}
        path = _draw_curves(folder / f"scores-{name}.png", world, members, styles, panels)
        plots.append(Plot(f"KLPER's score, {world}", caption, path=path))
    divergences, far_fractions = ([r.measure(measure) for r in members] for measure in DIVERGENCES)
    if np.isfinite([values[:, -1].mean() for values in divergences]).any():
        caption = (
            "Logarithm of the mean KL divergence of the current policy from the behaviour policies, and share of far "
            "experiences, both over the memory, as in figures 2 and 5 of Novati and Koumoutsakos 2019; bands as above."
        )
        panels = {
            "log10 of the KL divergence": [np.log10(np.where(values > 0, values, np.nan)) for values in divergences],
            "share of far experiences": far_fractions,
        }
        path = _draw_curves(folder / f"departure-{name}.png", world, members, styles, panels)
        plots.append(Plot(f"Distance from the behaviour policies, {world}", caption, path=path))
    return plots


def _draw_curves(
    path: Path,
    world: str,
    members: Sequence[WorldResult],
    styles: Mapping[str, Style],
    panels: Mapping[str, Sequence[Values]],
) -> Path:
    """Draw every cell's curves, each (T, P), in one panel per name."""
    figure, grid = new_figure(len(panels), 1, 1.6 + 2.8 * len(panels))
    labels: list[list[Label]] = []
    for (axes,), (name, curves) in zip(grid, panels.items(), strict=True):
        end_labels = []
        for result, values in zip(members, curves, strict=True):
            cell_name = describe_cell(result, members)
            style, band = styles[cell_name], curve_bounds(values)
            axes.fill_between(
                result.steps, band.low, band.high, color=style.colour, alpha=band_alpha(len(members)), lw=0
            )
            marker = "o" if len(result.steps) == 1 else None  # a single evaluation would draw no line
            axes.plot(result.steps, band.median, color=style.colour, ls=style.line, lw=1.5, marker=marker)
            if np.isfinite(band.median[-1]):
                end_labels.append(Label(float(band.median[-1]), cell_name, style.colour, style.line))
        axes.set_xlim(0, max(result.steps[-1] for result in members))
        axes.set_ylabel(name)
        labels.append(end_labels)
    grid[-1][0].set_xlabel(STEPS_LABEL)
    set_title(grid[0][0], world)
    figure.draw_without_rendering()
    for (axes,), end_labels in zip(grid, labels, strict=True):
        draw_curve_labels(axes, end_labels)
    return save_figure(figure, path)


def draw_capacities(folder: Path, results: Sequence[WorldResult]) -> list[Plot]:
    """Draw performance by retention and capacity, and the rule of thumb (de Bruin et al. 2018, figures 16, 17, 25, 26).

    Returns an empty list if no retention was run with three capacities under otherwise equal conditions. Raises
    OSError, and ImportError if matplotlib is missing.
    """
    worlds = {
        world: members
        for world, members in group_by_world(results).items()
        if any(map(_has_enough_capacities, _lines(members).values()))
    }
    if not worlds:
        return []
    figure, grid = new_figure(len(worlds), 3, 0.4 + 2.6 * len(worlds))
    for row, (world, members) in zip(grid, worlds.items(), strict=True):
        lines, size, full_memory = _lines(members), buffer_size_by_rule(members), full_memory_result(members)
        measures = {"highest return": "highest", "final return": "final", "mean return": "area"}
        for axes, (name, measure) in zip(row, measures.items(), strict=True):
            for retention, points in lines.items():
                style = strategy_style(retention, "Uniform")
                bounds = [median_bounds(getattr(r, measure)) for r in points.values()]
                value, low, high = (np.array(column) for column in zip(*bounds, strict=True))
                axes.fill_between(list(points), low, high, color=style.colour, alpha=band_alpha(len(lines)), lw=0)
                axes.plot(list(points), value, marker=style.marker, ms=4, color=style.colour, lw=1.5, label=retention)
            if full_memory is not None:
                axes.axhline(float(np.median(getattr(full_memory, measure))), color=INK, lw=1, ls="--", label="FULL")
            if size is not None:
                axes.axvline(size.n_experiences, color=GREEN, lw=1, label="rule of thumb")
            set_swept_ticks(axes, [x for points in lines.values() for x in points])
            axes.tick_params(axis="x", labelrotation=90)
            axes.set_ylabel(name)
        set_title(row[0], world)
    for axes in grid[-1]:
        axes.set_xlabel("capacity (experiences)")
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names), fontsize=9, frameon=False)
    caption = (
        "Highest, final and mean return by retention and capacity of the memory, after figures 16, 25 and 26; medians "
        "over the trials and their 95 % intervals. Green: the rule of thumb of figure 17, which is the number of "
        "experiences that FULL[Uniform] needed for 90 % of its final performance above the return of its first "
        "evaluation."
    )
    return [
        Plot(
            "Retention and the size of the memory",
            caption,
            number=16,
            path=save_figure(figure, folder / "capacities.png"),
        )
    ]


def _lines(members: Sequence[WorldResult]) -> dict[str, dict[int, WorldResult]]:
    """Return the results with uniform sampling by retention and ascending capacity.

    The result is empty if these cells differ in anything else.
    """
    by_retention: dict[str, dict[int, WorldResult]] = {}
    kinds: list[dict[str, str | float | int]] = []
    for result in members:
        strategy, capacity = result.strategy, result.cell.config.selection.capacity
        if strategy.sampling == "Uniform" and capacity is not None:
            by_retention.setdefault(strategy.retention, {})[capacity] = result
            kinds.append({k: v for k, v in labels_without_strategy(result).items() if k != "capacity"})
    if any(kind != kinds[0] for kind in kinds):
        return {}
    return {retention: dict(sorted(points.items())) for retention, points in by_retention.items()}


def _has_enough_capacities(points: Mapping[int, WorldResult]) -> bool:
    return len(points) >= _MIN_CAPACITIES
