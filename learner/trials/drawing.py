"""Whole episodes of policies that are Gaussians: they draw their actions by process ``own``, as on the rig."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Gaussian
from onrig.learner.trials.rollout import TRAINING, Values
from onrig.runtime.explore.noise import episode_noise
from onrig.runtime.explore.schedule import amplitudes, is_quiet
from onrig.runtime.explore.settings import OwnNoise
from onrig.runtime.random_streams import Role, stream


class GaussianDraws:
    """Draws of S trials with the noise that the exploration stream of the episode gives on the rig, evaluated without;
    what the policies did is kept for the memory."""

    def __init__(
        self, policy: Gaussian, process: OwnNoise, seeds: Sequence[int], steps: int, actuators: Sequence[str]
    ) -> None:
        self._policy, self._process, self._seeds = policy, process, seeds
        self._actuators = tuple(actuators)
        S, m = len(seeds), len(actuators)
        self.signal: Values = np.zeros((S, steps, m))
        self._noise: Values = np.zeros((S, steps, m))
        self._amplitude: Values = np.ones(m)
        self.behaviour: NDArray[np.float32] = np.zeros((S, steps, 3 * m + 1), np.float32)
        """Mean, standard deviation and draw of each step of the training episode, and 1 where the noise was reduced."""

    def begin_episode(self, episode: int) -> None:
        """Draw the noise of every step."""
        process, steps, names = self._process, self._noise.shape[1], self._actuators
        streams = [stream(seed, Role.EXPLORATION, episode) for seed in self._seeds]
        self._noise = np.array([episode_noise(process, s, episode, steps, names) for s in streams])
        scheduled = np.array(amplitudes(process, names, episode))
        self._amplitude = np.zeros_like(scheduled) if is_quiet(process.quiet, episode) else scheduled

    def __call__(self, t: int, observation: NDArray[np.floating]) -> tuple[Values, Values]:
        """Act at step t."""
        mean, std = (part.astype(np.float64) for part in self._policy.distribution(observation))
        wish = np.clip(mean, -1.0, 1.0)
        mean, std = mean[:, TRAINING], std[:, TRAINING]
        drawn = mean + std * self._noise[:, t]
        chosen = wish.copy()
        chosen[:, TRAINING] = np.clip(drawn, -1.0, 1.0)
        reduced = np.full((len(mean), 1), self._amplitude.min() < 1.0)
        self.behaviour[:, t] = np.concatenate((mean, self._amplitude * std, drawn, reduced), axis=1)
        return chosen, wish

    def elsewhere(self, observation: NDArray[np.floating]) -> Values:
        """Return the draws by the noise of the same steps."""
        mean, std = self._policy.distribution(observation)
        return np.clip(mean + std * self._noise, -1.0, 1.0)

    def on_levels(self, uniform: Values) -> Values:
        """Identity: every action is available."""
        return uniform
