"""``onrig report`` of an experiment in worlds: returns over environment steps, means and differences by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.measures import (
    curve_bounds,
    final_mean,
    interquartile_mean,
    mean_bounds,
    paired,
    paired_difference,
)
from onrig.tools.experiments.spec import Spec
from onrig.tools.experiments.store import WorldCell, read_trials
from onrig.tools.reports.page import Content, Sheet, bounded, without_empty
from onrig.tools.reports.results import FEW
from onrig.tools.reports.style import Label, Picture, counted, direct_labels, new_figure, ordinal_look, save, title
from onrig.tools.reports.tables import EACH, marked

_STEPS: Final = "environment steps"
_MEASURES: Final = (
    "Returns of noise-free evaluation episodes, raw rewards. Area: mean over all evaluations; final: mean of the last "
    "tenth of them; IQM: mean of the middle half of the trials (interquartile mean)."
)


class WorldResult(NamedTuple):
    """One cell with T finite trials of P evaluations."""

    cell: WorldCell
    seeds: NDArray[np.int64]
    """(T,)"""
    returns: NDArray[np.float64]
    """(T, P) mean return of each evaluation."""
    finished: int
    """Trials, those that are not finite included."""
    replayed: NDArray[np.float64] | None
    """(T, 2, P) mean |TD error| and mean target of the minibatches before each evaluation."""

    @property
    def area(self) -> NDArray[np.float64]:
        """Mean return over all evaluations, (T,)."""
        return np.asarray(self.returns.mean(axis=1))

    @property
    def final(self) -> NDArray[np.float64]:
        """Mean return over the last tenth of the evaluations, (T,)."""
        return final_mean(self.returns)

    @property
    def steps(self) -> NDArray[np.int64]:
        """Environment steps at the evaluations, (P,)."""
        return self.cell.config.evaluation.every * np.arange(1, self.cell.points + 1)


def read_results(folder: Path, cells: Sequence[WorldCell]) -> list[WorldResult]:
    """Read every cell with a finished trial, in the grid's order."""
    found = []
    for cell in cells:
        trials = read_trials(folder, cell)
        finite = np.isfinite(trials.evaluation).all(axis=1)
        if len(trials.seeds):
            replayed = None if trials.replayed is None else trials.replayed[finite]
            found.append(
                WorldResult(cell, trials.seeds[finite], trials.evaluation[finite], len(trials.seeds), replayed)
            )
    return found


def content_of(folder: Path, figures: Path, spec: Spec, cells: Sequence[WorldCell]) -> Content | None:
    """Draw and compare what is finished; None where nothing is.  Raises OSError."""
    results = read_results(folder, cells)
    usable = [result for result in results if len(result.seeds)]
    if not usable:
        return None
    warnings = []
    done, asked = sum(result.finished for result in results), len(cells) * spec.trials
    if done < asked:
        warnings.append(f"Unfinished: {done} of {asked} trials; the results below are from these.")
    spoilt = done - sum(len(result.seeds) for result in results)
    if spoilt:
        warnings.append(f"{spoilt} trials are left out because their networks diverged.")
    fewest = min(len(result.seeds) for result in usable)
    if fewest < FEW:
        warnings.append(f"Some means are of {fewest} trials: bounds of fewer than {FEW} are too narrow.")
    try:
        pictures = [draw(figures, *of_world) for of_world in by_world(usable).items() for draw in (_returns, _replayed)]
    except ImportError:
        pictures = []
        warnings.append("No figures: matplotlib is not installed (pip install 'onrig[viz]').")
    sheets = [cells_sheet(usable)]
    differences = differences_sheet(usable)
    if differences.rows:
        sheets.insert(0, differences)
    lead = (
        f"{spec.name}: {len(cells)} cells, {spec.trials} trials each, {spec.steps} {_STEPS}, an evaluation of "
        f"{spec.evaluation.episodes} episodes every {spec.evaluation.every}. Means with 95 % bootstrap bounds; "
        "differences are paired by seed."
    )
    return Content(spec.title or spec.name, lead, warnings, {}, pictures, sheets, {})


def by_world(results: Sequence[WorldResult]) -> dict[str, list[WorldResult]]:
    """Results by their task."""
    found: dict[str, list[WorldResult]] = {}
    for result in results:
        found.setdefault(str(result.cell.label["world"]), []).append(result)
    return found


def in_words(result: WorldResult, members: Sequence[WorldResult]) -> str:
    """What tells a cell from the others of its task, all of it if there are no others."""
    label = {k: v for k, v in result.cell.label.items() if k != "world"}
    apart = {k: v for k, v in label.items() if any(other.cell.label.get(k) != v for other in members)}
    words = [str(v) if k in ("strategy", "algorithm") else f"{k} {v}" for k, v in (apart or label).items()]
    return ", ".join(words) or "trials"


def cells_sheet(results: Sequence[WorldResult]) -> Sheet:
    """Every cell."""
    rows = tuple(
        (
            world,
            in_words(result, members),
            str(len(result.seeds)),
            bounded(mean_bounds(result.area), 1),
            bounded(mean_bounds(result.final), 1),
            bounded(interquartile_mean(result.final), 1),
        )
        for world, members in by_world(results).items()
        for result in members
    )
    return Sheet("All cells", 2, ("world", "cell", "trials", "area", "final", "final, IQM"), rows, (_MEASURES,))


def differences_sheet(results: Sequence[WorldResult]) -> Sheet:
    """Each cell against the first that differs from it in the strategy alone, else against the first of its task."""
    rows = []
    for world, members in by_world(results).items():
        for result in members:
            first = next(other for other in members if _apart(other) == _apart(result))
            against = members[0] if first is result else first
            i, j = paired(result.seeds, against.seeds)
            if against is result or not len(i):
                continue
            area = paired_difference(result.area[i], against.area[j])
            final = paired_difference(result.final[i], against.final[j])
            shown = [marked(bounds, 0.0) + bounded(bounds, 1, signed=True) for bounds in (area, final)]
            named = f"{in_words(result, members)} − {in_words(against, members)}"
            rows.append((world, named, str(len(i)), *shown))
    note = f"Paired by seed, 95 % bootstrap bounds. {EACH}"
    return without_empty(
        Sheet("Differences", 2, ("world", "difference", "pairs", "area", "final"), tuple(rows), (note,))
    )


def _apart(result: WorldResult) -> dict[str, str | float | int]:
    return {k: v for k, v in result.cell.label.items() if k != "strategy"}


def _returns(folder: Path, world: str, members: Sequence[WorldResult]) -> Picture:
    trials = counted([len(result.seeds) for result in members])
    caption = f"Mean return of the evaluations; bands: 95 % bootstrap bounds of that mean; {trials} trials a line."
    path = folder / f"returns-{_file(world)}.png"
    panels = {"return": [result.returns for result in members]}
    return Picture(0, f"Learning curves, {world}", caption, _drawn(path, world, members, panels))


def _replayed(folder: Path, world: str, members: Sequence[WorldResult]) -> Picture:
    caption = (
        "What is replayed, after figures 6b and 6c of Oh et al. 2021: mean |TD error| and mean target of the "
        "minibatches between evaluations, in units of the scaled reward; bands as above."
    )
    panels: dict[str, list[NDArray[np.float64]]] = {}
    for k, name in enumerate(("ln |TD error|", "target")):
        none = [np.full_like(result.returns, np.nan) for result in members]
        panels[name] = [n if r.replayed is None else r.replayed[:, k] for n, r in zip(none, members, strict=True)]
    with np.errstate(divide="ignore"):
        panels["ln |TD error|"] = [np.log(errors) for errors in panels["ln |TD error|"]]
    path = folder / f"replayed-{_file(world)}.png"
    return Picture(0, f"Replayed experiences, {world}", caption, _drawn(path, world, members, panels))


def _drawn(
    path: Path, world: str, members: Sequence[WorldResult], panels: Mapping[str, Sequence[NDArray[np.float64]]]
) -> Path:
    """Draw curves (T, P) of every cell, a panel for each name."""
    figure, grid = new_figure(len(panels), 1, 1.6 + 2.8 * len(panels))
    labels: list[list[Label]] = []
    for (axes,), (name, curves) in zip(grid, panels.items(), strict=True):
        ends = []
        for k, (result, values) in enumerate(zip(members, curves, strict=True)):
            look, band = ordinal_look(k, len(members), graded=False), curve_bounds(values)
            axes.fill_between(result.steps, band.low, band.high, color=look.colour, alpha=0.18, lw=0)
            axes.plot(result.steps, band.mean, color=look.colour, lw=1.5)
            if np.isfinite(band.mean[-1]):
                ends.append(Label(float(band.mean[-1]), in_words(result, members), look.colour))
        axes.set_xlim(0, max(result.steps[-1] for result in members))
        axes.set_ylabel(name)
        labels.append(ends)
    grid[-1][0].set_xlabel(_STEPS)
    title(grid[0][0], world)
    figure.draw_without_rendering()
    for (axes,), ends in zip(grid, labels, strict=True):
        direct_labels(axes, ends)
    return save(figure, path)


def _file(world: str) -> str:
    return world.replace("/", "-")
