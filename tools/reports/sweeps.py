"""Plots of the three measures over a swept parameter: figures 5, 7 to 11, 20 and 21 of de Bruin et al. 2018."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from onrig.learner.trials.intervals import Bounds
from onrig.tools.reports.conditions import CellSetup, Value, describe_conditions, differing_axes, group_by_axes
from onrig.tools.reports.results import Estimate, Result, estimate
from onrig.tools.reports.style import (
    FINAL_LABEL,
    HIGHEST_LABEL,
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIN_POINTS: Final = 3
"""Number of swept values that at least one line of a figure must have."""
_MAX_LINES: Final = 6
_ROWS_PER_FIGURE: Final = 4
_LINE_AXES: Final = ("strategy", "algorithm", "capacity", "synthetic", "kept", "discount", "network")
_TWO_LINE_RISE_LABEL: Final = "rise time 0.8\n(episodes)"


class Sweep(NamedTuple):
    """Parameter on the horizontal axis."""

    slug: str
    axis: str
    """Label of the axis."""
    value: Callable[[CellSetup], Value]
    represented: frozenset[str]
    """Conditions that the axis already represents."""
    family: bool = False
    """Whether strategies that differ only in their exponent form one line."""


class Line(NamedTuple):
    """Conditions and points of one line."""

    key: Mapping[str, Value]
    x: list[float]
    estimates: list[Estimate]
    trials: list[int]


SWEEPS: Final = (
    Sweep("synthetic-fraction", "synthetic fraction", lambda s: s.conditions["fraction"], frozenset({"fraction"})),
    Sweep("rate", "control frequency (Hz)", lambda s: s.conditions["rate"], frozenset({"rate"})),
    Sweep("noise", "noise σ (normalised)", lambda s: s.conditions["noise"], frozenset({"noise"})),
    Sweep("retention-alpha", "α of the retention", lambda s: s.alpha, frozenset(), family=True),
    Sweep("sampling-alpha", "α of the sampling", lambda s: s.exponent, frozenset(), family=True),
)


def draw_sweeps(results: Sequence[Result], folder: Path) -> list[Plot]:
    """Draw each sweep that the grid contains. Raises OSError, and ImportError if matplotlib is missing."""
    plots = []
    for sweep in SWEEPS:
        lines = sweep_lines(sweep, results)
        if not lines:
            continue
        number, heading = paper_figure(sweep, lines)
        panels = _panels(lines)
        pages = [panels[i : i + _ROWS_PER_FIGURE] for i in range(0, len(panels), _ROWS_PER_FIGURE)]
        for page, page_panels in enumerate(pages, 1):
            suffix = f"-{page}" if len(pages) > 1 else ""
            path = _draw(sweep, page_panels, folder / f"figure-{number:02d}-{sweep.slug}{suffix}.png")
            name = f"{heading} ({page} of {len(pages)})" if len(pages) > 1 else heading
            plots.append(Plot(name, _caption(page_panels), number=number, path=path))
    return plots


def sweep_lines(sweep: Sweep, results: Sequence[Result]) -> list[Line]:
    """Return the lines that have at least two points; empty if none of them has ``MIN_POINTS``."""
    items: list[tuple[Mapping[str, Value], tuple[float, Result]]] = []
    for r in results:
        x = sweep.value(r.setting)
        if isinstance(x, float):
            name = r.setting.family if sweep.family else r.setting.strategy
            conditions = {axis: v for axis, v in r.setting.conditions.items() if axis not in sweep.represented}
            items.append(({"strategy": name, **conditions}, (x, r)))
    axes = differing_axes([conditions for conditions, _ in items])
    lines = []
    for key, members in group_by_axes(items, axes).items():
        points = dict(sorted(dict(reversed(members)).items()))
        if len(points) > 1:
            estimates, trials = [estimate(r) for r in points.values()], [len(r.seeds) for r in points.values()]
            lines.append(Line(dict(zip(axes, key, strict=True)), list(points), estimates, trials))
    return lines if any(len(line.x) >= MIN_POINTS for line in lines) else []


def paper_figure(sweep: Sweep, lines: Sequence[Line]) -> tuple[int, str]:
    """Return the number of the corresponding figure of de Bruin et al. 2018, and the title."""
    axes = _varying_axes(lines)
    match sweep.slug:
        case "synthetic-fraction":
            if "refresh" in axes:
                return 8, "Synthetic experiences that are kept for longer"
            if "algorithm" in axes:
                return 7, "Synthetic experiences by algorithm"
            return 5, "Synthetic experiences by buffer size"
        case "rate":
            if "kept" in axes:
                return 10, "Control frequency, with experiences dropped [DE]"
            return 9, "Control frequency"
        case "noise":
            return 11, "Sensor and actuator noise"
        case "retention-alpha":
            return 20, "Exponent of the retention"
    return 21, "Exponent of prioritised sampling"


def _varying_axes(lines: Sequence[Line]) -> list[str]:
    return differing_axes([line.key for line in lines])


def _panels(lines: Sequence[Line]) -> list[tuple[str, list[tuple[str, Style, Line]]]]:
    """Distribute lines over panels.

    Few lines share one panel per plant; otherwise, the lines of each panel differ along a single axis.
    """
    axes = _varying_axes(lines)
    line_axes = [axis for axis in axes if axis != "plant"]
    plants = {line.key.get("plant") for line in lines}
    if len(lines) > _MAX_LINES * len(plants):
        line_axes = [*(axis for axis in _LINE_AXES if axis in line_axes), *line_axes][:1]
    panel_axes = [axis for axis in axes if axis not in line_axes]
    styles = _line_styles(lines, line_axes)
    panels: dict[tuple[Value, ...], list[tuple[str, Style, Line]]] = {}
    for line in lines:
        key = tuple(line.key[axis] for axis in line_axes)
        entry = (_describe_line(line_axes, key), styles[key], line)
        panels.setdefault(tuple(line.key[axis] for axis in panel_axes), []).append(entry)
    return [(_describe_line(panel_axes, key), entries) for key, entries in panels.items()]


def _describe_line(axes: Sequence[str], key: Sequence[Value]) -> str:
    strategy_names = [str(v) for axis, v in zip(axes, key, strict=True) if axis == "strategy"]
    conditions = [(axis, v) for axis, v in zip(axes, key, strict=True) if axis != "strategy"]
    return ", ".join(
        filter(None, (*strategy_names, describe_conditions([a for a, _ in conditions], [v for _, v in conditions])))
    )


def _line_styles(lines: Sequence[Line], line_axes: Sequence[str]) -> dict[tuple[Value, ...], Style]:
    """Return the styles of the lines, keyed by their values on ``line_axes``.

    Lines have their strategies' styles if the strategy is an axis, otherwise ordinal styles, graded for a quantity.
    """
    keys = list(dict.fromkeys(tuple(line.key[axis] for axis in line_axes) for line in lines))
    if line_axes and line_axes[0] == "strategy":
        other_keys = list(dict.fromkeys(key[1:] for key in keys))
        styles = {}
        for key in keys:
            retention, _, sampling = str(key[0]).partition("[")
            style = strategy_style(retention.partition("(")[0], sampling.rstrip("]"))
            line_style = style.line if len(other_keys) == 1 else ("-", "--", ":", "-.")[other_keys.index(key[1:]) % 4]
            styles[key] = style._replace(line=line_style)
        return styles
    is_graded = len(line_axes) == 1 and all(isinstance(key[0], float) for key in keys)
    if is_graded:
        keys.sort(key=lambda key: float(key[0] or 0.0))
    return {key: ordinal_style(i, len(keys), graded=is_graded) for i, key in enumerate(keys)}


def _draw(sweep: Sweep, panels: Sequence[tuple[str, list[tuple[str, Style, Line]]]], path: Path) -> Path:
    figure, grid = new_figure(len(panels), 3, 0.3 + 2.6 * len(panels))
    for row, (name, entries) in zip(grid, panels, strict=True):
        for k, axes in enumerate(row):
            _draw_panel(axes, entries, k)
            set_swept_ticks(axes, [x for _, _, line in entries for x in line.x])
            axes.set_ylabel((FINAL_LABEL, HIGHEST_LABEL, _TWO_LINE_RISE_LABEL)[k])
        set_title(row[0], name)
    for axes in grid[-1]:
        axes.set_xlabel(sweep.axis)
    figure.draw_without_rendering()
    for row, (_, entries) in zip(grid, panels, strict=True):
        if len(entries) > 1 or entries[0][0]:
            draw_curve_labels(
                row[2], [Label(line.estimates[-1].rise.value, text, style.colour) for text, style, line in entries]
            )
    return save_figure(figure, path)


def _draw_panel(axes: Axes, entries: Sequence[tuple[str, Style, Line]], k: int) -> None:
    for _, style, line in entries:
        bounds = [_measure(e, k) for e in line.estimates]
        value, low, high = (np.array(column) for column in zip(*bounds, strict=True))
        axes.fill_between(line.x, low, high, color=style.colour, alpha=band_alpha(len(entries)), lw=0)
        axes.plot(
            line.x, value, ls=style.line, marker=style.marker, ms=5, color=style.colour, mfc=style.face, mew=1.3, lw=1.5
        )
        for x, y, e in zip(line.x, value, line.estimates, strict=True):
            if k == 2 and e.n_never_rose:
                axes.annotate(
                    "↑", (x, y), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=8, color=INK
                )
    axes.margins(y=0.12)
    axes.locator_params(axis="y", nbins=5)


def _measure(e: Estimate, k: int) -> Bounds:
    return (e.final, e.highest, e.rise)[k]


def _caption(panels: Sequence[tuple[str, list[tuple[str, Style, Line]]]]) -> str:
    lines = [line for _, entries in panels for _, _, line in entries]
    return (
        f"Medians over {format_trial_counts([n for line in lines for n in line.trials])} trials with 95 % intervals "
        "(bands). μ_final is the mean normalised performance of the last 100 episodes, μ_max the highest of a trial, "
        "and the rise time the first episode with 0.8 or more; ↑ marks points where some trials never reached it, for "
        "which their last episode is used. Labels at the ends of the right-hand lines apply to the complete row."
    )
