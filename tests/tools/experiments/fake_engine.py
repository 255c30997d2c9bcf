"""A trials engine whose results depend only on seed and episode, and that can be made to fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.settings import LearnerSettings
from onrig.runtime.run_config import RunConfig

CRASHING_SEED = 13
FAILING_SEED = 14


class Scores(NamedTuple):
    train: NDArray[np.float64]
    evaluation: NDArray[np.float64]
    batch_noise: NDArray[np.float64] | None
    replay_measures: None = None
    shield_counts: None = None


class Trials:
    def __init__(self, config: RunConfig, settings: LearnerSettings, seeds: Sequence[int]) -> None:
        print("a library that is talkative")
        self._rate_hz = config.rate_hz
        self._has_noise = bool(config.device.twin and config.device.twin["sensor_noise"])
        self._seeds = np.array(seeds, dtype=np.float64)
        self._episode = 0

    def advance(self) -> Scores:
        self._episode += 1
        if self._episode == 2 and CRASHING_SEED in self._seeds:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._episode == 2 and FAILING_SEED in self._seeds:
            raise ValueError("not with this seed")
        train = -self._seeds - self._episode / 7 - self._rate_hz
        noise = np.stack([self._seeds, self._seeds + self._episode], axis=1)
        return Scores(train, train / 3, noise if self._has_noise and self._episode > 1 else None)


run_trials = Trials
