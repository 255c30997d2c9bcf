"""S trials that advance step by step in a world: their environments, evaluations and returns, however they learn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.engine import Scores
from onrig.learner.trials.memories import Policy
from onrig.learner.trials.step_run import SHIELD, StepRun, space_problems, step_problems
from onrig.learner.trials.worlds import Bools, Stepped, Values, World, episode_returns
from onrig.learner.trials.worlds.making import make_world
from onrig.runtime.random_streams import Role

Make = Callable[[Role, int], World]
"""Makes the world for training or evaluation (its role), with that many actors for each trial."""


class WorldTrials(ABC):
    """Environments of S trials, K actors each, and the returns of their episodes; a subclass acts and learns.

    All actors take one environment step at a time; episodes end for each by itself.  A trial whose networks diverge
    disturbs no other: it goes on with zeros for actions, and its scores are NaN from then on.
    """

    def __init__(self, run: StepRun, seeds: Sequence[int], make: Make | None = None) -> None:
        """Set up one trial per seed; ``make`` takes the place of the run's own world.

        Raises ValueError where ``run`` does not fit its world, ``NoSuchTask`` where there is none.
        """
        make = make or (lambda role, actors: make_world(run, seeds, role, actors))
        problems = [message for _, message in step_problems(run)]
        if problems:
            raise ValueError("; ".join(problems))
        self._actors: Final = run.learner.selected.parallel
        world = make(Role.PLANT_TRAIN, self._actors)
        self.spaces: Final = world.spaces
        problems = [message for _, message in space_problems(run, self.spaces.m, self.spaces.levels)]
        if problems:
            raise ValueError("; ".join(problems))
        self._run, self._world, self._seeds = run, world, seeds
        self._evaluation = make(Role.PLANT_EVAL, run.evaluation.episodes)
        self.steps = 0
        """Environment steps that each trial has done, with all of its actors."""
        S = len(seeds)
        self._all: Bools = np.ones((S, self._actors), np.bool_)
        self._observation: Values = world.begin(self._all)
        self._return = np.zeros((S, self._actors))
        self._closed = np.zeros((2, S))
        self._diverged = np.zeros(S, np.bool_)
        self._shield = np.zeros((S, len(SHIELD)))

    @abstractmethod
    def _policy(self, actors: tuple[int, int]) -> Policy:
        """Noise-free policies of (S, E) actors at the start of an episode."""

    @abstractmethod
    def _move(self, before: Values) -> Stepped:
        """Take one training step with every actor from these observations (S, K, n), and note what came of it."""

    @abstractmethod
    def _learn(self) -> None:
        """Learn after a training step, and after the episodes that ended with it."""

    def _episodes_closed(self, returns: NDArray[np.float64], which: Bools) -> None:
        """Hear of episodes that ended, and of the returns of all, (S, K) each."""
        return

    def _replayed(self) -> NDArray[np.float64] | None:
        """Take what ``REPLAYED`` names since the evaluation before, (S, k)."""
        return None

    def advance(self) -> Scores:
        """Train until the next evaluation; returns its mean returns, and those of the training episodes closed since.

        Without any such episode a trial's is NaN.
        """
        train = self.train(self._run.evaluation.every)
        evaluation = self.evaluate()
        train, evaluation = (np.where(self._diverged, np.nan, score) for score in (train, evaluation))
        return Scores(train, evaluation, None, self._replayed(), self._shield.copy())

    def train(self, steps: int) -> NDArray[np.float64]:
        """Train for that many environment steps; returns the mean return (S,) of the episodes that closed in them."""
        self._closed[:], self._shield[:] = 0.0, 0
        for _ in range(0, steps, self._actors):
            self._step()
        total, count = self._closed
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def evaluate(self) -> NDArray[np.float64]:
        """Mean return (S,) of noise-free episodes, those of a trial side by side."""
        actors = (len(self._all), self._run.evaluation.episodes)
        policy = self._policy(actors)
        returns = episode_returns(self._evaluation, actors, lambda seen: self._safe(policy(seen)))
        return np.asarray(returns.mean(axis=1))

    def close(self) -> None:
        """Release the environments."""
        self._world.close()
        self._evaluation.close()

    def _step(self) -> None:
        self.steps += self._actors
        stepped = self._move(self._observation)
        self._return += stepped.reward
        self._shield += np.stack((stepped.intervened.sum(axis=1), stepped.tripped.sum(axis=1)), axis=1)
        self._observation = stepped.observation
        ended = stepped.terminated | stepped.truncated
        if ended.any():
            self._close(ended)
        self._learn()

    def _close(self, ended: Bools) -> None:
        self._episodes_closed(self._return, ended)
        self._closed += np.where(ended, (self._return, np.ones(ended.shape)), 0.0).sum(axis=2)
        self._return[ended] = 0.0
        self._observation = self._world.begin(ended)

    def _safe(self, action: NDArray[np.floating]) -> NDArray[np.floating]:
        """Actions (S, E, m) with zeros for those of diverged trials, which are marked."""
        finite = np.isfinite(action).all(axis=(1, 2))
        if finite.all():
            return action
        self._diverged |= ~finite
        return np.where(finite[:, None, None], action, 0.0)
