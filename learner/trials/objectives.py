"""Objectives on normalised learning curves: one score per trial, higher is better (docs/advice.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.measures import final_mean, rise_time

Values = NDArray[np.float64]


class Objective(NamedTuple):
    """Function that scores normalised learning curves, and its title."""

    title: str
    scores: Callable[[Values], Values]
    """Function from finite normalised curves (T, P) to scores (T,)."""


def fill_diverged(curves: Values) -> Values:
    """Return normalised curves (T, P) in which evaluations of diverged networks count as the trial's worst other
    evaluation, or as random actions if those are worse."""
    worst = np.fmin.reduce(np.where(np.isfinite(curves), curves, np.nan), axis=1, initial=0.0)
    return np.where(np.isfinite(curves), curves, worst[:, None])


def _score_rise(curves: Values) -> Values:
    points = curves.shape[1]
    rise = rise_time(curves)
    return np.where(rise.has_risen, 1.0 - rise.episode / points, 0.0)


def _score_area(curves: Values) -> Values:
    return np.asarray(curves.mean(axis=1))


OBJECTIVES: Final[dict[str, Objective]] = {
    "final": Objective("mean performance in the last tenth of the run", final_mean),
    "rise": Objective("share of the run that remains after the first evaluation of at least 0.8", _score_rise),
    "regret": Objective("mean performance over the run (area)", _score_area),
    "robust": Objective("10th percentile over plants of the final performance", final_mean),
}
"""Objectives by name.  ``regret`` is the area lost compared with a pair's best candidate.  Paired differences of
regrets and of areas are equal but for their sign, because the area of the best candidate cancels."""
