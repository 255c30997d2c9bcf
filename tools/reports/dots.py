"""The three measures of every strategy with their bounds: figures 12 to 15 of de Bruin et al. 2018."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from onrig.learner.trials.measures import Bounds
from onrig.tools.reports.conditions import BASE_RATE_HZ
from onrig.tools.reports.results import BASELINE, Estimate, Group, Result, baseline, estimate, groups
from onrig.tools.reports.style import (
    FINAL,
    HIGHEST,
    INK,
    RISE,
    Picture,
    counted,
    new_figure,
    save,
    strategy_look,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES: Final = {
    12: "Strategies under the default conditions",
    13: "Strategies at higher control frequencies",
    14: "Strategies with sensor and actuator noise",
    15: "Importance sampling with sensor and actuator noise",
}
_GROUPS: Final = 4
_SWEPT: Final = 3
"""A family with as many exponents as this is a sweep, which has a figure of its own."""


def draw_dots(results: Sequence[Result], folder: Path) -> list[Picture]:
    """Draw every group of at least two strategies.  Raises OSError, and ImportError without matplotlib."""
    pictures = []
    for number, some in sorted(by_figure(results).items()):
        pages = [some[i : i + _GROUPS] for i in range(0, len(some), _GROUPS)]
        for page, shown in enumerate(pages, 1):
            end = f"-{page}" if len(pages) > 1 else ""
            path = _draw(shown, folder / f"figure-{number:02d}-strategies{end}.png")
            name = f"{TITLES[number]} ({page} of {len(pages)})" if len(pages) > 1 else TITLES[number]
            pictures.append(Picture(number, name, _caption(shown), path))
    return pictures


def by_figure(results: Sequence[Result]) -> dict[int, list[Group]]:
    """Which groups go into which figure, by their noise, rate and sampling."""
    figures: dict[int, list[Group]] = {}
    for group in groups(results):
        families = [r.setting.family for r in group.results]
        members = [r for r in group.results if families.count(r.setting.family) < _SWEPT]
        plain = [r for r in members if "+" not in r.setting.sampling]
        noise, rate = (group.results[0].setting.conditions.get(axis) for axis in ("noise", "rate"))
        noisy = noise != 0.0
        if not noisy:
            number = 13 if isinstance(rate, float) and rate > BASE_RATE_HZ else 12
            _put(figures, number, group.conditions, members)
            continue
        _put(figures, 14, group.conditions, plain)
        if len(plain) < len(members):
            _put(figures, 15, group.conditions, members)
    return figures


def _put(figures: dict[int, list[Group]], number: int, conditions: str, members: list[Result]) -> None:
    if len(members) > 1:
        order = list(dict.fromkeys(r.setting.retention for r in members))
        members = sorted(members, key=lambda r: order.index(r.setting.retention))
        figures.setdefault(number, []).append(Group(conditions, members))


def _draw(some: Sequence[Group], path: Path) -> Path:
    heights = [0.85 + 0.27 * len(group.results) for group in some]
    figure, grid = new_figure(len(some), 3, sum(heights) + 0.2, sharey="row")
    figure.axes[0].get_gridspec().set_height_ratios(heights)  # type: ignore[union-attr]
    for row, group in zip(grid, some, strict=True):
        _row(row, group)
    for axes, name in zip(grid[-1], (FINAL, HIGHEST, RISE), strict=True):
        axes.set_xlabel(name)
    return save(figure, path)


def _row(row: list[Axes], group: Group) -> None:
    estimates = [estimate(r) for r in group.results]
    base = estimates[group.results.index(baseline(group))]
    for k, axes in enumerate(row):
        _reference(axes, _measure(base, k))
        for y, (r, e) in enumerate(zip(group.results, estimates, strict=True)):
            look = strategy_look(r.setting.retention, r.setting.sampling)
            bounds = _measure(e, k)
            if np.isfinite(bounds.low):
                axes.plot((bounds.low, bounds.high), (y, y), color=look.colour, lw=2.2, solid_capstyle="butt")
            axes.plot(bounds.value, y, look.marker, ms=6.5, mfc=look.face, mec=look.colour, mew=1.5)
            if k == 2 and e.never:
                axes.annotate(
                    f"{e.never} never",
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
    if any(e.never for e in estimates):
        low, high = row[2].get_xlim()
        row[2].set_xlim(low, high + 0.22 * (high - low))
    row[0].set_ylim(len(group.results) - 0.5, -0.5)
    row[0].set_yticks(range(len(group.results)), [r.setting.strategy for r in group.results])
    for axes in row[1:]:
        axes.tick_params(axis="y", length=0)
    title(row[0], group.conditions)


def _measure(e: Estimate, k: int) -> Bounds:
    return (e.final, e.highest, e.rise)[k]


def _reference(axes: Axes, bounds: Bounds) -> None:
    if np.isfinite(bounds.low):
        axes.axvspan(bounds.low, bounds.high, color="0.93", lw=0, zorder=0)
    axes.axvline(bounds.value, color="0.6", lw=0.9, ls=(0, (4, 3)), zorder=1)


def _caption(some: Sequence[Group]) -> str:
    members = [r for group in some for r in group.results]
    against = BASELINE if all(baseline(g).setting.strategy == BASELINE for g in some) else "the first strategy"
    never = any(not r.rise.risen.all() for r in members)
    return (
        f"Means over {counted([len(r.seeds) for r in members])} trials with 95 % bootstrap bounds; grey: {against}. "
        "μ_final is the mean normalised performance of the last 100 episodes, μ_max the highest of a trial, the rise "
        "time the first episode with a normalised performance of 0.8 or more"
        + (" (trials that never got there count with their last episode: a lower bound)." if never else ".")
        + " Bounds that overlap do not settle a difference: the paired table does."
    )
