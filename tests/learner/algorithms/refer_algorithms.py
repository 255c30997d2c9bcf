"""Memories and minibatches for the algorithms under ReF-ER."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from onrig.hw.rig import Actuator, Observation, Rig, Sensor
from onrig.learner.algorithms import (
    Behaviour,
    MemoryAccess,
    Minibatches,
    UsesWholeMemory,
    Window,
    algorithm_for,
    traced,
)
from onrig.learner.algorithms.refer_algorithm import ReferAlgorithm
from onrig.learner.notes import Notes
from onrig.learner.settings import LearnerSettings
from onrig.learner.trajectories import Trajectories

CAPACITY = 40
EPISODE = 10
WINDOW = 4
TEST_RIG = Rig(
    name="bench",
    sensors=tuple(Sensor(f"o{i}", "m", 1e-3) for i in range(3)),
    actuators=(Actuator("a0", "V", 1e-3, -3.0, 3.0), Actuator("a1", "A", 1e-3, 0.0, 0.6)),
    observations=tuple(Observation(f"o{i}", "m", -2.0, 4.0) for i in range(3)),
)
"""A rig with as many observations and actions as ``RandomMemory``."""


class RandomMemory:
    """A memory of ``CAPACITY`` random experiences for each of S trials, in episodes of ``EPISODE`` steps."""

    def __init__(
        self, trials: int, n: int = 3, m: int = 2, *, first_trial: int = 0, has_terminations: bool = True
    ) -> None:
        rngs = [np.random.default_rng(100 + first_trial + trial) for trial in range(trials)]

        def columns(width: int) -> NDArray[np.float32]:
            samples = np.stack([rng.uniform(-1.0, 1.0, (CAPACITY + 1, width)) for rng in rngs])
            return samples.astype(np.float32)

        states = columns(n)
        self.observation, self.next_observation = states[:, :-1], states[:, 1:]
        self.mean, self.reward = columns(m)[:, :-1], 10.0 * columns(1)[:, :-1, 0]
        self.std = np.full_like(self.mean, 0.2)
        self.drawn = self.mean + 0.2 * columns(m)[:, :-1]
        self.terminated = np.zeros((trials, CAPACITY), np.bool_)
        self.terminated[:, 9::20] = has_terminations
        self.overridden = np.zeros((trials, CAPACITY), np.bool_)
        self.trajectories = Trajectories(trials, CAPACITY, lambda trial, first_trial, second: first_trial >= 0)
        for trial in range(trials):
            steps = np.arange(CAPACITY)
            self.trajectories.on_write(trial, steps, steps + steps // EPISODE)
        self.next_slots = self.trajectories.next_slots
        self.notes = Notes(trials, CAPACITY)
        self.window = WINDOW
        """Steps reported for each experience; 0 for none."""

    def gather(self, slots: NDArray[np.int64]) -> Minibatches:
        """Experiences in slots (..., S, B)."""
        index = (np.arange(len(self.reward))[:, None], slots)
        behaviour = Behaviour(self.mean[index], self.std[index], self.drawn[index], self.overridden[index])
        return Minibatches(
            self.observation[index],
            np.clip(self.drawn[index], -1.0, 1.0),
            self.reward[index],
            self.next_observation[index],
            self.terminated[index],
            slots=slots,
            behaviour=behaviour,
            window=self._preceding_window(slots) if self.window else None,
        )

    def _preceding_window(self, slots: NDArray[np.int64]) -> Window:
        chain = self.trajectories.with_predecessors(slots, self.window)
        observations = self.observation[np.arange(len(self.reward))[:, None, None], chain.slots]
        return Window(chain.slots, observations, chain.is_present)

    def add_all(self) -> None:
        """Report all slots as written."""
        for trial in range(len(self.reward)):
            self.notes.on_write(trial, np.arange(CAPACITY))

    def draws(self, updates: int, batch: int, *, only_update: int | None = None) -> Minibatches:
        """Minibatches (K, S, B), or the one with this number; those of a trial do not depend on the others."""
        update_indices = range(updates) if only_update is None else [only_update]
        return self.gather(
            np.stack([np.random.default_rng(k).permutation(CAPACITY)[None, :batch] for k in update_indices]).repeat(
                len(self.reward), axis=1
            )
        )


def make_algorithm(
    memory: RandomMemory,
    section: dict[str, Any],
    refer: dict[str, Any] | None = None,
    first_trial: int = 0,
    dtype: DTypeLike = np.float32,
) -> ReferAlgorithm:
    """An algorithm that learns from a memory; the trials have the seeds from ``first_trial``."""
    name = section.pop("algorithm") if "algorithm" in section else "ddpg"
    settings_fields: dict[str, Any] = {"algorithm": name, name: {"batch": 8, "reward_scale": 1.0, **section}}
    settings = msgspec.convert(
        settings_fields if refer is None else settings_fields | {"refer": refer}, LearnerSettings
    )
    trials, _, n = memory.observation.shape
    streams = [np.random.default_rng(first_trial + trial) for trial in range(trials)]
    executor_for = vars(traced)["executor_for"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traced, "executor_for", lambda _: executor_for(dtype))
        algorithm = algorithm_for(settings, n, memory.mean.shape[2], streams)
    assert isinstance(algorithm, ReferAlgorithm)
    assert isinstance(algorithm, UsesWholeMemory)
    algorithm.bind_memory(
        MemoryAccess(memory.notes, memory.gather, memory.next_slots, memory.trajectories.segments_around)
    )
    memory.add_all()
    return algorithm
