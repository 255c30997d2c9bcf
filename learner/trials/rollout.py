"""Episodes of S trials on S plants of their own, one training and one evaluation episode of each side by side.

There is no shield: no hardware is at risk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.instruments import Instruments
from onrig.runtime.random_streams import Role
from onrig.runtime.run_config import RunConfig
from onrig.sim.plants import Plant

Values = NDArray[np.float64]
Act = Callable[[int, NDArray[np.floating]], tuple[Values, Values]]
"""``act(t, observation)``: (S, 2, k) normalised policy inputs at step t, the training episodes' first, to the actions
chosen and the policy's own, each (S, 2, m) and normalised."""

TRAINING: Final = 0
EVALUATION: Final = 1


class Rollout(NamedTuple):
    """One training episode of T steps of each trial, as its learner sees it; mean rewards are the plant's own."""

    observation: NDArray[np.float32]
    """(S, T, k), what policies see, normalised, sensor noise included."""
    action: NDArray[np.float32]
    """(S, T, m), normalised: the action asked for.  A learner does not see actuator noise (eq. 2)."""
    reward: NDArray[np.float32]
    """(S, T), raw units of the task."""
    next_observation: NDArray[np.float32]
    """(S, T, k)."""
    exploration: NDArray[np.float32]
    """(S, T): 1-norm of the action's distance from the policy's own (§7.1.1)."""
    noise: NDArray[np.float32] | None
    """(S, T, n + m): what sensors (at the observation) and actuators added, normalised; None without noise."""
    mean_reward: Values
    """(S,) per step, of the training episode."""
    evaluation: Values
    """(S,) per step, of an episode without exploration, under the same policy."""


class Rollouts:
    """Runs the episodes of S trials.  Each draws from streams of its own and is computed element by element, so that
    nothing in it depends on the trials beside it."""

    def __init__(self, config: RunConfig, seeds: Sequence[int], plant: Plant | None = None) -> None:
        """``plant`` takes the place of the twin's; its parameters may be arrays (2 S,): of each trial's training
        episodes, then of its evaluation episodes."""
        self._seeds = seeds
        self._instruments = instruments = Instruments(config, plant)
        self.is_noisy: Final = instruments.is_noisy
        """Whether sensors or actuators add noise."""
        self.steps: Final = instruments.steps
        """T, transitions per episode."""

    def _noise(self, episode: int) -> Values:
        """Draw (S, 2, T + 1, n + m) noise in normalised units: of the training and of the evaluation episode."""
        roles, noise = (Role.PLANT_TRAIN, Role.PLANT_EVAL), self._instruments.noise
        return np.array([[noise(seed, role, episode, self.steps) for role in roles] for seed in self._seeds])

    def __call__(self, episode: int, act: Act) -> Rollout:
        """Run episode ``episode`` of every trial."""
        instruments = self._instruments
        S, T, n, m = len(self._seeds), self.steps, instruments.n, instruments.m
        noise = self._noise(episode) if self.is_noisy else None
        state = instruments.start(2 * S)
        states = np.empty((T + 1, S, 2, n))
        seen = np.empty((T + 1, S, 2, n))
        shown = np.empty((T + 1, S, 2, instruments.k))
        asked = np.empty((T, S, 2, m))
        applied = np.empty((T, S, 2, m))
        exploration = np.empty((T, S))
        for t in range(T + 1):
            states[t] = instruments.measured(state).reshape(S, 2, n)
            seen[t] = instruments.normalised(states[t], None if noise is None else noise[:, :, t, :n])
            shown[t] = instruments.shown(seen[t::-1][: instruments.reach + 1])
            if t == T:
                break
            chosen, wish = act(t, shown[t])
            asked[t] = chosen
            exploration[t] = np.abs(chosen[:, TRAINING] - wish[:, TRAINING]).sum(axis=-1)
            moved = chosen if noise is None else chosen + noise[:, :, t, n:]
            applied[t] = instruments.commanded(moved)
            state = instruments.moved(state, applied[t].reshape(2 * S, m))
        reward = instruments.reward(states[1:], applied)
        trial_first = np.ascontiguousarray(reward.transpose(1, 2, 0))
        means = trial_first.mean(axis=-1)
        observed = shown[:, :, TRAINING].astype(np.float32).transpose(1, 0, 2)
        return Rollout(
            observation=observed[:, :-1],
            action=asked[:, :, TRAINING].astype(np.float32).transpose(1, 0, 2),
            reward=trial_first[:, TRAINING].astype(np.float32),
            next_observation=observed[:, 1:],
            exploration=exploration.T.astype(np.float32),
            noise=None if noise is None else noise[:, TRAINING, :T].astype(np.float32),
            mean_reward=means[:, TRAINING],
            evaluation=means[:, EVALUATION],
        )
