"""The algorithms by the names that configurations use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from onrig.learner.algorithms import Algorithm
from onrig.learner.algorithms.ddpg import Ddpg
from onrig.learner.algorithms.dqn import Dqn
from onrig.learner.settings import LearnerSettings


class Entry(NamedTuple):
    """One algorithm; the section of its settings has its name."""

    build: Callable[..., Algorithm]
    """Takes settings, numbers of observations and actions, and one random stream per trial."""
    single_action: bool = False
    """Whether it is limited to one action dimension."""


ALGORITHMS: Final = {
    "ddpg": Entry(Ddpg),
    "dqn": Entry(Dqn, single_action=True),
}


def algorithm_for(
    settings: LearnerSettings, n_observations: int, n_actions: int, streams: Sequence[np.random.Generator]
) -> Algorithm:
    """Build the algorithm that ``settings`` names, one trial from each of ``streams``."""
    own_settings = getattr(settings, settings.algorithm)
    return ALGORITHMS[settings.algorithm].build(own_settings, n_observations, n_actions, streams)
