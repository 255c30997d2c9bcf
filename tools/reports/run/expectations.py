"""Scores that the twin led to expect of a run, by a pretraining or by an advice, and what the run reached."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onrig.learner.trials.objectives import OBJECTIVES
from onrig.runtime.scoring import measure_of
from onrig.runtime.view.run_view import RunFiles, to_number
from onrig.tools.advised import Advice, advice_from_meta
from onrig.tools.reports.sheet import Sheet

_BELOW, _WITHIN, _ABOVE = "below the expected range", "within the expected range", "above the expected range"
_REMEDY = "the rig's plant may differ from the identified one; identify it again"


def _verdict(score: float, low: float, high: float) -> str:
    if score < low:
        return _BELOW
    return _ABOVE if score > high else _WITHIN


def unexpected(m: RunFiles) -> Iterator[str]:
    """Warn of scores that the twin did not lead to expect."""
    expected, scores = _expected(m), _evaluated(m)
    if expected is not None and scores and _first_verdict(scores[0], expected) == _BELOW:
        yield f"The first evaluation is {_BELOW} of its pretraining: {_REMEDY}."
    advice = advice_from_meta(m.meta)
    score = None if advice is None else _final_score(m, advice)
    if advice is not None and score is not None:
        verdict = _verdict(score, advice.run_low, advice.run_high)
        if verdict != _WITHIN:
            figures = f"{score:.3f}, expected {advice.run_low:.3f} to {advice.run_high:.3f}"
            yield f"This run is {verdict} of `onrig advise` ({figures}): {_REMEDY}."


def pretraining_sheet(m: RunFiles) -> Sheet | None:
    """Score that the run's pretraining led to expect, and the first one on the rig; None without a pretraining."""
    expected = _expected(m)
    if expected is None:
        return None
    measure, scores = measure_of(m.config.task), _evaluated(m)
    first = f"{scores[0]:.4g}, {_first_verdict(scores[0], expected)}" if scores else "no evaluation yet"
    low, high, median = (f"{to_number(expected[name]):.4g}" for name in ("low", "high", "median"))
    rows = (("expected", f"{low} to {high}, median {median}"), ("first evaluation on the rig", first))
    plants = f"{to_number(expected['plants']):.0f} plants drawn from the identification, none of them learned on"
    note = (
        f"Range over {plants}: it contains the rig's score with a probability of 95 % if its plant is like them. "
        f"Up to {to_number(expected['tolerance']):.2g} beyond it is attributed to what the run has learned meanwhile."
    )
    return Sheet("Pretraining", 2, ("", measure.title), rows, (note,))


def _expected(m: RunFiles) -> dict[str, object] | None:
    start = m.meta.get("start")
    networks = start.get("networks") if isinstance(start, dict) else None
    expected = networks.get("expected") if isinstance(networks, dict) else None
    return expected if isinstance(expected, dict) else None


def _evaluated(m: RunFiles) -> list[float]:
    return [float(score) for score in m.evaluation[measure_of(m.config.task).column]]


def _first_verdict(score: float, expected: dict[str, object]) -> str:
    low, high, tolerance = (to_number(expected[name]) for name in ("low", "high", "tolerance"))
    return _verdict(score, low - tolerance, high + tolerance)


def advice_sheet(m: RunFiles) -> Sheet | None:
    """Score that `onrig advise` led to expect, and the run's; None for a run that does not follow an advice."""
    advice = advice_from_meta(m.meta)
    if advice is None:
        return None
    score = _final_score(m, advice)
    if m.config.episodes != advice.episodes:
        reached = f"not comparable: {m.config.episodes} episodes, the trials had {advice.episodes}"
    elif score is None:
        reached = "not yet known"
    else:
        reached = f"{score:.3f}, {_verdict(score, advice.run_low, advice.run_high)}"
    rows = (
        ("expected", f"{advice.run_low:.3f} to {advice.run_high:.3f}, mean {advice.mean:.3f}"),
        ("this run", reached),
    )
    note = (
        f"{advice.best}: {OBJECTIVES[advice.objective].title}. The range is that of a single run (95 %), from "
        f"{advice.pairs} pairs of a seed and a plant: a run outside of it suggests that the rig is none of the plants "
        "that the twin was given."
    )
    return Sheet("Advice", 1, ("", advice.objective), rows, (note,))


def _final_score(m: RunFiles, advice: Advice) -> float | None:
    """The run's score in the advice's objective; None before its end, without evaluations, or for another length."""
    scores = np.array(m.evaluation["normalized"], np.float64)
    if not len(scores) or not m.config.episodes == advice.episodes <= len(m.train["episode"]):
        return None
    return float(OBJECTIVES[advice.objective].scores(scores[None])[0])
