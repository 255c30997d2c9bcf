"""Comparison of a run's scores with those expected from the twin, and of its plant with the identification."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onrig.learner.trials.objectives import OBJECTIVES
from onrig.runtime.config.identified import FILE_NAME
from onrig.runtime.scoring import measure_of
from onrig.runtime.view.run_view import RunFiles, to_number
from onrig.tools.advised import Advice, advice_from_meta
from onrig.tools.reports.sheet import Sheet
from onrig.tools.sharpened import read_fittings

_BELOW, _WITHIN, _ABOVE = "below the expected range", "within the expected range", "above the expected range"
_REMEDY = "the rig's plant may differ from the identified one; identify it again"


def _verdict(score: float, low: float, high: float) -> str:
    if score < low:
        return _BELOW
    return _ABOVE if score > high else _WITHIN


def warn_of_unexpected_scores(m: RunFiles) -> Iterator[str]:
    """Yield warnings about scores outside the ranges expected from the twin, and about a failed sharpening."""
    expected, scores = _pretraining_expectation(m), _evaluation_scores(m)
    if expected is not None and scores and _first_verdict(scores[0], expected) == _BELOW:
        yield f"The first evaluation is {_BELOW} after pretraining: {_REMEDY}."
    advice = advice_from_meta(m.meta)
    score = None if advice is None else _final_score(m, advice)
    if advice is not None and score is not None:
        verdict = _verdict(score, advice.run_low, advice.run_high)
        if verdict != _WITHIN:
            figures = f"{score:.3f}, expected {advice.run_low:.3f} to {advice.run_high:.3f}"
            yield f"The score of this run is {verdict} of `onrig advise` ({figures}): {_REMEDY}."
    fittings = read_fittings(m.folder)
    if any(fitting.has_departed for fitting in fittings[:-1]) and not fittings[-1].problem:
        yield "The plant had left the identification during the run, although the last data agree with it again."
    if fittings and fittings[-1].problem:
        yield f"The identification could not be sharpened by the run's data: {fittings[-1].problem}."


def pretraining_sheet(m: RunFiles) -> Sheet | None:
    """Return the score expected from pretraining and the first score on the rig; None for a run without pretraining."""
    expectation = _pretraining_expectation(m)
    if expectation is None:
        return None
    measure, scores = measure_of(m.config.task), _evaluation_scores(m)
    first = f"{scores[0]:.4g}, {_first_verdict(scores[0], expectation)}" if scores else "no evaluation yet"
    low, high, median = (f"{to_number(expectation[name]):.4g}" for name in ("low", "high", "median"))
    rows = (("expected", f"{low} to {high}, median {median}"), ("first evaluation on the rig", first))
    plants = f"{to_number(expectation['plants']):.0f} plants drawn from the identification and not used for pretraining"
    note = (
        f"Range over {plants}: it contains the rig's score with a probability of 95 % if the rig's plant resembles "
        f"them. A score up to {to_number(expectation['tolerance']):.2g} outside it is attributed to learning during "
        "the run."
    )
    return Sheet("Pretraining", 2, ("", measure.title), rows, (note,))


def identification_sheet(m: RunFiles) -> Sheet | None:
    """Return the widths of the plant's parameters at the run's start and after sharpening; None without sharpening."""
    fittings = [fitting for fitting in read_fittings(m.folder) if fitting.widths]
    if not fittings:
        return None
    rows = tuple(
        (name, f"±{previous:.2%}", f"±{current:.2%}") for name, (previous, current) in fittings[-1].widths.items()
    )
    note = (
        f"Half-widths of the 95 % intervals as shares of the values, after {fittings[-1].ticks} ticks and "
        f"{len(fittings)} fits. The next run uses them with `identified: {m.folder / 'identification' / FILE_NAME}`."
    )
    return Sheet("Plant", 1, ("parameter", "at the start", "sharpened"), rows, (note,))


def _pretraining_expectation(m: RunFiles) -> dict[str, object] | None:
    start = m.meta.get("start")
    networks = start.get("networks") if isinstance(start, dict) else None
    expected = networks.get("expected") if isinstance(networks, dict) else None
    return expected if isinstance(expected, dict) else None


def _evaluation_scores(m: RunFiles) -> list[float]:
    return [float(score) for score in m.evaluation[measure_of(m.config.task).column]]


def _first_verdict(score: float, expectation: dict[str, object]) -> str:
    low, high, tolerance = (to_number(expectation[name]) for name in ("low", "high", "tolerance"))
    return _verdict(score, low - tolerance, high + tolerance)


def advice_sheet(m: RunFiles) -> Sheet | None:
    """Return the score expected by `onrig advise` and the run's score; None if the run does not follow advice."""
    advice = advice_from_meta(m.meta)
    if advice is None:
        return None
    score = _final_score(m, advice)
    if m.config.episodes != advice.episodes:
        score_text = f"not comparable: {m.config.episodes} episodes here, {advice.episodes} in the trials"
    elif score is None:
        score_text = "not yet known"
    else:
        score_text = f"{score:.3f}, {_verdict(score, advice.run_low, advice.run_high)}"
    rows = (
        ("expected", f"{advice.run_low:.3f} to {advice.run_high:.3f}, mean {advice.mean:.3f}"),
        ("this run", score_text),
    )
    note = (
        f"{advice.best}: {OBJECTIVES[advice.objective].title}. The range is that of a single run (95 %), from "
        f"{advice.pairs} pairs of seed and plant: a score outside it suggests that the rig's plant differs from those "
        "that the twin simulated."
    )
    return Sheet("Advice", 1, ("", advice.objective), rows, (note,))


def _final_score(m: RunFiles, advice: Advice) -> float | None:
    """Return the run's score under the advice's objective.

    Returns None before the run's end, without evaluations, or if the run's length differs from the advice's.
    """
    scores = np.array(m.evaluation["normalized"], np.float64)
    if not len(scores) or not m.config.episodes == advice.episodes <= len(m.train["episode"]):
        return None
    return float(OBJECTIVES[advice.objective].scores(scores[None])[0])
