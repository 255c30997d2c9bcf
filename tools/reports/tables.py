"""The tables of an experiment: all cells, paired differences, and Table 6 of de Bruin et al. 2018."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from onrig.learner.trials.measures import Bounds, interquartile_mean, mean_bounds, paired_difference
from onrig.tools.reports.conditions import in_words, varying
from onrig.tools.reports.page import BETTER, WORSE, Sheet, bounded, without_empty
from onrig.tools.reports.results import Difference, Experiment, Group, Result, baseline, common_rows, estimate, groups

PAPER_NOISE: Final = {
    "Expl(1)[Uniform]": (1.584e-2, 1.582e-2, 1.594e-2),
    "Expl(1)[PER]": (1.654e-2, 1.630e-2, 1.595e-2),
    "TDE(1)[Uniform]": (1.713e-2, 1.627e-2, 1.598e-2),
    "TDE(1)[PER]": (1.846e-2, 1.743e-2, 1.594e-2),
}
"""De Bruin et al. 2018, table 6 (pendulum, σ = 0.02): position, velocity, action."""
_PAPER_SIGMA: Final = 0.02
_PAPER_DIMENSIONS: Final = ("position", "velocity", "action")
EACH: Final = (
    "The bounds are percentiles, which cover a little less than 95 % where trials are few (about 91 % with ten), and "
    "are not corrected for multiple comparisons: of twenty without a difference, one or two are expected to be marked."
)
_NOISE_NOTE: Final = (
    "Mean absolute noise per state-action dimension of the replayed experiences, in 1e-2 of the normalised units, with "
    "95 % bootstrap bounds; paired differences to the first strategy (↑ more, ↓ less noise where the bounds exclude "
    "0); beside it the values of de Bruin et al. 2018, table 6 (pendulum, σ = 0.02), which gives no bounds. The mean "
    "absolute value without selection is 0.798 σ."
)


def cells_sheet(experiment: Experiment) -> Sheet:
    """Every cell with finished trials."""
    axes = varying(r.setting for r in experiment.results)
    rows = []
    for r in experiment.results:
        e = estimate(r)
        rows.append(
            (
                in_words(axes, [r.setting.conditions.get(axis) for axis in axes]),
                r.setting.strategy,
                f"{len(r.seeds)}/{experiment.spec.trials}",
                bounded(e.final, 3),
                bounded(interquartile_mean(r.final), 3),
                bounded(e.highest, 3),
                bounded(e.rise, 0, at_least=e.never > 0),
                str(e.never or ""),
                str(r.spoilt or ""),
            )
        )
    measures = ("μ_final", "its IQM", "μ_max", "rise time 0.8", "never rose", "not finite")
    heads = ("conditions", "strategy", "trials", *measures)
    note = (
        "Means over the trials with 95 % bootstrap bounds; normalised performance (0 random, 1 reference), rise time "
        "in episodes. ≥: trials that never rose count with their last episode. IQM: mean of the middle half of the "
        "trials (interquartile mean)."
    )
    return without_empty(Sheet("All cells", 2, heads, tuple(rows), (note,)))


def differences_sheet(title: str, differences: Sequence[Difference]) -> Sheet:
    """Paired differences, marked if their bounds exclude zero."""
    rows = tuple(
        (
            d.conditions,
            f"{d.strategy} − {d.against}",
            str(d.pairs),
            marked(d.final, 0.0) + bounded(d.final, 3, signed=True),
            marked(d.highest, 0.0) + bounded(d.highest, 3, signed=True),
            marked(d.rise, 1.0, smaller_is_better=True) + bounded(d.rise, 3) + (" *" if d.censored else ""),
        )
        for d in differences
    )
    heads = ("conditions", "difference", "pairs", "μ_final", "μ_max", "ratio of rise times")
    notes = [
        f"Paired by seed, 95 % bootstrap bounds; {BETTER} better and {WORSE} worse where they exclude 0 (1 for "
        "the ratio). " + EACH
    ]
    if any(d.censored for d in differences):
        notes.append("* Some trials never rose and count with their last episode, which biases the ratio towards 1.")
    return without_empty(Sheet(title, 2, heads, rows, tuple(notes)))


def marked(bounds: Bounds, none: float, *, smaller_is_better: bool = False) -> str:
    """Mark of a difference and a space, or an empty string."""
    if not bounds.excludes(none):
        return ""
    better = (bounds.value < none) == smaller_is_better
    return f"{BETTER if better else WORSE} "


def noise_sheets(results: Sequence[Result]) -> list[Sheet]:
    """Table 6 of de Bruin et al. 2018, the noise in the mini-batches, for each plant; empty where none was measured.

    In units of 1e-2 of the normalised dimensions; differences are paired by seed, against the first strategy.
    """
    sheets = []
    noisy = [r for r in results if r.noise is not None]
    for plant in dict.fromkeys(r.setting.conditions["plant"] for r in noisy):
        some = [r for r in noisy if r.setting.conditions["plant"] == plant]
        names = _dimensions(some[0])
        heads = ["conditions", "strategy", "n"]
        for name in names:
            heads += [name, f"{name}: − first", f"{name}: paper"]
        rows = tuple(
            (group.conditions, r.setting.strategy, str(len(r.seeds)), *_noise_cells(r, group, len(names)))
            for group in groups(some)
            for r in group.results
        )
        title = f"Table 6: noise in the mini-batches, {plant}"
        sheets.append(without_empty(Sheet(title, 2, tuple(heads), rows, (_NOISE_NOTE,))))
    return sheets


def _noise_cells(result: Result, group: Group, dimensions: int) -> list[str]:
    noise, first = result.noise, group.results[0]
    cells = []
    paper = PAPER_NOISE.get(result.setting.strategy) if _as_in_paper(result) else None
    for k in range(dimensions):
        if noise is None or k >= noise.shape[1]:
            cells += ["", "", ""]
            continue
        cells.append(bounded(mean_bounds(100 * noise[:, k]), 3))
        i, j = common_rows(result, first)
        if result is first or first.noise is None or not len(i):
            cells.append("")
        else:
            d = paired_difference(100 * noise[i, k], 100 * first.noise[j, k])
            mark = ("↑ " if d.value > 0 else "↓ ") if d.excludes(0.0) else ""
            cells.append(mark + bounded(d, 3, signed=True))
        cells.append(f"{100 * paper[k]:.3f}" if paper is not None and k < len(paper) else "")
    return cells


def _as_in_paper(result: Result) -> bool:
    conditions = result.setting.conditions
    noise = conditions["noise"]
    sigma = isinstance(noise, float) and bool(np.isclose(noise, _PAPER_SIGMA))
    return sigma and conditions["plant"] == "pendulum"


def _dimensions(result: Result) -> list[str]:
    """Names of the noise's dimensions; the pendulum's as the paper calls them."""
    rig = result.cell.config.rig
    names = [*(s.name for s in rig.signals), *(a.name for a in rig.actuators)]
    count = 0 if result.noise is None else result.noise.shape[1]
    if rig.name.startswith("pendulum") and count == len(_PAPER_DIMENSIONS):
        return list(_PAPER_DIMENSIONS)
    return names if count == len(names) else [f"dimension {k + 1}" for k in range(count)]


def claims(differences: Sequence[Difference]) -> dict[str, list[str]]:
    """Significant and non-significant differences in mu_final and rise time, in words, by conditions."""
    told: dict[str, list[str]] = {}
    for d in differences:
        lines = told.setdefault(d.conditions, [])
        settled = []
        if d.final.excludes(0.0):
            more = "above" if d.final.value > 0 else "below"
            settled.append(f"{more} in μ_final by {_absolute(d.final)}")
        if d.rise.excludes(1.0):
            faster = "faster" if d.rise.value < 1 else "slower"
            settled.append(f"{faster} to rise, {bounded(d.rise, 3)} times as many episodes")
        what = " and ".join(settled) if settled else "no significant difference"
        mark = BETTER if d.final.excludes(0.0) and d.final.value > 0 else WORSE if d.final.excludes(0.0) else "·"
        lines.append(f"{mark} {d.strategy} against {d.against}: {what} ({d.pairs} pairs)")
    return told


def _absolute(bounds: Bounds) -> str:
    if bounds.value >= 0:
        return bounded(bounds, 3)
    return bounded(Bounds(-bounds.value, -bounds.high, -bounds.low), 3)


def baselines(results: Sequence[Result]) -> list[str]:
    """Distinct baselines of the comparisons."""
    return list(dict.fromkeys(baseline(group).setting.strategy for group in groups(results) if len(group.results) > 1))
