"""Random noise, start states and targets of a plant world's episodes, equal to those of a run with the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import targets_of
from onrig.learner.trials.worlds import Actor
from onrig.learner.trials.worlds.actuation import States
from onrig.runtime.random_streams import device_seed, stream
from onrig.runtime.run_config import RunConfig
from onrig.runtime.starts import are_starts_random, draw_start, middle_start
from onrig.runtime.tracking import EpisodeTargets
from onrig.sim.twin.options import TwinOptions


class EpisodeDraws:
    """Noise, start state and targets of the current episode of each of A actors."""

    def __init__(self, config: RunConfig, state_names: Sequence[str], actors: Sequence[Actor], horizon: int) -> None:
        """``state_names``: names of the plant's states.  ``horizon``: number of steps of the longest episode."""
        rig, n_actors = config.rig, len(actors)
        self._state_names: Final = state_names
        self._actors: Final = actors
        self._horizon: Final = horizon
        self._sigma: Final = np.array(msgspec.convert(config.device.twin, TwinOptions).noise(rig))
        self.is_noisy: Final = bool(self._sigma.any())
        """Whether sensors or actuators add noise."""
        self._starts: Final = config.task.all_starts
        self._are_starts_drawn: Final = are_starts_random(self._starts)
        n_targets = len(targets_of(rig))
        self._episode_targets = EpisodeTargets(config.task, rig, config.period_us, horizon) if n_targets else None
        self._indices: Final = np.arange(n_actors)
        self._noise: Final = np.zeros((n_actors, horizon + 1 if self.is_noisy else 0, len(self._sigma)))
        """(A, horizon + 1, n + m), normalised units; (A, 0, n + m) without noise."""
        self._targets: Final = np.zeros((n_actors, horizon + 1, n_targets))
        """(A, horizon + 1, q), SI units."""

    @property
    def episodes_differ(self) -> bool:
        """Whether episodes differ in noise, start states or targets."""
        return self.is_noisy or self._are_starts_drawn or self._episode_targets is not None

    def nominal_start(self) -> States:
        """Return the state at the start of an episode, (A,) each; for drawn starts, the middle of their intervals."""
        start = middle_start(self._starts)
        return tuple(np.full(len(self._actors), start[name]) for name in self._state_names)

    def draw(self, i: int, n_played: int, state: States) -> None:
        """Draw the episode that actor ``i`` plays after ``n_played`` others; if its start is drawn, write it into
        ``state``."""
        actor = self._actors[i]
        seed, role, episode = actor.seed, actor.role, actor.episode(n_played) + 1
        if self.is_noisy:
            normals = stream(seed, role, episode).standard_normal((self._horizon + 1, len(self._sigma)))
            self._noise[i] = normals * self._sigma
        if self._are_starts_drawn:
            start = draw_start(self._starts, device_seed(seed, role, episode))
            for values, name in zip(state, self._state_names, strict=True):
                values[i] = start[name]
        if self._episode_targets is not None:
            self._targets[i] = self._episode_targets.values_for_role(seed, role, episode)

    def noise(self, step: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return the noise on n observations and m actions at each actor's step, (A, n + m); None without noise."""
        return self._noise[self._indices, step] if self.is_noisy else None

    def targets(self, step: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the targets at each actor's step, at most the last one, (A, q)."""
        return self._targets[self._indices, np.minimum(step, self._horizon)]
