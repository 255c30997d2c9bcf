"""Measures of learning (de Bruin et al. 2018, §5.1, §8.5)."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onrig.runtime.task import Task

Values = NDArray[np.float64]
Integers = NDArray[np.int64]

RISE_LEVEL: Final = 0.8
"""Normalised performance level that determines the rise time (§5.1)."""
FINAL_EPISODES: Final = 100
"""Number of episodes at the end of a trial whose mean performance is mu_final (§5.1)."""
BUFFER_SIZE_LEVEL: Final = 0.9
"""Share of the final performance that must be reached; the rule of thumb for the memory size counts the experiences
until then (§8.5)."""
_FINAL_FRACTION: Final = 0.2
"""Share of the steps over which the final performance is averaged; figure 17 uses the last 2e5 of 1e6 steps."""
_SMOOTHING_WINDOW: Final = 20
"""Number of points in the running mean; the paper's curves are means of five trials instead."""


class RiseTime(NamedTuple):
    """Rise times of trials, each ``(T,)``."""

    episode: Integers
    """First episode at the level, numbered from 1; for trials that never reached it, the last one (a lower bound)."""
    has_risen: NDArray[np.bool_]
    """Whether the level was reached."""

    @property
    def n_never_risen(self) -> int:
        """Number of trials that never reached the level."""
        return int(np.count_nonzero(~self.has_risen))

    @property
    def is_censored(self) -> bool:
        """Whether at least half of the trials did not rise, so that the median is a lower bound."""
        return 2 * self.n_never_risen >= len(self.has_risen)


def normalized_curves(task: Task, mean_rewards: Values) -> Values:
    """Return the performance mu_r (§5.1) for mean raw rewards per step over episodes, of any shape; for a task without
    references, return the rewards themselves."""
    means = np.asarray(mean_rewards, np.float64)
    return means if task.normalization is None else task.normalization.performance(means)


def mu_final(mu: Values, episodes: int = FINAL_EPISODES) -> Values:
    """Return the mean over the last ``episodes`` columns of ``mu`` ``(T, E)``, or over all if there are fewer: ``(T,)``
    (§5.1).

    Raises ValueError for a ``mu`` without episodes.
    """
    mean: Values = _curves(mu)[:, -max(1, episodes) :].mean(axis=1)
    return mean


def final_mean(curves: Values, fraction: float = 0.1) -> Values:
    """Return the mean over the last ``fraction`` of the columns of ``curves`` ``(T, P)``, at least one column:
    ``(T,)``.

    Raises ValueError for curves without points.
    """
    return mu_final(curves, round(fraction * np.shape(curves)[-1]))


def mu_max(mu: Values) -> Values:
    """Return the highest performance in each trial of ``mu`` ``(T, E)``: ``(T,)`` (§5.1).

    Raises ValueError for a ``mu`` without episodes.
    """
    maximum: Values = _curves(mu).max(axis=1)
    return maximum


def rise_time(mu: Values, episodes: Integers | None = None, level: float = RISE_LEVEL) -> RiseTime:
    """Find the first episode in each trial of ``mu`` ``(T, E)`` with a performance of at least ``level`` (§5.1).

    ``episodes``: ascending numbers of the columns; default: 1 to E.  The paper does not state how it treats trials that
    never rise; here their rise time is their last episode, and they are flagged.  Raises ValueError without episodes.
    """
    mu = _curves(mu)
    episode_numbers = np.arange(1, mu.shape[1] + 1) if episodes is None else np.asarray(episodes, np.int64)
    is_at_level = np.asarray(mu >= level)
    has_risen = np.asarray(np.any(is_at_level, axis=1))
    return RiseTime(
        np.where(has_risen, episode_numbers[is_at_level.argmax(axis=1)], episode_numbers[-1]).astype(np.int64),
        has_risen,
    )


def moving_average(values: Values, window: int) -> Values:
    """Return the mean of the last ``window`` values along the last axis, or of fewer at the start, with the shape of
    ``values``."""
    values = np.asarray(values, np.float64)
    n = values.shape[-1]
    cumulative = np.concatenate((np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)), axis=-1)
    end = np.arange(1, n + 1)
    first = np.maximum(end - max(1, window), 0)
    mean: Values = (cumulative[..., end] - cumulative[..., first]) / (end - first)
    return mean


class BufferSize(NamedTuple):
    """Estimate of the required size of a memory, by a rule of thumb."""

    n_experiences: int
    final_performance: float
    """Final performance on which the estimate is based."""
    has_converged: bool
    """Whether the level is reached before the final part of the curve; if not, the curve is still rising, and more
    experiences may be needed."""


def estimate_buffer_size(
    steps: ArrayLike,
    performance: ArrayLike,
    *,
    level: float = BUFFER_SIZE_LEVEL,
    final_fraction: float = _FINAL_FRACTION,
    window: int = _SMOOTHING_WINDOW,
) -> BufferSize | None:
    """Estimate the required size of a memory from a learning curve: the experiences needed to reach ``level`` of the
    final performance (§8.5).

    ``steps`` (n,): environment steps up to each point, ascending; ``performance`` (n,), or (trials, n) to be averaged:
    higher is better, and 0 is the performance before learning (90 % of a negative reward is meaningless).  The curve
    should be that of FULL[Uniform].  Return None for an empty curve or a final performance of at most 0.  Raises
    ValueError for shapes that do not match.

    The curve is smoothed by a mean of the last ``window`` points (at most a tenth of all), so the estimate may be
    half a window too large.  §8.5 and Figure 17 use "the number of experiences needed to get to 90% of the final
    performance"; §9.1 uses 90 % of the steps to the final performance, which is undefined for a flat curve.
    """
    step_counts: NDArray[np.float64] = np.asarray(steps, np.float64)
    values: NDArray[np.float64] = np.asarray(performance, np.float64)
    if values.ndim > 1:
        values = values.reshape(-1, values.shape[-1]).mean(axis=0)
    if step_counts.shape != values.shape or step_counts.ndim != 1:
        raise ValueError(
            f"steps of shape {step_counts.shape} do not match performance of shape {np.shape(performance)}"
        )
    if not len(step_counts):
        return None
    is_final_part = step_counts > (1.0 - final_fraction) * step_counts[-1]
    final_performance = float(values[is_final_part].mean())
    if not final_performance > 0:
        return None
    n = max(1, min(window, len(step_counts) // 10))
    cumulative = np.cumsum(np.concatenate(([0.0], values)))
    smoothed_performance = (cumulative[n:] - cumulative[:-n]) / n
    points_at_level = np.flatnonzero(smoothed_performance >= level * final_performance)
    first = int(points_at_level[0]) + n - 1 if len(points_at_level) else len(step_counts) - 1
    return BufferSize(round(float(step_counts[first])), final_performance, not bool(is_final_part[first]))


def _curves(mu: Values) -> Values:
    mu = np.asarray(mu, np.float64)
    if mu.ndim != 2 or not mu.shape[1]:
        raise ValueError(f"expected trials by episodes, at least one episode, got shape {mu.shape}")
    return mu
