"""The algorithms by the names that configurations use; reading it needs no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from onrig.learner.algorithms import Algorithm
from onrig.learner.settings import LearnerSettings


class Entry(NamedTuple):
    """One algorithm; the section of its settings has its name."""

    home: str
    """MODULE:CLASS in this folder; takes settings, numbers of observations and actions, one random stream per trial."""
    single_action: bool = False
    """Whether it is limited to one action dimension."""


ALGORITHMS: Final = {
    "ddpg": Entry("ddpg:Ddpg"),
    "dqn": Entry("dqn:Dqn", single_action=True),
}


def algorithm_for(
    settings: LearnerSettings, n_observations: int, n_actions: int, streams: Sequence[np.random.Generator]
) -> Algorithm:
    """Build the algorithm that ``settings`` names, one trial from each of ``streams``."""
    module, _, attribute = ALGORITHMS[settings.algorithm].home.partition(":")
    build: Callable[..., Algorithm] = getattr(importlib.import_module(f"onrig.learner.algorithms.{module}"), attribute)
    return build(getattr(settings, settings.algorithm), n_observations, n_actions, streams)
