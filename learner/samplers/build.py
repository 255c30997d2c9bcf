"""Builds the sampler that a strategy names."""

from __future__ import annotations

import numpy as np

from learner.samplers import Sampler
from learner.samplers.uniform import Uniform
from runtime.replay.strategy import Strategy


def sampler_for(
    strategy: Strategy, capacity: int, stream: np.random.Generator, *, episodes: int, batch: int
) -> Sampler:
    """Build the sampling half of ``strategy`` for a memory of ``capacity``; ``stream`` becomes its own.

    ``episodes`` (of the run) and ``batch`` scale its schedules.  Raises ValueError for a sampling it does not know.
    """
    if strategy.sampling == "Uniform":
        return Uniform(stream)
    raise ValueError(f"unknown sampling '{strategy.sampling}'")
