"""How large a memory should be, read off a learning curve (000 §8.5)."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL: Final = 0.9
FINAL_SHARE: Final = 0.2
"""000 Figure 17 takes the last 2e5 of 1e6 steps for the final performance."""
WINDOW: Final = 20
"""Points of the running mean; the paper's curves are means of five trials instead."""


class BufferSize(NamedTuple):
    """A rough estimate of the best buffer size."""

    experiences: int
    final: float
    """Final performance that the estimate refers to."""
    settled: bool
    """False when the curve got there only in what counts as its end: it still rose, and more may be needed."""


def rule_of_thumb(
    steps: ArrayLike,
    performance: ArrayLike,
    *,
    level: float = LEVEL,
    final_share: float = FINAL_SHARE,
    window: int = WINDOW,
) -> BufferSize | None:
    """Return the number of experiences after which a run first reached ``level`` of its final performance.

    ``steps`` (n,): environment steps taken up to each point of the curve, ascending; ``performance`` (n,) or
    (trials, n), averaged over the trials: the higher the better, with 0 for what a policy that learned nothing does (of
    raw rewards, which may all be negative, 90 % mean nothing).  The curve is to be that of FULL[Uniform].  None where
    the final performance is not above 0, or there is no curve.  ValueError for shapes that do not fit.

    The curve is smoothed by the mean of ``window`` points up to each (of a tenth of them, if that is less), so the
    estimate errs on the large side by half a window.  Source: 000 §8.5 and Figure 17, "the number of experiences needed
    to get to 90% of the final performance"; §9.1 puts it the other way round (90 % of the steps needed to get to the
    final performance), which for a curve that flattens out has no answer.
    """
    at: NDArray[np.float64] = np.asarray(steps, np.float64)
    values: NDArray[np.float64] = np.asarray(performance, np.float64)
    if values.ndim > 1:
        values = values.reshape(-1, values.shape[-1]).mean(axis=0)
    if at.shape != values.shape or at.ndim != 1:
        raise ValueError(f"steps of shape {at.shape} do not go with performance of shape {np.shape(performance)}")
    if not len(at):
        return None
    ending = at > (1.0 - final_share) * at[-1]
    final = float(values[ending].mean())
    if not final > 0:
        return None
    n = max(1, min(window, len(at) // 10))
    total = np.cumsum(np.concatenate(([0.0], values)))
    smooth = (total[n:] - total[:-n]) / n
    reached = np.flatnonzero(smooth >= level * final)
    first = int(reached[0]) + n - 1 if len(reached) else len(at) - 1
    return BufferSize(round(float(at[first])), final, not bool(ending[first]))
