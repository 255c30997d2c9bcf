"""Whole episodes of trials: plants, memories, updates, as ``onrig experiment`` runs them."""

from __future__ import annotations

import time
from typing import Final

import msgspec
import numpy as np

from onrig.learner.settings import LearnerSettings
from onrig.learner.trials.engine import Trials
from onrig.runtime.run_config import RunConfig, capacity_of
from onrig.runtime.task import episode_steps
from onrig.tools.benchmarks.learner_cases import RIDE_EPISODES, Play
from onrig.tools.benchmarks.messages import Timings
from onrig.tools.load import load


class Strategy:
    """Trials of one strategy; a step ahead in time fills their memories with rows drawn at random."""

    def __init__(self, play: Play) -> None:
        self._config: Final = config_of(play.strategy)
        settings = msgspec.convert(self._config.learner, LearnerSettings)
        self._trials: Final = Trials(self._config, settings, range(play.trials))
        self._n_trials: Final = play.trials
        self._random: Final = np.random.default_rng(play.trials)

    def forward_to(self, done: int) -> None:
        """Go to where ``done`` episodes are done, without a single update; schedules and sizes are those of then.

        A memory is filled once at most, however often it would have been overwritten.
        Nothing in it has been replayed; a draw from a memory ordered by errors was found to take the same time after.
        """
        trials, memories = self._trials, self._trials.memories
        steps = episode_steps(self._config.task, self._config.rate_hz)
        enough = -(-capacity_of(self._config) // steps)
        for _ in range(min(done - trials.episodes, enough)):
            rows = self._random.uniform(-1.0, 1.0, (self._n_trials, steps, memories.width)).astype(np.float32)
            memories.insert(rows, None)
        trials.episodes = done

    def durations(self, episodes: int) -> Timings:
        """Time whole episodes, by the clock and by the processor's time."""
        calls, busy_calls = [], []
        for _ in range(episodes):
            busy, start = time.process_time_ns(), time.perf_counter_ns()
            self._trials.episode()
            calls.append(time.perf_counter_ns() - start)
            busy_calls.append(time.process_time_ns() - busy)
        return Timings(calls, busy_calls=busy_calls)


def config_of(strategy: str) -> RunConfig:
    """Return the pendulum's configuration with ``strategy``, as long as a whole experiment."""
    return load("pendulum", [f"selection.strategy={strategy}", f"episodes={RIDE_EPISODES}"])
