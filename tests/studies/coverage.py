"""How often 95 % intervals over trials cover the true value: ``python -m tests.studies.coverage`` (some seconds).

Prints the table of docs/methods.md: intervals of the median, and percentile bootstraps of the mean next to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.intervals import curve_bounds

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Values]

TRIALS: Final = (8, 10, 16, 32)
_RESAMPLES: Final = 1000


def _failing(share: float) -> Draw:
    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
        failed = rng.random(shape) < share
        return np.where(failed, rng.uniform(0.0, 0.4, shape), rng.normal(0.95, 0.02, shape))

    return draw


SCORES: Final[dict[str, Draw]] = {
    "normal": lambda rng, shape: rng.normal(0.9, 0.05, shape),
    "skewed, 1 − lognormal(−3, 1)": lambda rng, shape: 1 - rng.lognormal(-3.0, 1.0, shape),
    "one in ten fails": _failing(0.1),
    "one in four fails": _failing(0.25),
    "two in five fail": _failing(0.4),
}
"""Final scores as they occur here: trials that learn end at 0.95 ± 0.02, others between 0 and 0.4."""


def covered(draw: Draw, trials: int, samples: int, seed: int) -> float:
    """Share of ``samples`` samples whose interval covers the true median."""
    rng = np.random.default_rng(seed)
    true = np.median(draw(rng, (400_000,)))
    band = curve_bounds(draw(rng, (trials, samples)))
    return float(np.mean((band.low <= true) & (true <= band.high)))


def covered_by_percentiles(draw: Draw, trials: int, samples: int, seed: int) -> float:
    """The same for the true mean and percentiles of bootstrapped means."""
    rng = np.random.default_rng(seed)
    true = draw(rng, (400_000,)).mean()
    weights = rng.multinomial(trials, np.full(trials, 1 / trials), size=_RESAMPLES) / trials
    low, high = np.quantile(weights @ draw(rng, (trials, samples)), (0.025, 0.975), axis=0)
    return float(np.mean((low <= true) & (true <= high)))


def main() -> None:
    """Print the table."""
    print("| scores | interval of |" + "".join(f" {n} trials |" for n in TRIALS))
    print("| --- | --- |" + " ---: |" * len(TRIALS))
    for name, draw in SCORES.items():
        for what, of in (("the median", covered), ("the mean, percentiles", covered_by_percentiles)):
            shares = (of(draw, n, 4000, seed) for seed, n in enumerate(TRIALS))
            print(f"| {name} | {what} |" + "".join(f" {100 * share:.0f} % |" for share in shares))


if __name__ == "__main__":
    main()
