"""Tables of an experiment: all cells, paired differences, and Table 6 of de Bruin et al. 2018."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from onrig.learner.trials.intervals import MAX_PAIRS, POWER, PairedComparison, holm, median_bounds, paired_difference
from onrig.tools.quantity import format_estimate, format_share
from onrig.tools.reports.conditions import describe_conditions, varying_conditions
from onrig.tools.reports.results import (
    Difference,
    Experiment,
    Group,
    Result,
    baseline,
    estimate,
    group_by_conditions,
    rows_of_common_seeds,
)
from onrig.tools.reports.sheet import BETTER, WORSE, Sheet, drop_empty_columns

PAPER_NOISE: Final = {
    "Expl(1)[Uniform]": (1.584e-2, 1.582e-2, 1.594e-2),
    "Expl(1)[PER]": (1.654e-2, 1.630e-2, 1.595e-2),
    "TDE(1)[Uniform]": (1.713e-2, 1.627e-2, 1.598e-2),
    "TDE(1)[PER]": (1.846e-2, 1.743e-2, 1.594e-2),
}
"""Noise in position, velocity and action by strategy, from table 6 of de Bruin et al. 2018 (pendulum, σ = 0.02)."""
_PAPER_SIGMA: Final = 0.02
_PAPER_DIMENSIONS: Final = ("position", "velocity", "action")
ESTIMATES_NOTE: Final = "Medians over the trials with 95 % intervals; differences are paired by seed."
TEST_NOTE: Final = (
    f"Medians over pairs of equal seed, with 95 % intervals that are not corrected for multiple comparisons. {BETTER} "
    f"better and {WORSE} worse by an exact sign test, corrected for all comparisons of a column under the same "
    "conditions (Holm, p < 0.05); no mark: not settled."
)
NEEDED_PAIRS_NOTE: Final = (
    "Pairs needed, for area and final: number of pairs that would settle the difference with a probability of "
    f"{100 * POWER:.0f} %, after the same correction, if the share of pairs with the same sign were exactly as "
    "observed; a dash if it is settled."
)
_NOISE_NOTE: Final = (
    "Mean absolute noise of the replayed experiences per state-action dimension, over a trial, in 1e-2 normalised "
    "units: median with 95 % interval, mean, and the mean in table 6 of de Bruin et al. 2018 (pendulum, σ = 0.02), "
    "which has no bounds; paired differences from the first strategy (↑ more, ↓ less noise by an exact sign test, "
    "corrected for all comparisons of a column under the same conditions). Without selection, the mean absolute noise "
    "is 0.798 σ."
)


def cells_sheet(experiment: Experiment) -> Sheet:
    """Return the table of all cells that have at least one usable trial."""
    axes = varying_conditions(r.setting for r in experiment.results)
    rows = []
    for r in experiment.results:
        e = estimate(r)
        rows.append(
            (
                describe_conditions(axes, [r.setting.conditions.get(axis) for axis in axes]),
                r.setting.strategy,
                f"{len(r.seeds)}/{experiment.spec.trials}",
                format_estimate(e.final, 3),
                f"{r.final.mean():.3f}",
                f"{r.final.min():.3f}",
                format_estimate(e.highest, 3),
                format_estimate(e.rise, 0, at_least=e.is_censored),
                _describe_rise(r),
                str(r.n_non_finite or ""),
            )
        )
    measures = ("μ_final", "mean", "lowest", "μ_max", "rise time 0.8", "rose", "not finite")
    header = ("conditions", "strategy", "trials", *measures)
    note = (
        "Medians over the trials with 95 % intervals; normalised performance (0 random, 1 reference), rise time in "
        "episodes. Mean and lowest: of μ_final, over the trials. Rose: trials that reached 0.8, with the one-sided 95 "
        "% lower bound on their share; the others have their last episode as rise time (≥ if they are half)."
    )
    return drop_empty_columns(Sheet("All cells", 2, header, tuple(rows), (note,)))


def differences_sheet(title: str, differences: Sequence[Difference]) -> Sheet:
    """Return a table of paired differences in which the significant ones are marked."""
    rows = tuple(
        (
            d.conditions,
            f"{d.strategy} − {d.reference}",
            str(d.n_pairs),
            difference_mark(d.final) + format_estimate(d.final, 3, signed=True),
            difference_mark(d.highest) + format_estimate(d.highest, 3, signed=True),
            difference_mark(d.rise, 1.0) + format_estimate(d.rise, 3) + (" *" if d.is_censored else ""),
        )
        for d in differences
    )
    header = ("conditions", "difference", "pairs", "μ_final", "μ_max", "ratio of rise times")
    notes = [TEST_NOTE]
    if any(d.is_censored for d in differences):
        notes.append(
            "* The rise time of trials that never rose is their last episode, which may move the ratio towards 1."
        )
    return drop_empty_columns(Sheet(title, 2, header, rows, tuple(notes)))


def format_needed_pairs(estimate: PairedComparison, family: Sequence[PairedComparison]) -> str:
    """Return the number of pairs that would probably settle a comparison of a corrected family; a dash if it is
    settled.  Those that are settled no longer count in Holm's correction.
    """
    if estimate.is_significant:
        return "–"
    needed_pairs = estimate.needed_pairs(sum(not other.is_significant for other in family))
    return f"more than {MAX_PAIRS}" if needed_pairs is None else f"about {needed_pairs}"


def difference_mark(pairs: PairedComparison, neutral: float = 0.0) -> str:
    """Return the mark of a significant difference, followed by a space; empty if the difference is not significant.

    A larger difference is better; for ratios, ``neutral`` is 1 and a smaller value is better.
    """
    if not pairs.is_significant:
        return ""
    return f"{BETTER if (pairs.value > neutral) == (neutral == 0.0) else WORSE} "


def _describe_rise(result: Result) -> str:
    T = len(result.seeds)
    return "" if result.cell.config.task.normalization is None else format_share(T - result.rise.n_never_risen, T)


def noise_sheets(results: Sequence[Result]) -> list[Sheet]:
    """Return table 6 of de Bruin et al. 2018, the noise in the mini-batches, for each plant for which it was measured.

    Values are in units of 1e-2 of the normalised dimensions; differences from the first strategy are paired by seed.
    """
    sheets = []
    noise_results = [r for r in results if r.noise is not None]
    for plant in dict.fromkeys(r.setting.conditions["plant"] for r in noise_results):
        plant_results = [r for r in noise_results if r.setting.conditions["plant"] == plant]
        names = _dimensions(plant_results[0])
        header = ["conditions", "strategy", "n"]
        for name in names:
            header += [name, f"{name}: − first", f"{name}: mean", f"{name}: paper"]
        rows = tuple(
            (group.conditions, r.setting.strategy, str(len(r.seeds)), *(cell for column in cells for cell in column))
            for group in group_by_conditions(plant_results)
            for r, *cells in zip(group.results, *(_noise_cells(group, k) for k in range(len(names))), strict=True)
        )
        title = f"Table 6: noise in the mini-batches, {plant}"
        sheets.append(drop_empty_columns(Sheet(title, 2, tuple(header), rows, (_NOISE_NOTE,))))
    return sheets


def _noise_cells(group: Group, dimension: int) -> list[tuple[str, str, str, str]]:
    """Return the table cells of one noise dimension.

    Each row holds the median, the difference from the first strategy, the mean and the paper's value.
    """
    noises = [
        100 * r.noise[:, dimension] if r.noise is not None and dimension < r.noise.shape[1] else None
        for r in group.results
    ]
    first, differences = noises[0], {}
    for n, (r, noise) in enumerate(zip(group.results, noises, strict=True)):
        i, j = rows_of_common_seeds(r, group.results[0])
        if n and noise is not None and first is not None and len(i):
            differences[n] = paired_difference(noise[i], first[j])
    corrected_differences = dict(zip(differences, holm(list(differences.values())), strict=True))
    cells = []
    for n, (r, noise) in enumerate(zip(group.results, noises, strict=True)):
        if noise is None:
            cells.append(("", "", "", ""))
            continue
        paper_noise = PAPER_NOISE.get(r.setting.strategy, ()) if _matches_paper(r) else ()
        cells.append(
            (
                format_estimate(median_bounds(noise), 3),
                _noise_mark(corrected_differences[n]) if n in corrected_differences else "",
                f"{noise.mean():.3f}",
                f"{100 * paper_noise[dimension]:.3f}" if dimension < len(paper_noise) else "",
            )
        )
    return cells


def _noise_mark(noise: PairedComparison) -> str:
    mark = ("↑ " if noise.value > 0 else "↓ ") if noise.is_significant else ""
    return mark + format_estimate(noise, 3, signed=True)


def _matches_paper(result: Result) -> bool:
    conditions = result.setting.conditions
    noise = conditions["noise"]
    has_paper_sigma = isinstance(noise, float) and bool(np.isclose(noise, _PAPER_SIGMA))
    return has_paper_sigma and conditions["plant"] == "pendulum"


def _dimensions(result: Result) -> list[str]:
    """Return the names of the noise's dimensions; for the pendulum, the paper's names."""
    rig = result.cell.config.rig
    names = [*(s.name for s in rig.signals), *(a.name for a in rig.actuators)]
    count = 0 if result.noise is None else result.noise.shape[1]
    if rig.name.startswith("pendulum") and count == len(_PAPER_DIMENSIONS):
        return list(_PAPER_DIMENSIONS)
    return names if count == len(names) else [f"dimension {k + 1}" for k in range(count)]


def describe_differences(differences: Sequence[Difference]) -> dict[str, list[str]]:
    """Describe the differences in mu_final and rise time in sentences, keyed by conditions."""
    texts: dict[str, list[str]] = {}
    for d in differences:
        lines = texts.setdefault(d.conditions, [])
        findings = []
        if d.final.is_significant:
            direction = "higher" if d.final.value > 0 else "lower"
            findings.append(f"μ_final {direction} by {_format_magnitude(d.final)}")
        if d.rise.is_significant:
            speed = "faster" if d.rise.value < 1 else "slower"
            findings.append(f"rise {speed}, in {format_estimate(d.rise, 3)} times as many episodes")
        text = " and ".join(findings) if findings else "not settled"
        mark = difference_mark(d.final).strip() or "·"
        lines.append(f"{mark} {d.strategy} compared with {d.reference}: {text} ({d.n_pairs} pairs)")
    return texts


def _format_magnitude(pairs: PairedComparison) -> str:
    if pairs.value >= 0:
        return format_estimate(pairs, 3)
    return format_estimate(pairs._replace(value=-pairs.value, low=-pairs.high, high=-pairs.low), 3)


def baselines(results: Sequence[Result]) -> list[str]:
    """Return the distinct baselines of the comparisons."""
    return list(
        dict.fromkeys(
            baseline(group).setting.strategy for group in group_by_conditions(results) if len(group.results) > 1
        )
    )
