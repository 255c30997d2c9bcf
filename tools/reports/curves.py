"""Learning curves and final measures with intervals of the median, after de Bruin et al. 2018.

Curves correspond to figure 3 (figure 19 if networks differ), and dot plots of the three measures to figures 12 to 15.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from onrig.learner.trials.intervals import Bounds, curve_bounds
from onrig.learner.trials.measures import moving_average
from onrig.tools.reports.conditions import BASE_RATE_HZ, Value, describe_conditions, group_by_axes, varying_conditions
from onrig.tools.reports.results import BASELINE, Estimate, Group, Result, baseline, estimate, group_by_conditions
from onrig.tools.reports.style import (
    FINAL_LABEL,
    HIGHEST_LABEL,
    INK,
    PERFORMANCE_LABEL,
    RISE_LABEL,
    Label,
    Plot,
    Style,
    band_alpha,
    draw_curve_labels,
    draw_reference_lines,
    format_trial_counts,
    new_figure,
    ordinal_style,
    save_figure,
    set_title,
    strategy_style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SMOOTHING_WINDOW: Final = 20
"""Number of episodes in the moving average, which keeps the lines distinguishable."""
_MAX_POINTS: Final = 240
_PANELS_PER_FIGURE: Final = 6
_MAX_LINES: Final = 6
"""Maximum number of strategies in a panel before it is split by sampling or retention."""
_MIN_SHOWN: Final = -0.5


class Line(NamedTuple):
    """One cell's curve in a panel."""

    text: str
    style: Style
    result: Result


class Panel(NamedTuple):
    """Curves of one panel."""

    title: str
    lines: list[Line]


def draw_curves(results: Sequence[Result], folder: Path) -> list[Plot]:
    """Draw the learning curves of all cells, six panels per figure.

    Raises OSError, and ImportError if matplotlib is missing.
    """
    plots = _draw_pages(list(_panels(results)), folder, 3, "Learning curves")
    if networks := list(_network_panels(results)):
        plots += _draw_pages(networks, folder, 19, "Learning curves by network size")
    return plots


def _panels(results: Sequence[Result]) -> Iterator[Panel]:
    axes = varying_conditions(r.setting for r in results)
    groups = group_by_axes([(r.setting.conditions, r) for r in results], axes)
    sweep = _line_axis(results, axes) if all(len(members) == 1 for members in groups.values()) else None
    if sweep is not None:
        panel_axes = [axis for axis in axes if axis != sweep]
        for key, members in group_by_axes([(r.setting.conditions, r) for r in results], panel_axes).items():
            values = [r.setting.conditions[sweep] for r in members]
            are_numbers = all(isinstance(v, float) for v in values)
            order = sorted(range(len(members)), key=lambda i: values[i]) if are_numbers else range(len(members))  # type: ignore[arg-type, return-value]
            lines = [
                Line(
                    describe_conditions([sweep], [values[i]]),
                    ordinal_style(k, len(members), graded=are_numbers),
                    members[i],
                )
                for k, i in enumerate(order)
            ]
            yield Panel(describe_conditions(panel_axes, key), lines)
        return
    for key, members in groups.items():
        name = describe_conditions(axes, key)
        if len(members) <= _MAX_LINES:
            yield Panel(name, _strategy_lines(members))
            continue
        # If some samplings have importance weights, each panel compares the samplings of one retention (de Bruin et al.
        # 2018, §8.4).
        is_weighted = any("+" in r.setting.sampling for r in members)
        for subset in dict.fromkeys(_panel_subset(r, by_retention=is_weighted) for r in members):
            selected = [r for r in members if _panel_subset(r, by_retention=is_weighted) == subset]
            if len(selected) <= _MAX_LINES:
                yield Panel(_panel_title(name, subset), _strategy_lines(selected))
                continue
            for family in dict.fromkeys(r.setting.family for r in selected):
                same_family = [r for r in selected if r.setting.family == family]
                yield Panel(_panel_title(name, family), _strategy_lines(same_family))


def _panel_subset(result: Result, *, by_retention: bool) -> str:
    setting = result.setting
    return f"{setting.retention} retention" if by_retention else f"{setting.sampling} sampling"


def _panel_title(conditions: str, subset: str) -> str:
    return f"{conditions}, {subset}" if conditions else subset


def _line_axis(results: Sequence[Result], axes: Sequence[str]) -> str | None:
    """Return the axis with the most values, which separates the lines if each panel would otherwise have only one."""
    values = {axis: {r.setting.conditions[axis] for r in results} for axis in axes if axis != "plant"}
    return max(values, key=lambda axis: len(values[axis])) if values else None


def _network_panels(results: Sequence[Result]) -> Iterator[Panel]:
    """Yield one panel for each group of cells that differ only in their network."""
    panel_axes = [axis for axis in varying_conditions(r.setting for r in results) if axis != "network"]
    networks = list(dict.fromkeys(r.setting.conditions["network"] for r in results))
    for key, members in group_by_axes([(r.setting.conditions, r) for r in results], panel_axes).items():
        if len({r.setting.conditions["network"] for r in members}) == 1:
            continue
        lines = []
        for r in members:
            network: Value = r.setting.conditions["network"]
            line_style = ("-", "--", ":")[networks.index(network) % 3]
            style = strategy_style(r.setting.retention, r.setting.sampling)._replace(line=line_style)
            lines.append(Line(f"{r.setting.strategy}, {network}", style, r))
        yield Panel(describe_conditions(panel_axes, key), lines)


def _strategy_lines(members: Sequence[Result]) -> list[Line]:
    families = [r.setting.family for r in members]
    lines = []
    for r in members:
        style = strategy_style(r.setting.retention, r.setting.sampling)
        same_family = [k for k, family in enumerate(families) if family == r.setting.family]
        if len(same_family) > 1:  # one family at several exponents
            style = ordinal_style(same_family.index(members.index(r)), len(same_family), graded=True)
        lines.append(Line(r.setting.strategy, style, r))
    return lines


def _draw_pages(panels: Sequence[Panel], folder: Path, number: int, heading: str) -> list[Plot]:
    plots = []
    pages = [panels[i : i + _PANELS_PER_FIGURE] for i in range(0, len(panels), _PANELS_PER_FIGURE)]
    for page, page_panels in enumerate(pages, 1):
        suffix = f"-{page}" if len(pages) > 1 else ""
        path = folder / f"figure-{number:02d}-learning-curves{suffix}.png"
        name = f"{heading} ({page} of {len(pages)})" if len(pages) > 1 else heading
        plots.append(Plot(name, _caption(page_panels), number=number, path=_draw(page_panels, path)))
    return plots


def _draw(panels: Sequence[Panel], path: Path) -> Path:
    columns = 1 if len(panels) == 1 else 2
    rows = -(-len(panels) // columns)
    figure, grid = new_figure(rows, columns, 4.4 if rows * columns == 1 else 0.3 + 2.9 * rows)
    panel_axes: list[Axes] = [axes for row in grid for axes in row]
    for axes in panel_axes[len(panels) :]:
        axes.set_visible(False)
    labels_by_panel = [_draw_panel(axes, panel) for axes, panel in zip(panel_axes, panels, strict=False)]
    for k, axes in enumerate(panel_axes[: len(panels)]):
        if k % columns == 0:
            axes.set_ylabel(PERFORMANCE_LABEL if _is_normalised(panels[k]) else "mean reward per step (raw units)")
        if k + columns >= len(panels):
            axes.set_xlabel("training episode")
    figure.draw_without_rendering()
    for axes, labels in zip(panel_axes, labels_by_panel, strict=False):
        draw_curve_labels(axes, labels)
    return save_figure(figure, path)


def _draw_panel(axes: Axes, panel: Panel) -> list[Label]:
    """Draw one panel and return the labels for the ends of its lines."""
    normalised = _is_normalised(panel)
    if normalised:
        draw_reference_lines(axes)
    labels, lows, highs = [], [0.0] if normalised else [], [1.02] if normalised else []
    for line in panel.lines:
        smooth = moving_average(line.result.mu, SMOOTHING_WINDOW)
        n = smooth.shape[1]
        indices = np.unique(np.linspace(0, n - 1, min(n, _MAX_POINTS)).round().astype(np.int64))
        band, x = curve_bounds(smooth[:, indices]), line.result.episodes[indices]
        axes.fill_between(x, band.low, band.high, color=line.style.colour, alpha=band_alpha(len(panel.lines)), lw=0)
        axes.plot(x, band.median, color=line.style.colour, ls=line.style.line, lw=1.5)
        # With fewer than five trials, the interval is NaN, which fmin and fmax ignore.
        lows.append(float(np.min(np.fmin(band.low, band.median))))
        highs.append(float(np.max(np.fmax(band.high, band.median))))
        labels.append(Label(float(band.median[-1]), line.text, line.style.colour))
    if normalised:
        axes.set_ylim(max(_MIN_SHOWN, min(lows)) - 0.04, min(1.5, max(highs)) + 0.04)
    axes.set_xlim(0, max(line.result.episodes[-1] for line in panel.lines))
    set_title(axes, panel.title)
    return labels


def _is_normalised(panel: Panel) -> bool:
    return all(line.result.cell.config.task.normalization is not None for line in panel.lines)


def _caption(panels: Sequence[Panel]) -> str:
    results = [line.result for panel in panels for line in panel.lines]
    episodes_text = (
        "the noise-free evaluation episode for each training episode"
        if all(r.is_evaluated for r in results)
        else "each episode (the training episode if none was evaluated)"
    )
    return (
        f"Normalised performance of {episodes_text}: 0 for the random controller, 1 for the reference; the dotted "
        "line marks 0.8, the level of the rise time. Lines: median over the trials of the mean of the last "
        f"{SMOOTHING_WINDOW} episodes; bands: pointwise 95 % interval; "
        f"{format_trial_counts([len(r.seeds) for r in results])} trials per line. Values below {_MIN_SHOWN:g} are cut "
        "off."
    )


STRATEGY_FIGURE_TITLES: Final = {
    12: "Strategies under the default conditions",
    13: "Strategies at higher control frequencies",
    14: "Strategies with sensor and actuator noise",
    15: "Importance sampling with sensor and actuator noise",
}
_GROUPS_PER_FIGURE: Final = 4
_MIN_SWEEP: Final = 3
"""Minimum number of exponents for a family to be drawn as a sweep, in a different figure."""


def draw_dots(results: Sequence[Result], folder: Path) -> list[Plot]:
    """Draw dot plots of all groups with at least two strategies.

    Raises OSError, and ImportError if matplotlib is missing.
    """
    plots = []
    for number, groups_of_figure in sorted(group_by_figure(results).items()):
        pages = [
            groups_of_figure[i : i + _GROUPS_PER_FIGURE] for i in range(0, len(groups_of_figure), _GROUPS_PER_FIGURE)
        ]
        for page, selected in enumerate(pages, 1):
            suffix = f"-{page}" if len(pages) > 1 else ""
            path = _draw_dots(selected, folder / f"figure-{number:02d}-strategies{suffix}.png")
            name = (
                f"{STRATEGY_FIGURE_TITLES[number]} ({page} of {len(pages)})"
                if len(pages) > 1
                else STRATEGY_FIGURE_TITLES[number]
            )
            plots.append(Plot(name, _dots_caption(selected), number=number, path=path))
    return plots


def group_by_figure(results: Sequence[Result]) -> dict[int, list[Group]]:
    """Group the results by the paper's figure number, which depends on noise, rate and sampling."""
    figures: dict[int, list[Group]] = {}
    for group in group_by_conditions(results):
        families = [r.setting.family for r in group.results]
        members = [r for r in group.results if families.count(r.setting.family) < _MIN_SWEEP]
        unweighted = [r for r in members if "+" not in r.setting.sampling]
        noise, rate = (group.results[0].setting.conditions.get(axis) for axis in ("noise", "rate"))
        is_noisy = noise != 0.0
        if not is_noisy:
            number = 13 if isinstance(rate, float) and rate > BASE_RATE_HZ else 12
            _add_group(figures, number, group.conditions, members)
            continue
        _add_group(figures, 14, group.conditions, unweighted)
        if len(unweighted) < len(members):
            _add_group(figures, 15, group.conditions, members)
    return figures


def _add_group(figures: dict[int, list[Group]], number: int, conditions: str, members: list[Result]) -> None:
    if len(members) > 1:
        order = list(dict.fromkeys(r.setting.retention for r in members))
        members = sorted(members, key=lambda r: order.index(r.setting.retention))
        figures.setdefault(number, []).append(Group(conditions, members))


def _draw_dots(groups: Sequence[Group], path: Path) -> Path:
    heights = [0.85 + 0.27 * len(group.results) for group in groups]
    figure, grid = new_figure(len(groups), 3, sum(heights) + 0.2, sharey="row")
    figure.axes[0].get_gridspec().set_height_ratios(heights)  # type: ignore[union-attr]
    for row, group in zip(grid, groups, strict=True):
        _draw_row(row, group)
    for axes, name in zip(grid[-1], (FINAL_LABEL, HIGHEST_LABEL, RISE_LABEL), strict=True):
        axes.set_xlabel(name)
    return save_figure(figure, path)


def _draw_row(row: list[Axes], group: Group) -> None:
    estimates = [estimate(r) for r in group.results]
    baseline_estimate = estimates[group.results.index(baseline(group))]
    for k, axes in enumerate(row):
        _draw_reference(axes, _measure(baseline_estimate, k))
        for y, (r, e) in enumerate(zip(group.results, estimates, strict=True)):
            style = strategy_style(r.setting.retention, r.setting.sampling)
            bounds = _measure(e, k)
            if np.isfinite(bounds.low):
                axes.plot((bounds.low, bounds.high), (y, y), color=style.colour, lw=2.2, solid_capstyle="butt")
            axes.plot(bounds.value, y, style.marker, ms=6.5, mfc=style.face, mec=style.colour, mew=1.5)
            if k == 2 and e.n_never_rose:
                axes.annotate(
                    f"{e.n_never_rose} never",
                    (np.nanmax(bounds), y),
                    xytext=(6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                    color=INK,
                )
        axes.margins(x=0.08)
        axes.grid(axis="y", lw=0)
        axes.locator_params(axis="x", nbins=5)
    if any(e.n_never_rose for e in estimates):
        low, high = row[2].get_xlim()
        row[2].set_xlim(low, high + 0.22 * (high - low))
    row[0].set_ylim(len(group.results) - 0.5, -0.5)
    row[0].set_yticks(range(len(group.results)), [r.setting.strategy for r in group.results])
    for axes in row[1:]:
        axes.tick_params(axis="y", length=0)
    set_title(row[0], group.conditions)


def _measure(e: Estimate, k: int) -> Bounds:
    return (e.final, e.highest, e.rise)[k]


def _draw_reference(axes: Axes, bounds: Bounds) -> None:
    if np.isfinite(bounds.low):
        axes.axvspan(bounds.low, bounds.high, color="0.93", lw=0, zorder=0)
    axes.axvline(bounds.value, color="0.6", lw=0.9, ls=(0, (4, 3)), zorder=1)


def _dots_caption(groups: Sequence[Group]) -> str:
    members = [r for group in groups for r in group.results]
    reference = BASELINE if all(baseline(g).setting.strategy == BASELINE for g in groups) else "the first strategy"
    some_never_rose = any(not r.rise.has_risen.all() for r in members)
    return (
        f"Medians over {format_trial_counts([len(r.seeds) for r in members])} trials with 95 % intervals; grey: "
        f"{reference}. μ_final is the mean normalised performance of the last 100 episodes, μ_max the highest of a "
        "trial, and the rise time the first episode with a normalised performance of 0.8 or more"
        + (" (or the last episode of trials that never reached it)." if some_never_rose else ".")
        + " Overlapping intervals are inconclusive; see the table of paired differences."
    )
