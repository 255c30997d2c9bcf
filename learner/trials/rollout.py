"""Episodes of S trials on S plants of their own, one training and one evaluation episode of each side by side.

The plant is the twin's, without quantisation; sensor and actuator noise are those of de Bruin et al. 2018, §6.5.  There
is no shield: no hardware is at risk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.random_streams import Role, stream
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import batched_reward, episode_steps
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import step
from onrig.sim.twin.options import TwinOptions

Values = NDArray[np.float64]
Act = Callable[[int, NDArray[np.floating]], tuple[Values, Values]]
"""``act(t, observation)``: (S, 2, n) normalised observations at step t, the training episodes' first, to the actions
chosen and the policy's own, each (S, 2, m) and normalised."""

TRAINING: Final = 0
EVALUATION: Final = 1


class Rollout(NamedTuple):
    """One training episode of T steps of each trial, as its learner sees it; mean rewards are the plant's own."""

    observation: NDArray[np.float32]
    """(S, T, n), normalised, sensor noise included."""
    action: NDArray[np.float32]
    """(S, T, m), normalised: the action asked for.  A learner does not see actuator noise (eq. 2)."""
    reward: NDArray[np.float32]
    """(S, T), raw units of the task."""
    next_observation: NDArray[np.float32]
    """(S, T, n)."""
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
        rig, options = config.rig, msgspec.convert(config.device.twin, TwinOptions)
        self._seeds = seeds
        self._plant, self._substeps = plant or options.plant, options.substeps
        self._sigma = np.array(options.noise(rig))
        self.is_noisy: Final = bool(self._sigma.any())
        """Whether sensors or actuators add noise."""
        self._period_s = 1.0 / config.rate_hz
        self.steps: Final = episode_steps(config.task, config.rate_hz)
        """T, transitions per episode."""
        names = self._plant.state_names
        self._seen_at = [names.index(o.sensor or o.name) for o in rig.observations]
        self._centre = np.array([0.5 * (o.low + o.high) for o in rig.observations])
        self._half = np.array([0.5 * (o.high - o.low) for o in rig.observations])
        wrapped = {s.name for s in rig.sensors if s.wrap}
        self._wraps = np.array([(o.sensor or o.name) in wrapped for o in rig.observations])
        self._action_centre = np.array([a.centre for a in rig.actuators])
        self._action_half = np.array([a.half_range for a in rig.actuators])
        self._start = [config.task.start[name] for name in names]
        self._reward = batched_reward(config.task, rig)

    def _noise(self, episode: int) -> Values:
        """Draw (S, 2, T + 1, n + m) noise in normalised units: of the training and of the evaluation episode."""
        shape = (self.steps + 1, len(self._sigma))
        roles = (Role.PLANT_TRAIN, Role.PLANT_EVAL)
        drawn = [[stream(seed, role, episode).standard_normal(shape) for role in roles] for seed in self._seeds]
        noise: Values = np.array(drawn) * self._sigma
        return noise

    def _normalised(self, state: Values, noise: Values | None) -> Values:
        """Return what is observed of SI states (..., n) under noise of the same shape."""
        seen: Values = (state - self._centre) / self._half
        if noise is not None:
            seen += noise
            turns = 2.0 * np.pi / self._half
            low = (-np.pi - self._centre) / self._half
            seen = np.where(self._wraps, (seen - low) % turns + low, seen)
        return seen

    def __call__(self, episode: int, act: Act) -> Rollout:
        """Run episode ``episode`` of every trial."""
        S, T, n, m = len(self._seeds), self.steps, len(self._seen_at), len(self._action_half)
        noise = self._noise(episode) if self.is_noisy else None
        state: tuple[Values, ...] = tuple(np.full(2 * S, value) for value in self._start)
        states = np.empty((T + 1, S, 2, n))
        seen = np.empty((T + 1, S, 2, n))
        asked = np.empty((T, S, 2, m))
        applied = np.empty((T, S, 2, m))
        exploration = np.empty((T, S))
        flat = states.reshape(T + 1, 2 * S, n)
        for t in range(T + 1):
            for column, at in enumerate(self._seen_at):
                flat[t, :, column] = state[at]
            seen[t] = self._normalised(states[t], None if noise is None else noise[:, :, t, :n])
            if t == T:
                break
            chosen, wish = act(t, seen[t])
            asked[t] = chosen
            exploration[t] = np.abs(chosen[:, TRAINING] - wish[:, TRAINING]).sum(axis=-1)
            moved = chosen if noise is None else chosen + noise[:, :, t, n:]
            applied[t] = self._action_centre + self._action_half * moved
            held: tuple[Values, ...] = tuple(np.ascontiguousarray(c) for c in applied[t].reshape(2 * S, m).T)
            state = step(self._plant, state, held, self._period_s, self._substeps)
        reward = self._reward(states[1:], applied)
        trial_first = np.ascontiguousarray(reward.transpose(1, 2, 0))
        means = trial_first.mean(axis=-1)
        observed = seen[:, :, TRAINING].astype(np.float32).transpose(1, 0, 2)
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
