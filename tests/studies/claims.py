"""The claims of de Bruin et al. 2018 (§6.1, §8.1 to §8.4), each judged from archived trials.

``python -m tests.studies.claims`` writes ``docs/experiments/de-bruin-2018-claims.md`` from
``docs/experiments/data/de-bruin-2018``; nothing on that page is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.intervals import POWER, PairedComparison, holm, paired_difference, paired_ratio
from onrig.learner.trials.measures import RISE_LEVEL, moving_average
from onrig.tools.quantity import format_estimate
from onrig.tools.reports.results import Result, read_experiment, rows_of_common_seeds
from onrig.tools.reports.tables import format_needed_pairs

DATA: Final = Path("docs/experiments/data/de-bruin-2018")
PAGE: Final = Path("docs/experiments/de-bruin-2018-claims.md")
SAME: Final = 0.05
"""Two strategies are equally good if the interval of their difference lies within this."""
_SMOOTH: Final = 20
"""Episodes over which a peak is averaged, as in the curves."""
_PAPERS_TRIALS: Final = 50

Plant = Literal["pendulum", "magman"]
Setting = Literal["50 Hz", "faster", "noise"]
Measure = Literal["final", "rise", "decline", "noise in position", "noise in velocity", "noise in action"]
_RATIO: Final = "rise"
_WORDS: Final[Mapping[Measure, str]] = {
    "final": "μ_final",
    "rise": "ratio of rise times",
    "decline": "peak minus μ_final",
}
_FASTER: Final[Mapping[Plant, tuple[str, float]]] = {"pendulum": ("pendulum-hw", 100.0), "magman": ("magman", 200.0)}
"""Rig and rate of the comparisons at higher rates: the pendulum with the inertia of the authors' code."""


class Comparison(NamedTuple):
    """One strategy compared with another, and the paper's claim about ``measure``: more, less, or the same."""

    plant: Plant
    setting: Setting
    strategy: str
    against: str
    claimed: Literal[">", "<", "="]
    measure: Measure = "final"


class Claim(NamedTuple):
    """A sentence of the paper, and the comparisons that decide it."""

    section: str
    figure: str
    text: str
    comparisons: tuple[Comparison, ...]


class Judged(NamedTuple):
    """A comparison with its estimate; None while either strategy has no trials."""

    comparison: Comparison
    estimate: PairedComparison | None
    pairs: int
    is_learned: bool = True
    """Whether any trial of the two strategies learned the task."""


def _each(
    plant: Plant,
    setting: Setting,
    pairs: Mapping[str, str],
    claimed: Literal[">", "<", "="],
    measure: Measure = "final",
) -> tuple[Comparison, ...]:
    return tuple(Comparison(plant, setting, a, b, claimed, measure) for a, b in pairs.items())


_PER: Final = {f"{kept}[PER]": f"{kept}[Uniform]" for kept in ("FIFO", "FULL", "Resv", "Expl(1.0)", "TDE(1.0)")}
_DIVERSE_PER: Final = {a: b for a, b in _PER.items() if not a.startswith("FIFO")}
_UNIFORM: Final = ("FULL[Uniform]", "Resv[Uniform]", "Expl(1.0)[Uniform]", "TDE(1.0)[Uniform]")
_OTHERS_ON_MAGMAN: Final = ("FIFO[PER]", *_UNIFORM, *_DIVERSE_PER)

CLAIMS: Final = (
    Claim("6.1", "3", "Swing-up: FULL[PER] ends far above FIFO[Uniform]",
          _each("pendulum", "50 Hz", {"FULL[PER]": "FIFO[Uniform]"}, ">")),
    Claim("6.1", "3", "Swing-up: performance degrades with FIFO as exploration is reduced, but not with FULL[PER]",
          _each("pendulum", "50 Hz", {"FIFO[Uniform]": "FULL[PER]"}, ">", "decline")),
    Claim("6.1", "3", "Magman: the reverse, FIFO[Uniform] ends above FULL[PER]",
          _each("magman", "50 Hz", {"FIFO[Uniform]": "FULL[PER]"}, ">")),
    Claim("8.1", "12", "Swing-up: storing all experiences works well (FULL[Uniform] above FIFO[Uniform])",
          _each("pendulum", "50 Hz", {"FULL[Uniform]": "FIFO[Uniform]"}, ">")),
    Claim("8.1", "12", "Swing-up: Resv works equally well with 10⁴ experiences",
          _each("pendulum", "50 Hz", {"Resv[Uniform]": "FULL[Uniform]"}, "=")),
    Claim("8.1", "12", "Magman: a small buffer with only recent experiences works better than any other method",
          _each("magman", "50 Hz", dict.fromkeys(_OTHERS_ON_MAGMAN, "FIFO[Uniform]"), "<")),
    Claim("8.1", "12", "Swing-up: sampling by TD error benefits the learning speed",
          _each("pendulum", "50 Hz", _PER, "<", "rise")),
    Claim("8.1", "12", "Magman: PER speeds up learning when sampling from recent experiences",
          _each("magman", "50 Hz", {"FIFO[PER]": "FIFO[Uniform]"}, "<", "rise")),
    Claim("8.1", "12", "Magman: PER hurts when sampling from diverse experiences",
          _each("magman", "50 Hz", _DIVERSE_PER, "<")),
    Claim("8.2", "13", "Magman at 200 Hz: FIFO performs worst",
          _each("magman", "faster", dict.fromkeys(_UNIFORM, "FIFO[Uniform]"), ">")),
    Claim("8.2", "13", "Retaining all experiences works well at higher rates on both",
          _each("pendulum", "faster", {"FULL[Uniform]": "FIFO[Uniform]"}, ">")
          + _each("magman", "faster", {"FULL[Uniform]": "FIFO[Uniform]"}, ">")),
    Claim("8.2", "13", "Resv is a good option at higher rates, Expl a close second",
          _each("pendulum", "faster", {"Resv[Uniform]": "FULL[Uniform]", "Expl(1.0)[Uniform]": "Resv[Uniform]"}, "=")
          + _each("magman", "faster", {"Resv[Uniform]": "FULL[Uniform]", "Expl(1.0)[Uniform]": "Resv[Uniform]"}, "=")),
    Claim("8.3", "table 6", "Selection by TD error replays noisier positions",
          _each("pendulum", "noise", {"Expl(1.0)[PER]": "Expl(1.0)[Uniform]", "TDE(1.0)[Uniform]": "Expl(1.0)[PER]",
                                      "TDE(1.0)[PER]": "TDE(1.0)[Uniform]"}, ">", "noise in position")),
    Claim("8.3", "table 6", "Selection by TD error replays noisier velocities (paper: Expl[PER] above TDE[Uniform])",
          _each("pendulum", "noise", {"Expl(1.0)[PER]": "TDE(1.0)[Uniform]", "TDE(1.0)[Uniform]": "Expl(1.0)[Uniform]",
                                      "TDE(1.0)[PER]": "Expl(1.0)[PER]"}, ">", "noise in velocity")),
    Claim("8.3", "table 6", "Noise in the actions is the same with every selection",
          _each("pendulum", "noise", dict.fromkeys(("Expl(1.0)[PER]", "TDE(1.0)[Uniform]", "TDE(1.0)[PER]"),
                                                   "Expl(1.0)[Uniform]"), "=", "noise in action")),
    Claim("8.3", "14", "With noise PER is consistently worse than uniform sampling",
          _each("pendulum", "noise", _PER, "<") + _each("magman", "noise", _PER, "<")),
    Claim("8.3", "14", "TDE retention does not suffer as much from noise as PER sampling",
          _each("pendulum", "noise", {"TDE(1.0)[Uniform]": "FIFO[PER]"}, ">")
          + _each("magman", "noise", {"TDE(1.0)[Uniform]": "FIFO[PER]"}, ">")),
    Claim("8.3", "14", "Retentions rank as without noise",
          _each("pendulum", "noise", {"FULL[Uniform]": "FIFO[Uniform]", "Resv[Uniform]": "FIFO[Uniform]"}, ">")
          + _each("magman", "noise", {"FULL[Uniform]": "FIFO[Uniform]", "Resv[Uniform]": "FIFO[Uniform]"}, "<")),
    Claim("8.4", "15", "FIFO[Uniform+FIS] hurts, most on the swing-up",
          _each("pendulum", "noise", {"FIFO[Uniform+FIS]": "FIFO[Uniform]"}, "<")
          + _each("magman", "noise", {"FIFO[Uniform+FIS]": "FIFO[Uniform]"}, "<")),
    Claim("8.4", "15", "FIFO[PER] hurts with noise",
          _each("pendulum", "noise", {"FIFO[PER]": "FIFO[Uniform]"}, "<")
          + _each("magman", "noise", {"FIFO[PER]": "FIFO[Uniform]"}, "<")),
    Claim("8.4", "15", "FIFO[PER+IS] helps over FIFO[PER]",
          _each("pendulum", "noise", {"FIFO[PER+IS]": "FIFO[PER]"}, ">")
          + _each("magman", "noise", {"FIFO[PER+IS]": "FIFO[PER]"}, ">")),
    Claim("8.4", "15", "FIFO[PER+IS] is not clearly better than uniform sampling",
          _each("pendulum", "noise", {"FIFO[PER+IS]": "FIFO[Uniform]"}, "=")
          + _each("magman", "noise", {"FIFO[PER+IS]": "FIFO[Uniform]"}, "=")),
    Claim("8.4", "15", "TDE: full importance sampling improves performance on the magman",
          _each("magman", "noise", {"TDE(1.0)[Uniform+FIS]": "TDE(1.0)[Uniform]", "TDE(1.0)[PER+FIS]": "TDE(1.0)[PER]"},
                ">")),
    Claim("8.4", "15", "TDE: on the swing-up the harm of full importance sampling outweighs its benefit",
          _each("pendulum", "noise",
                {"TDE(1.0)[Uniform+FIS]": "TDE(1.0)[Uniform]", "TDE(1.0)[PER+FIS]": "TDE(1.0)[PER]"}, "<")),
    Claim("8.4", "15", "Resv: full importance sampling severely hurts",
          _each("pendulum", "noise", {"Resv[Uniform+FIS]": "Resv[Uniform]", "Resv[PER+FIS]": "Resv[PER]"}, "<")
          + _each("magman", "noise", {"Resv[Uniform+FIS]": "Resv[Uniform]", "Resv[PER+FIS]": "Resv[PER]"}, "<")),
)  # fmt: skip


def judge(claim: Claim, results: Sequence[Result]) -> list[Judged]:
    """Estimate a claim's comparisons; their tests are corrected for their number (Holm)."""
    found = [_estimate(comparison, results) for comparison in claim.comparisons]
    corrected = iter(holm([judged.estimate for judged in found if judged.estimate is not None]))
    return [judged if judged.estimate is None else judged._replace(estimate=next(corrected)) for judged in found]


def verdict(judged: Sequence[Judged]) -> str:
    """Whether all comparisons of a claim come out as claimed, one is settled the other way, or neither."""
    if not all(one.is_learned for one in judged):
        return "cannot be judged: no trial learns the task"
    if any(one.estimate is None for one in judged):
        return "not run yet"
    outcomes = [_outcome(one) for one in judged]
    agreed = outcomes.count("as claimed")
    if agreed == len(outcomes):
        return "**reproduced**"
    against = outcomes.count("against")
    if against:
        return "**not reproduced**" + (f" ({against} of {len(outcomes)} the other way)" if len(outcomes) > 1 else "")
    return "not settled" + (f" ({agreed} of {len(outcomes)} as claimed)" if agreed else "")


def _outcome(judged: Judged) -> str:
    estimate, comparison = judged.estimate, judged.comparison
    assert estimate is not None
    if comparison.claimed == "=":
        if estimate.low >= -SAME and estimate.high <= SAME:
            return "as claimed"
        return "against" if estimate.is_significant and abs(estimate.value) > SAME else "open"
    if not estimate.is_significant:
        return "open"
    centre = 1.0 if comparison.measure == _RATIO else 0.0
    return "as claimed" if (estimate.value > centre) == (comparison.claimed == ">") else "against"


def _estimate(comparison: Comparison, results: Sequence[Result]) -> Judged:
    a, b = (_cell(comparison, strategy, results) for strategy in (comparison.strategy, comparison.against))
    if a is None or b is None or not len((rows := rows_of_common_seeds(a, b))[0]):
        return Judged(comparison, None, 0)
    x, y = (_values(r, comparison.measure)[i] for r, i in zip((a, b), rows, strict=True))
    estimate = paired_ratio(x, y) if comparison.measure == _RATIO else paired_difference(x, y)
    return Judged(comparison, estimate, len(x), bool(a.rise.has_risen.any() or b.rise.has_risen.any()))


def _cell(comparison: Comparison, strategy: str, results: Sequence[Result]) -> Result | None:
    rig, rate = _FASTER[comparison.plant] if comparison.setting == "faster" else (comparison.plant, 50.0)
    for r in results:
        twin = r.cell.config.device.twin or {}
        noisy = bool(twin.get("sensor_noise"))
        there = (r.cell.config.selection.strategy, r.cell.config.rig.name, r.cell.config.rate_hz, noisy)
        if there == (strategy, rig, rate, comparison.setting == "noise"):
            return r
    return None


def _values(result: Result, measure: Measure) -> NDArray[np.float64]:
    match measure:
        case "final":
            return result.final
        case "rise":
            return result.rise.episode.astype(np.float64)
        case "decline":
            peaks: NDArray[np.float64] = moving_average(result.mu, _SMOOTH).max(axis=1) - result.final
            return peaks
    column = {"noise in position": 0, "noise in velocity": 1, "noise in action": 2}[measure]
    return np.full(len(result.seeds), np.nan) if result.noise is None else 100 * result.noise[:, column]


def page(results: Sequence[Result], trials: int, episodes: int) -> str:
    """Write the page of claims."""
    heads = "| § | figure | claim | ours | verdict |\n| --- | --- | --- | --- | --- |"
    rows = []
    for claim in CLAIMS:
        judged = judge(claim, results)
        ours = "<br>".join(_line(one, judged) for one in judged)
        rows.append(f"| {claim.section} | {claim.figure} | {claim.text} | {ours} | {verdict(judged)} |")
    share = f"{trials} of the paper's {_PAPERS_TRIALS} trials, all {episodes} episodes"
    lead = (
        f"Every sentence of §6.1 and §8.1 to §8.4 that compares strategies, judged from [our trials](de-bruin-2018.md) "
        f"({share}; [figures, tables and revision](de-bruin-2018.md), [raw data](data/de-bruin-2018)). "
        "`python -m tests.studies.claims` in a checkout writes this page.",
        "Estimates are medians of the differences by seed (of ratios for rise times) with 95 % intervals and p of the "
        "exact sign test, corrected for the comparisons of the claim (Holm). *Reproduced*: all are settled as the "
        "paper claims; *not reproduced*: at least one is settled the other way; *not settled*: anything else. Two do "
        f'"equally well" if the interval of their difference lies within ±{SAME:g}. The number of pairs that would '
        f"settle a comparison, with a probability of {100 * POWER:.0f} %, assumes that the share of pairs with the "
        "same sign is exactly as observed. Noise is in 1e-2 of the normalised units.",
        "At 100 Hz the pendulum has the moment of inertia of the authors' code, 1.91e-4 kg m². With the text's, "
        "9.41e-4, and the discount of .95, hanging still is optimal, and no strategy swings up in any of 160 trials, "
        "nor does fuzzy Q-iteration on the exact model ([decisions](../methods.md#decisions)).",
        "The paper shows its results as plots without bounds; only its table 6 gives numbers; "
        "[our table 6](de-bruin-2018.md#table-6-noise-in-the-mini-batches-pendulum) compares them with ours.",
    )
    return "\n\n".join(("# De Bruin et al. 2018, claim by claim", *lead, "\n".join((heads, *rows)))) + "\n"


def _line(judged: Judged, family: Sequence[Judged]) -> str:
    c, estimate = judged.comparison, judged.estimate
    where = f"{c.plant}: " + (f"{c.strategy} / {c.against}" if c.measure == _RATIO else f"{c.strategy} − {c.against}")
    measure = _WORDS.get(c.measure, c.measure)
    if estimate is None:
        return f"{where}, {measure}: no trials yet"
    estimated = format_estimate(estimate, 3, signed=c.measure != _RATIO)
    unlearned = "" if judged.is_learned else f"; no trial reaches {RISE_LEVEL:g}"
    is_open = judged.is_learned and c.claimed != "=" and not estimate.is_significant
    estimates = [one.estimate for one in family if one.estimate is not None]
    needed_pairs = f" ({format_needed_pairs(estimate, estimates)} pairs would settle it)" if is_open else ""
    return f"{where}, {measure} {estimated}, p = {estimate.p:.2g}, {judged.pairs} pairs{needed_pairs}{unlearned}"


def main() -> int:
    """Write the page; returns the exit code."""
    experiment = read_experiment(DATA)
    episodes = experiment.spec.episodes
    PAGE.write_text(page(experiment.results, experiment.spec.trials, episodes), encoding="utf-8")
    for claim in CLAIMS:
        print(f"{claim.section:4} {verdict(judge(claim, experiment.results)):24} {claim.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
