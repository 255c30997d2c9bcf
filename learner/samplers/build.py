"""Builds the sampler that a strategy names."""

from __future__ import annotations

import numpy as np

from onrig.learner.samplers import Sampler
from onrig.learner.samplers.fis import Fis
from onrig.learner.samplers.importance import Linear
from onrig.learner.samplers.proportional_per import ProportionalPer
from onrig.learner.samplers.rank_per import RankPer
from onrig.learner.samplers.uniform import Uniform
from onrig.runtime.replay.memory.strategy import Strategy


def sampler_for(
    strategy: Strategy,
    capacity: int,
    stream: np.random.Generator,
    *,
    episodes: int,
    batch: int,
    per_alpha: float = 0.7,
) -> Sampler:
    """Build the sampling half of ``strategy`` for a memory of ``capacity``; ``stream`` (PCG64) becomes its own.

    Exponents as in the papers (METHODS §1.1, §1.2): rank-based alpha ``per_alpha`` (0.7 there) and beta 0.5 -> 1 over
    ``episodes`` of the run; proportional alpha 0.6 and beta 0.4 -> 1.  Raises ValueError for a sampling it does not
    know, and when the memory cannot hold one minibatch of ``batch``.
    """
    if capacity < batch:
        raise ValueError(f"a memory of {capacity} experiences gives no minibatch of {batch}")
    beta = Linear(0.5, 1.0, episodes)
    match strategy.sampling:
        case "Uniform":
            return Uniform(stream)
        case "Uniform+FIS":
            return Fis(Uniform(stream), capacity, beta=beta)
        case "PER":
            return RankPer(capacity, stream, alpha=per_alpha)
        case "PER+IS":
            return RankPer(capacity, stream, alpha=per_alpha, beta=beta)
        case "PER+FIS":
            return Fis(RankPer(capacity, stream, alpha=per_alpha), capacity, beta=beta)
        case "PropPER":
            return ProportionalPer(capacity, stream)
        case "PropPER+IS":
            return ProportionalPer(capacity, stream, beta=Linear(0.4, 1.0, episodes))
    raise ValueError(f"unknown sampling '{strategy.sampling}'")
